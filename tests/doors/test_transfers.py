"""The table of a file's receivers, cell by cell."""

from __future__ import annotations

import pytest

from sbuslib.doors.transfers import LONGEST_REASON, MOST_FAILED, Transfer
from sbuslib.wire.offers import ASK, COPYING, FAILED, HAVE

State = tuple[dict[int, float], int, list[str], int]


def state(transfer: Transfer) -> State:
    return transfer.copying, transfer.done, transfer.failed, transfer.refused


@pytest.mark.parametrize(
    ("event", "before", "after"),
    [
        (ASK, False, ({7: 2.0}, 0, [], 0)),
        (ASK, True, ({7: 2.0}, 0, [], 0)),
        (COPYING, False, ({}, 0, [], 0)),
        (COPYING, True, ({7: 2.0}, 0, [], 0)),
        (HAVE, False, ({}, 0, [], 0)),
        (HAVE, True, ({}, 1, [], 0)),
        (FAILED, False, ({}, 0, [], 0)),
        (FAILED, True, ({}, 0, ["why"], 1)),
        (b"left", False, ({}, 0, [], 0)),
        (b"left", True, ({}, 0, ["a receiver left"], 1)),
        (b"silent", False, ({}, 0, [], 0)),
        (b"silent", True, ({}, 0, ["silent"], 1)),
    ],
)
def test_what_a_receiver_says(event: bytes, before: bool, after: State) -> None:
    changes: list[None] = []
    transfer = Transfer(0, lambda: changes.append(None))
    if before:
        transfer.hear(7, ASK, "", True, 1.0)
    if event == b"left":
        transfer.leave(7, True)
    elif event == b"silent":
        transfer.give_up(1.5, "silent")
    else:
        transfer.hear(7, event, "why", True, 2.0)
    assert state(transfer) == after
    assert len(changes) == before + (event != b"silent")


def test_a_receiver_that_was_heard_is_not_given_up() -> None:
    transfer = Transfer(0, lambda: None)
    transfer.hear(7, ASK, "", True, 1.0)
    transfer.give_up(1.0, "silent")
    assert transfer.copying == {7: 1.0}


def test_a_stranger_that_fails_does_not_count_as_a_refusal() -> None:
    transfer = Transfer(0, lambda: None)
    for number in range(2 * MOST_FAILED):
        transfer.hear(number, ASK, "", False, 1.0)
        transfer.hear(number, FAILED, "x" * 1_000, False, 1.0)
    assert (transfer.refused, len(transfer.failed), len(transfer.failed[0])) == (0, MOST_FAILED, LONGEST_REASON)
