"""What workers and the service of a queue say: whom they listen to, where they answer, and what they refuse."""

from __future__ import annotations

from threading import Lock

import pytest
from clients.recipes.stepping import Stepping
from hypothesis import example, given
from hypothesis import strategies as st

from sbuslib.clients.recipes import queue
from sbuslib.clients.recipes.queue import (
    JOB_BYTES,
    Acknowledgement,
    Announcement,
    Delivery,
    QueueState,
    Submission,
    check_name,
    decode,
    encode,
    in_parts,
    is_address,
    list_queues,
    queue_key,
    submit,
)
from sbuslib.clients.recipes.request import Reply, Requester
from sbuslib.errors import PayloadError, PeerError, UsageError
from sbuslib.secrets import Namespace, stranger

OWN = b"!/cred/1/1000/7"

KEY = OWN + b"/queue/q/k"


@pytest.mark.parametrize(
    ("sender", "own", "found"),
    [
        (None, OWN, None),
        (b"!/cred/5/1000/9", OWN, None),
        (b"!/cred/5/0/9", OWN, None),
        (b"!/cred/5/2000/9", OWN, None),  # trusted
        (b"!/cred/5/1001/9", OWN, 1001),
        (b"!/cred/5/65534/9", b"!/cred/5/65534/7", 65534),  # who that is, the kernel cannot say
        (b"!/cred/5/1000/9/!/cred/5/1001/9", OWN, 1001),
        (b"!/cred/5/1001/9/!/cred/5/1000/9", OWN, 1001),  # says a hub of a stranger
        (b"!/cred/5/33/9/!/cred/5/1000/9", b"!/cred/5/33/9/" + OWN, None),  # below our own hub
        (b"!/cred/5/34/9/!/cred/5/1000/9", b"!/cred/5/33/9/" + OWN, 34),
        (b"nonsense", b"!/cred/1/1000/9", 65534),  # no hub says so
    ],
)
def test_who_is_a_stranger(sender: bytes | None, own: bytes, found: int | None) -> None:
    assert stranger(sender, own, b"/", frozenset({2000})) == found


@pytest.mark.parametrize(
    ("key", "sender", "good"),
    [
        (KEY, OWN, True),
        (KEY, None, True),
        (KEY, b"!/cred/1/1000/8", False),
        (KEY + b"\0", OWN, False),
        (OWN + b"/queue/other/k", OWN, False),
        (OWN + b"/reply/q/k", None, False),
        (b"queue/q/k", None, False),
        (b"a/!/cred/1/1/1/queue/q/k", None, False),
        (b"", None, False),
    ],
)
def test_nothing_is_told_under_other_keys(key: bytes, sender: bytes | None, good: bool) -> None:
    assert is_address(key, sender, b"q", Namespace()) is good


def test_the_names_of_queues() -> None:
    check_name(b"mail-2", b"/")
    check_name(b"a/b", b".")
    for name in (b"", b"a/b", b"*", b"a*", b"!", b"\0"):
        with pytest.raises(UsageError):
            check_name(name, b"/")
    assert queue_key(b"q", b".", b"work") == b"queue.q.work"


@given(st.binary())
@example(b"\x92\x90" + b"\x91" * 100_000 + b"\x90")
def test_anything_is_decoded_or_is_none(payload: bytes) -> None:
    for kind in (Announcement, Delivery, Acknowledgement, Submission):
        assert decode(kind, payload) is None or decode(kind, payload).__class__ is kind


@given(st.lists(st.integers(0, 12)), st.integers(1, 4))
def test_parts_are_bounded_and_whole(sizes: list[int], most: int) -> None:
    parts = list(in_parts(sizes, lambda size: size, most, 10))
    assert [size for part in parts for size in part] == sizes
    assert all(part and len(part) <= most and (sum(part) <= 10 or len(part) == 1) for part in parts)


def test_a_job_that_fits_nowhere_is_not_submitted() -> None:
    async def find(until: float | None) -> Requester:
        return Requester(OWN + b"/reply/" + b"0" * 32, Lock)

    with pytest.raises(PayloadError):
        submit(Stepping(), find, b"q", [(b"k", bytes(JOB_BYTES))], b"/", 1.0).send(None)


def test_lists_of_queues_without_an_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "LISTINGS", 5)
    asked: list[bytes] = []

    def ask(after: bytes, last: int = 1_000) -> list[Reply]:
        asked.append(after)
        number = len(asked)
        return [Reply(encode((number < last, [(b"%03d" % number, QueueState(waiting=number))])), None)]

    with pytest.raises(PeerError, match="after 5 replies"):
        list_queues(ask)
    assert len(asked) == 5
    asked.clear()
    assert [state.waiting for state in list_queues(lambda after: ask(after, 5)).values()] == [1, 2, 3, 4, 5]
