"""The table of a file's receivers, cell by cell."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from sbuslib.clients.fds.transfers import LONGEST_REASON, MOST_FAILED, Sent, Transfer
from sbuslib.errors import PeerError
from sbuslib.wire.offers import ASK, COPYING, FAILED, HAVE

State = tuple[dict[Hashable, float], int, list[str], int]


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
        (b"silent", True, ({}, 0, ["a receiver did not go on for 1 s"], 1)),
    ],
)
def test_what_a_receiver_says(event: bytes, before: bool, after: State) -> None:
    changes: list[None] = []
    transfer = Transfer(1, 1.0, 0.0, changed=lambda: changes.append(None))
    if before:
        transfer.hear(7, ASK, "", True, 1.0)
    if event == b"left":
        transfer.leave(7, True)
    elif event == b"silent":
        assert transfer.is_over(2.5 if before else 0.5) is before
    else:
        transfer.hear(7, event, "why", True, 2.0)
    assert state(transfer) == after
    assert len(changes) == before + (event != b"silent")


def test_a_receiver_that_was_heard_is_not_given_up() -> None:
    transfer = Transfer(1, 1.0, 0.0)
    transfer.hear(7, ASK, "", True, 1.0)
    assert not transfer.is_over(2.0)
    assert transfer.copying == {7: 1.0}


def test_a_stranger_that_fails_does_not_count_as_a_refusal() -> None:
    transfer = Transfer(1, 1.0, 0.0)
    for number in range(2 * MOST_FAILED):
        transfer.hear(number, ASK, "", False, 1.0)
        transfer.hear(number, FAILED, "x" * 1_000, False, 1.0)
    assert (transfer.refused, len(transfer.failed), len(transfer.failed[0])) == (0, MOST_FAILED, LONGEST_REASON)
    assert not transfer.is_over(1.0)
    with pytest.raises(TimeoutError, match="0 of 1 receivers took the file within 1 s; xxx"):
        transfer.is_over(1.5)


def test_it_is_over_when_enough_have_it_or_all_that_came_refused() -> None:
    transfer = Transfer(2, 1.0, 0.0)
    for number in (1, 2, 3):
        transfer.hear(number, ASK, "", True, 1.0)
    transfer.hear(1, HAVE, "", True, 1.0)
    transfer.hear(2, FAILED, "full", True, 1.0)
    assert not transfer.is_over(1.0), "the third may have it yet"
    transfer.leave(3, True)
    assert transfer.is_over(1.0)
    assert transfer.result("a") == Sent(1, ("full", "a receiver left"))
    with pytest.raises(PeerError, match="nobody has a: "):
        Transfer(1, 1.0, 0.0).result("a")
