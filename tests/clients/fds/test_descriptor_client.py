"""Requester at descriptor stores that are not what they should be, and whose descriptor stores are asked at."""

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
from clients.fds.conftest import MakeStore
from clients.fds.visits import STRANGER, answering, fetch, memory, playing, read, run
from descriptors import ends, lingering
from support import eventually, open_descriptors

from sbuslib.clients.fds import descriptor_client, strangers
from sbuslib.clients.fds.descriptor_client import DescriptorClient, user_behind
from sbuslib.clients.fds.descriptor_store import DescriptorStore
from sbuslib.errors import DescriptorError
from sbuslib.kernel.closers import MOST_KEPT, close_later, is_behind
from sbuslib.wire.offers import BUSY, GIVEN, GONE, TOKEN_BYTES, Offer

OWN = os.geteuid()


def at(name: bytes) -> Offer:
    return Offer("frame", 1, b"", name)


def test_connections_are_kept_to_so_many_stores(
    make_store: MakeStore, client: DescriptorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptor_client, "MOST_KEPT", 2)
    for _ in range(2):
        for store in [make_store() for _ in range(3)]:
            assert read(fetch(client, memory(store, b"a"))[0]) == b"a"
    assert len(client._kept) == 2


def test_a_connection_is_kept_and_made_anew_when_it_was_cut_off(
    store: DescriptorStore, client: DescriptorClient
) -> None:
    offer = memory(store, b"a")
    for _ in range(3):
        assert read(fetch(client, offer)[0]) == b"a"
    assert len(store._connections.by_number) == 1
    for connection in list(store._connections.by_number.values()):
        connection.sock.shutdown(socket.SHUT_RDWR)
    assert read(fetch(client, offer)[0]) == b"a"


def test_a_store_whose_owner_died_is_no_door(client: DescriptorClient) -> None:
    with pytest.raises(DescriptorError, match="no descriptor store"):
        fetch(client, at(os.urandom(TOKEN_BYTES)))


def test_a_store_that_never_answers(client: DescriptorClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptor_client, "ANSWER_SECONDS", 0.01)
    with (
        playing(lambda sock: sock.recv(1_000) and sock.recv(1)) as name,
        pytest.raises(DescriptorError, match="not answer"),
    ):
        fetch(client, at(name))


def test_a_store_with_a_full_backlog(client: DescriptorClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptor_client, "ANSWER_SECONDS", 0.01)
    name = os.urandom(TOKEN_BYTES)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(b"\0sbus-fds/" + name.hex().encode())
        listener.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
            first.connect(listener.getsockname())
            with pytest.raises(DescriptorError, match="not answer"):
                fetch(client, at(name))


