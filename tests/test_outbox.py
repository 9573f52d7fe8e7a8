"""What waits for one receiver."""

from __future__ import annotations

from sbuslib.limits import Limits
from sbuslib.outbox import Outbox


def outbox(**limits: int) -> Outbox:
    return Outbox(Limits(**limits))


def test_oldest_first() -> None:
    box = outbox()
    for packet in (b"1", b"22", b"333"):
        assert box.push(packet) is True
    assert (len(box), box.bytes) == (3, 6)
    assert box.first(2) == [b"1", b"22"]
    assert box.first(64) == [b"1", b"22", b"333"]
    box.pop(2)
    assert (len(box), box.bytes, box.first(1)) == (1, 3, [b"333"])
    box.pop(1)
    assert (len(box), box.bytes, box.first(1)) == (0, 0, [])


def test_as_many_packets_as_the_limit_says() -> None:
    box = outbox(queued_packets=2)
    assert [box.push(b"x") for _ in range(4)] == [True, True, False, False]
    assert (len(box), box.lost) == (2, 2)
    box.pop(1)
    assert box.push(b"y") is True
    assert box.first(9) == [b"x", b"y"]


def test_as_many_bytes_as_the_limit_says() -> None:
    box = outbox(queued_bytes=10)
    assert box.push(b"x" * 6) is True
    assert box.push(b"x" * 5) is False  # the new one goes, not one that waits
    assert box.push(b"x" * 4) is True
    assert box.push(b"x") is False
    assert (len(box), box.bytes, box.lost) == (2, 10, 2)


def test_an_answer_is_never_lost() -> None:
    box = outbox(queued_packets=1, queued_bytes=1)
    assert box.push(b"m") is True
    assert box.push_answer(b"answer") is True
    assert box.push(b"m") is False
    assert box.first(9) == [b"m", b"answer"]
    assert box.lost == 1


def test_so_many_answers_and_no_more() -> None:
    box = outbox(queued_answers=2)
    assert box.push(b"m") is True
    assert [box.push_answer(b"a") for _ in range(3)] == [True, True, False]


def test_answers_that_were_sent_do_not_count() -> None:
    box = outbox(queued_answers=2)
    for _ in range(10):
        box.push(b"m")
        assert box.push_answer(b"a") is True
        box.pop(2)
    assert box.push_answer(b"a") is True
    assert box.push_answer(b"a") is True
    box.pop(1)
    assert box.push_answer(b"a") is True
    assert box.push_answer(b"a") is False
