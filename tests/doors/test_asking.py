"""Asking at doors that are not what they should be, and whose doors are asked at."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from contextlib import ExitStack, nullcontext, suppress
from typing import Any

import pytest
from accounting import acting_as
from descriptors import ends, lingering
from doors.conftest import MakeDoor
from doors.visits import STRANGER, answering, fetch, memory, playing, read, run
from support import eventually, open_descriptors

from sbuslib.doors import asking, strangers
from sbuslib.doors.asking import Asker, user_behind
from sbuslib.doors.door import Door
from sbuslib.errors import DoorError
from sbuslib.kernel.closers import MOST_KEPT, close_later, is_behind
from sbuslib.wire.offers import BUSY, GIVEN, GONE, TOKEN_BYTES, Offer

OWN = os.geteuid()


def at(name: bytes) -> Offer:
    return Offer("frame", 1, b"", name)


def test_connections_are_kept_to_so_many_doors(
    make_door: MakeDoor, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "MOST_KEPT", 2)
    for _ in range(2):
        for door in [make_door() for _ in range(3)]:
            assert read(fetch(asker, memory(door, b"a"))[0]) == b"a"
    assert len(asker._kept) == 2


def test_a_connection_is_kept_and_made_anew_when_it_was_cut_off(door: Door, asker: Asker) -> None:
    offer = memory(door, b"a")
    for _ in range(3):
        assert read(fetch(asker, offer)[0]) == b"a"
    assert len(door._visitors.by_number) == 1
    for visitor in list(door._visitors.by_number.values()):
        visitor.sock.shutdown(socket.SHUT_RDWR)
    assert read(fetch(asker, offer)[0]) == b"a"


def test_a_door_whose_owner_died_is_no_door(asker: Asker) -> None:
    with pytest.raises(DoorError, match="no door"):
        fetch(asker, at(os.urandom(TOKEN_BYTES)))


def test_a_door_that_never_answers(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 0.01)
    with playing(lambda sock: sock.recv(1_000) and sock.recv(1)) as name, pytest.raises(DoorError, match="not answer"):
        fetch(asker, at(name))


def test_a_door_with_a_full_backlog(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 0.01)
    name = os.urandom(TOKEN_BYTES)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(b"\0sbus-door/" + name.hex().encode())
        listener.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
            first.connect(listener.getsockname())
            with pytest.raises(DoorError, match="not answer"):
                fetch(asker, at(name))


@pytest.mark.parametrize("how", ["busy", "closes"])
def test_a_door_that_is_busy_or_closes_each_connection_for_too_long(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += 1.0

    monkeypatch.setattr(asking, "monotonic", lambda: now)
    asker._sleep = sleep
    door: Any = answering(bytes([BUSY])) if how == "busy" else lambda sock: sock.recv(1_000)
    why = "too much under way" if how == "busy" else "that closes"
    with playing(door, connections=2 if how == "closes" else 1) as name, pytest.raises(DoorError, match=why):
        fetch(asker, at(name))


@pytest.mark.parametrize("words", [b"x", bytes([GIVEN]), bytes([GIVEN, GONE]), bytes([GONE])])
def test_a_door_that_answers_something_else(words: bytes, asker: Asker) -> None:
    before = open_descriptors()
    with socket.socket() as sock:
        given = [sock.fileno()] * (1 + (words == bytes([GIVEN])))
        with playing(answering(words, given)) as name, pytest.raises(DoorError, match="no such door"):
            fetch(asker, at(name))
    asker.close()
    eventually(lambda: open_descriptors() <= before)  # what nobody wants is closed in a thread of its own


def test_a_door_of_another_user_is_told_nothing(asker: Asker) -> None:
    heard: list[bytes] = []
    played = playing(lambda sock: heard.append(sock.recv(1_000)))
    with played as name, pytest.raises(DoorError, match="another user") as caught:
        run(asker.fetch([at(name)], OWN + 1))
    assert heard == [b""], f"it sees the end, also while somebody keeps the error: {caught.value}"


def test_a_file_that_is_not_offered_any_more_is_gone(door: Door, asker: Asker) -> None:
    offer = memory(door)
    door.take_back(offer.token)
    with pytest.raises(DoorError, match="gone"):
        run(asker.visit(offer, OWN))


def test_slow_sockets_in_place_of_memory_delay_nobody(asker: Asker) -> None:
    """One descriptor was not asked for; and one waits unread when the connection is closed."""

    def play(sock: socket.socket) -> None:
        sock.recv(1_000)
        socket.send_fds(sock, [bytes([GONE])], [slow.fileno()])
        with suppress(OSError):
            socket.send_fds(sock, [bytes([GONE])], [slow.fileno()])
        sent.close()
        sock.recv(1)

    with lingering() as (slow, other):
        sent = slow
        with playing(play) as name, pytest.raises(DoorError, match="no such door"):
            fetch(asker, at(name))
        assert ends(other)


def test_no_descriptor_is_left(door: Door, asker: Asker) -> None:
    offer = memory(door, b"a")
    assert read(fetch(asker, offer)[0]) == b"a"
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(DoorError, match="no descriptor left"):
            fetch(asker, offer)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert read(fetch(asker, offer)[0]) == b"a"


def test_nothing_is_kept_by_an_asker_that_was_closed_while_it_waited(door: Door, asker: Asker) -> None:
    insist = asker._insist

    async def close(*arguments: Any) -> Any:
        answer = await insist(*arguments)
        asker.close()
        return answer

    offer = memory(door, b"a")
    asker._insist = close  # type: ignore[method-assign, assignment]
    assert read(fetch(asker, offer)[0]) == b"a"
    assert not asker._kept


def test_a_caller_that_gives_up_takes_its_connection_along(door: Door, asker: Asker) -> None:
    """Else the next caller would take the answer for its own."""

    class GivesUpError(Exception):
        pass

    async def give_up(fd: int, timeout: float) -> bool:
        raise GivesUpError

    asker._wait_readable = give_up
    with playing(lambda sock: sock.recv(1_000) and sock.recv(1)) as name, pytest.raises(GivesUpError):
        fetch(asker, at(name))
    assert not asker._kept


def test_a_stranger_whose_door_is_silent_is_not_asked_for_a_while(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "PROMPT", 0.0)
    monkeypatch.setattr(strangers, "PATIENCE", 0.01)
    monkeypatch.setattr(strangers, "USER_AHEAD", 0.0)
    with ExitStack() as stack:
        with acting_as(STRANGER):
            name = stack.enter_context(playing(lambda sock: sock.recv(1_000) and sock.recv(1)))
        with pytest.raises(DoorError, match="not answer"):
            run(asker.fetch([at(name)], STRANGER))
    monkeypatch.setattr(asking, "monotonic", lambda: 0.0)
    with pytest.raises(DoorError, match="not asked"):
        run(asker.fetch([at(name)], STRANGER))
    monkeypatch.setattr(asking, "monotonic", lambda: time.monotonic() + 10.0)
    with pytest.raises(DoorError, match="no door"):
        run(asker.fetch([at(name)], STRANGER))


def test_a_stranger_that_hands_out_what_nobody_asked_for_is_not_asked_for_a_while(asker: Asker) -> None:
    with ExitStack() as stack:
        with acting_as(STRANGER):
            name = stack.enter_context(playing(answering(b"nonsense")))
        for why in ("no such door", "not asked"):
            with pytest.raises(DoorError, match=why):
                run(asker.fetch([at(name)], STRANGER))
        asker.refuse(OWN)
        with pytest.raises(DoorError, match="another user"):
            fetch(asker, at(name))


def test_nothing_is_taken_of_a_user_whose_descriptors_do_not_close(asker: Asker, door: Door) -> None:
    offer, goes_on = memory(door, b"a"), threading.Event()
    close_later(OWN, goes_on.wait, MOST_KEPT)
    try:
        with pytest.raises(DoorError, match="do not close"):
            fetch(asker, offer)
    finally:
        goes_on.set()
    eventually(lambda: not is_behind(OWN))
    assert read(fetch(asker, offer)[0]) == b"a"


@pytest.mark.parametrize(
    ("sender", "own", "user"),
    [
        (b"!/cred/5/5/9", b"!/cred/7/7/1", 5),
        # A stranger's hub says that root, or our own user, sent it.
        (b"!/cred/5/5/9/!/cred/0/0/1", b"!/cred/7/7/1", None),
        (b"!/cred/5/5/9/!/cred/7/7/1", b"!/cred/7/7/1", None),
        (b"!/cred/0/0/9/!/cred/5/5/9/!/cred/0/0/1", b"!/cred/7/7/1", None),
        # Hubs of its user, of a trusted one, and those above our own.
        (b"!/cred/5/5/9/!/cred/5/5/1", b"!/cred/7/7/1", 5),
        (b"!/cred/0/0/9/!/cred/5/5/1", b"!/cred/7/7/1", 5),
        (b"!/cred/6/6/9/!/cred/5/5/1", b"!/cred/6/6/9/!/cred/7/7/1", 5),
        (b"!/cred/6/6/8/!/cred/5/5/1", b"!/cred/6/6/9/!/cred/7/7/1", None),
        (b"nonsense", b"!/cred/7/7/1", None),
    ],
)
def test_whose_door_a_message_may_send_us_to(sender: bytes, own: bytes, user: int | None) -> None:
    with pytest.raises(DoorError, match="behind a hub") if user is None else nullcontext():
        assert user_behind(b"/", sender, own, frozenset([0])) == user