@pytest.mark.parametrize("how", ["busy", "closes"])
def test_a_store_that_is_busy_or_closes_each_connection_for_too_long(
    client: DescriptorClient, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += 1.0

    monkeypatch.setattr(descriptor_client, "monotonic", lambda: now)
    client._sleep = sleep
    store: Any = answering(bytes([BUSY])) if how == "busy" else lambda sock: sock.recv(1_000)
    why = "too much in flight" if how == "busy" else "that closes"
    with playing(store, connections=2 if how == "closes" else 1) as name, pytest.raises(DescriptorError, match=why):
        fetch(client, at(name))


@pytest.mark.parametrize("words", [b"x", bytes([GIVEN]), bytes([GIVEN, GONE]), bytes([GONE])])
def test_a_store_that_answers_something_else(words: bytes, client: DescriptorClient) -> None:
    before = open_descriptors()
    with socket.socket() as sock:
        given = [sock.fileno()] * (1 + (words == bytes([GIVEN])))
        with playing(answering(words, given)) as name, pytest.raises(DescriptorError, match="no such descriptor store"):
            fetch(client, at(name))
    client.close()
    eventually(lambda: open_descriptors() <= before)  # what nobody wants is closed in a thread of its own


def test_a_store_of_another_user_is_told_nothing(client: DescriptorClient) -> None:
    heard: list[bytes] = []
    played = playing(lambda sock: heard.append(sock.recv(1_000)))
    with played as name, pytest.raises(DescriptorError, match="another user") as caught:
        run(client.fetch([at(name)], OWN + 1))
    assert heard == [b""], f"it sees the end, also while somebody keeps the error: {caught.value}"


def test_a_file_that_is_not_offered_any_more_is_gone(store: DescriptorStore, client: DescriptorClient) -> None:
    offer = memory(store)
    store.take_back(offer.token)
    with pytest.raises(DescriptorError, match="gone"):
        run(client.visit(offer, OWN))


def test_slow_sockets_in_place_of_memory_delay_nobody(client: DescriptorClient) -> None:
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
        with playing(play) as name, pytest.raises(DescriptorError, match="no such descriptor store"):
            fetch(client, at(name))
        assert ends(other)


def test_no_descriptor_is_left(store: DescriptorStore, client: DescriptorClient) -> None:
    offer = memory(store, b"a")
    assert read(fetch(client, offer)[0]) == b"a"
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(DescriptorError, match="no descriptor left"):
            fetch(client, offer)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert read(fetch(client, offer)[0]) == b"a"


def test_nothing_is_kept_by_an_asker_that_was_closed_while_it_waited(
    store: DescriptorStore, client: DescriptorClient
) -> None:
    insist = client._insist

    async def close(*arguments: Any) -> Any:
        answer = await insist(*arguments)
        client.close()
        return answer

    offer = memory(store, b"a")
    client._insist = close  # type: ignore[method-assign, assignment]
    assert read(fetch(client, offer)[0]) == b"a"
    assert not client._kept


def test_a_caller_that_gives_up_takes_its_connection_along(store: DescriptorStore, client: DescriptorClient) -> None:
    """Else the next caller would take the answer for its own."""

    class GivesUpError(Exception):
        pass

    async def give_up(fd: int, timeout: float) -> bool:
        raise GivesUpError

    client._wait_readable = give_up
    with playing(lambda sock: sock.recv(1_000) and sock.recv(1)) as name, pytest.raises(GivesUpError):
        fetch(client, at(name))
    assert not client._kept


def test_a_stranger_whose_store_is_silent_is_not_asked_for_a_while(
    client: DescriptorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "PROMPT", 0.0)
    monkeypatch.setattr(strangers, "PATIENCE", 0.01)
    monkeypatch.setattr(strangers, "USER_AHEAD", 0.0)
    with ExitStack() as stack:
        with acting_as(STRANGER):
            name = stack.enter_context(playing(lambda sock: sock.recv(1_000) and sock.recv(1)))
        with pytest.raises(DescriptorError, match="not answer"):
            run(client.fetch([at(name)], STRANGER))
    monkeypatch.setattr(descriptor_client, "monotonic", lambda: 0.0)
    with pytest.raises(DescriptorError, match="not asked"):
        run(client.fetch([at(name)], STRANGER))
    monkeypatch.setattr(descriptor_client, "monotonic", lambda: time.monotonic() + 10.0)
    with pytest.raises(DescriptorError, match="no descriptor store"):
        run(client.fetch([at(name)], STRANGER))


def test_a_stranger_that_hands_out_what_nobody_asked_for_is_not_asked_for_a_while(client: DescriptorClient) -> None:
    with ExitStack() as stack:
        with acting_as(STRANGER):
            name = stack.enter_context(playing(answering(b"nonsense")))
        for why in ("no such descriptor store", "not asked"):
            with pytest.raises(DescriptorError, match=why):
                run(client.fetch([at(name)], STRANGER))
        client.refuse(OWN)
        with pytest.raises(DescriptorError, match="another user"):
            fetch(client, at(name))


def test_nothing_is_taken_of_a_user_whose_descriptors_do_not_close(
    client: DescriptorClient, store: DescriptorStore
) -> None:
    offer, goes_on = memory(store, b"a"), threading.Event()
    close_later(OWN, goes_on.wait, MOST_KEPT)
    try:
        with pytest.raises(DescriptorError, match="do not close"):
            fetch(client, offer)
    finally:
        goes_on.set()
    eventually(lambda: not is_behind(OWN))
    assert read(fetch(client, offer)[0]) == b"a"


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
def test_whose_store_a_message_may_send_us_to(sender: bytes, own: bytes, user: int | None) -> None:
    with pytest.raises(DescriptorError, match="behind a hub") if user is None else nullcontext():
        assert user_behind(b"/", sender, own, frozenset([0])) == user
