"""What waits for one receiver: each cell of the table, order, charges and counts."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbuslib.core.outbox import Action, Outbox, decide
from sbuslib.core.quotas import Account
from sbuslib.limits import Limits
from sbuslib.wire.batches import QueuedBatch, coalesce
from sbuslib.wire.modes import HARD, ORDER, SOFT, Hard, Soft

SENDER = 7


def outbox(**limits: int) -> Outbox:
    bounds = Limits(**limits)
    return Outbox(bounds, Account(1000, bounds))


def offer(box: Outbox, *packets: bytes, sender: int = SENDER, may_hold: bool = True) -> Action:
    return box.offer(packets, sender, may_hold, 1.5)


def send(box: Outbox, count: int = 99) -> list[bytes]:
    packets = box.take(count)
    box.settle(len(packets))
    return packets


# -- the table ------------------------------------------------------------------------------------------

TABLE = {  # (full, soft, hard): the action when the publisher may be held
    **{(False, "queue", hard): Action.KEEP for hard in HARD},
    **{(False, "block", hard): Action.HOLD for hard in HARD},
    **{(full, "discard", hard): Action.LOSE for hard in HARD for full in (False, True)},
    **{(full, "error", hard): Action.DISCONNECT for hard in HARD for full in (False, True)},
    **{(True, soft, "discard"): Action.LOSE for soft in ("queue", "block")},
    **{(True, soft, "block"): Action.HOLD for soft in ("queue", "block")},
    **{(True, soft, "error"): Action.DISCONNECT for soft in ("queue", "block")},
}


@pytest.mark.parametrize(("full", "soft", "hard"), list(product((False, True), SOFT, HARD)))
def test_each_cell_of_the_table(full: bool, soft: Soft, hard: Hard) -> None:
    assert decide(full, soft, hard, may_hold=True) is TABLE[full, soft, hard]
    stranger = (
        full,
        cast(Soft, "queue" if soft == "block" else soft),
        cast(Hard, "discard" if hard == "block" else hard),
    )
    assert decide(*stranger, may_hold=True) is decide(full, soft, hard, may_hold=False)


@settings(max_examples=300)
@given(
    st.sampled_from(SOFT),
    st.sampled_from(HARD),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12), st.booleans(), st.booleans()), max_size=20),
)
def test_what_is_foreseen_happens(soft: Soft, hard: Hard, offers: list[tuple[int, int, bool, bool]]) -> None:
    """With several users, of whom some are below their shares, and room that ends before the queue is full."""
    box = outbox(queued_packets=6, queued_bytes=40, user_queued_packets=9, user_queued_bytes=60)
    box.soft, box.hard = soft, hard
    for sender, size, may_hold, sends in offers:
        if sends:
            send(box, 1)
        before = Counter(box.losses.total)
        action, cause = box.foresee(size, sender, may_hold)
        assert offer(box, bytes(size), sender=sender, may_hold=may_hold) is action
        assert Counter(box.losses.total) - before == ({cause: 1} if cause is not None else {})


# -- order ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ORDER)
@pytest.mark.parametrize("after", ORDER)
def test_another_order_takes_effect_at_once(before: str, after: str) -> None:
    box = outbox()
    box.order = before  # type: ignore[assignment]
    offer(box, b"22", b"1", b"333")
    box.order = after  # type: ignore[assignment]
    expected = {
        "queue": [b"22", b"1", b"333"],
        "stack": [b"333", b"1", b"22"],
        "random": [b"333", b"22", b"1"],
    }
    assert send(box) == expected[after]


def test_a_batch_goes_as_it_came_while_the_order_is_that_of_a_queue() -> None:
    for order, packets in (("queue", 1), ("stack", 20)):
        box = outbox()
        batch = coalesce([b"MSG k\0%d" % number for number in range(20)])
        assert batch is not None
        box.offer_batch(QueuedBatch.of(batch), SENDER, may_hold=True)
        box.order = order  # type: ignore[assignment]
        assert len(send(box)) == packets


def test_frequent_changes_of_order_do_not_sort_each_time() -> None:
    box = outbox()
    offer(box, *[b"x"] * 1_000)
    sorted_anew = 0
    for turn in range(200):
        box.order = "random" if turn % 2 else "queue"
        before = box._heap is not None
        box.take(1)
        box.settle(0)
        sorted_anew += (box._heap is not None) is not before
    assert sorted_anew == 1


@pytest.mark.parametrize("before", ORDER)
@pytest.mark.parametrize("after", ORDER)
def test_an_answer_that_was_not_sent_waits_among_the_answers(before: str, after: str) -> None:
    """Also while the order was changed and what waits is not sorted anew yet."""
    box = outbox()
    box.order = before  # type: ignore[assignment]
    offer(box, b"22", b"1", b"333")
    send(box, 1)
    offer(box, b"55555")
    box.take(0)
    box.settle(0)
    box.order = after  # type: ignore[assignment]
    box.push_answer(b"a1")
    box.push_answer(b"a2222222")
    for _ in range(3):
        box.take(9)
        box.settle(0)
    whole = send(box)
    assert whole.index(b"a1") < whole.index(b"a2222222")
    assert len(whole) == 5
    assert box._account.is_clear()


# -- bounds ---------------------------------------------------------------------------------------------


def test_what_is_kept_for_a_held_publisher_stays_within_what_the_receivers_user_may_queue() -> None:
    """Hard ``block`` goes beyond the bound of the queue, for the batch that was read already."""
    box = outbox(queued_packets=5, user_queued_packets=20, user_queued_bytes=60)
    box.hard = "block"
    packets = [b"%03d" % number for number in range(500)]
    assert offer(box, *packets) is Action.HOLD
    assert (len(box), box.losses.total) == (20, {"quota": 480})
    assert send(box) == packets[:20]
    offer(box, *[b"12345"] * 500)
    assert (len(box), box.losses.total) == (12, {"quota": 480 + 488})


# -- counts ---------------------------------------------------------------------------------------------


def test_losses_are_reported_once_with_their_first_time() -> None:
    box = outbox(queued_packets=1)
    offer(box, b"1")
    assert not box.losses.unreported
    box.offer([b"2"], SENDER, False, 10.0)
    box.offer([b"3"], SENDER, False, 20.0)
    box.losses.add("oversize", 1, 30.0)
    assert box.losses.take_report() == [("overflow", 2, 10.0), ("oversize", 1, 30.0)]
    assert box.losses.take_report() == []
    assert box.losses.total == {"overflow": 2, "oversize": 1}
