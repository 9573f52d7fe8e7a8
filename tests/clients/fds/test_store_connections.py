"""Connections to a descriptor store: how many there may be, and which make place for others."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from contextlib import ExitStack, suppress

import pytest
from accounting import acting_as
from clients.fds.conftest import MakeStore
from clients.fds.visits import STRANGER, ask, fetch, memory, read, visit, visit_as_stranger
from support import PATIENCE, open_descriptors

from sbuslib.clients.fds import store_connections
from sbuslib.clients.fds.descriptor_client import DescriptorClient
from sbuslib.clients.fds.descriptor_store import DescriptorStore
from sbuslib.clients.fds.pace import hearing
from sbuslib.wire.offers import ASK, GIVEN, GONE, MOST_TOKENS, TOKEN_BYTES


@pytest.mark.parametrize(
    "said",
    [
        b"x",
        ASK,
        ASK + b"short",
        ASK + bytes(TOKEN_BYTES * (MOST_TOKENS + 1)),
        b"SUB a" + bytes(16),
        bytes(100_000),
    ],
)
def test_who_says_something_else_is_let_go(store: DescriptorStore, said: bytes) -> None:
    with visit(store.name) as sock:
        sock.send(said)
        assert sock.recv(1) == b""


def test_who_asks_and_does_not_read_is_cut_off(store: DescriptorStore, client: DescriptorClient) -> None:
    offer = memory(store, b"a")
    with visit(store.name) as sock:
        with suppress(BrokenPipeError):
            while sock.send(ASK + offer.token):
                pass
        words, descriptors, _, _ = socket.recv_fds(sock, 100, 100)
        assert (words, [read(found) for found in descriptors]) == (bytes([GIVEN]), [b"a"])
        assert sock.recv(1) == b""
    assert read(fetch(client, offer)[0]) == b"a"


def test_who_asks_for_what_there_is_not_rests(store: DescriptorStore) -> None:
    offer = memory(store, b"a")
    with acting_as(STRANGER + 6):  # who does not rest since another test
        sock = visit(store.name)
    with sock:
        words, (found,) = ask(sock, offer.token)
        assert (words, read(found)) == (bytes([GIVEN]), b"a")
        assert not hearing.until(STRANGER + 6)
        assert ask(sock, os.urandom(TOKEN_BYTES))[0] == bytes([GONE])
        words, (found,) = ask(sock, offer.token)
        assert (words, read(found)) == (bytes([GIVEN]), b"a"), "it is heard later"
        assert hearing.until(STRANGER + 6) > 0.0


def test_who_fetches_one_thing_again_and_again_rests(store: DescriptorStore) -> None:
    offer = memory(store, b"a")
    with acting_as(STRANGER + 7):
        sock = visit(store.name)
    with sock:
        for _ in range(store_connections.USER_CONNECTIONS):
            read(ask(sock, offer.token)[1][0])
        assert not hearing.until(STRANGER + 7)
        for _ in range(2):
            read(ask(sock, offer.token)[1][0])
        assert hearing.until(STRANGER + 7) > 0.0


def test_who_asks_when_the_kernel_lets_no_more_be_under_way_is_asked_to_come_again(
    store: DescriptorStore, client: DescriptorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = memory(store, b"a")
    assert read(fetch(client, offer)[0]) == b"a"
    (connection,) = store._connections.by_number.values()
    real = connection.sock

    class Refusing:
        """Has the kernel's answer once, as it cannot be brought about here: it is not for root."""

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def sendmsg(self, *_: object) -> int:
            connection.sock = real
            raise OSError(errno.ETOOMANYREFS, "too many references")

    monkeypatch.setattr(connection, "sock", Refusing())
    assert read(fetch(client, offer)[0]) == b"a"
    assert connection.sock is real


def test_ten_thousand_askers_of_one_user_take_each_others_place(
    make_store: MakeStore, client: DescriptorClient
) -> None:
    store = make_store(offered_seconds=10 * PATIENCE)
    offer, before = memory(store, b"a"), open_descriptors()
    with ExitStack() as stack, visit(store.name) as own:
        others = deque[socket.socket]()
        for _ in range(20):
            with acting_as(STRANGER):
                for _ in range(500):
                    others.append(stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)))
                    others[-1].connect(own.getpeername())  # waits while the backlog is full
                    with suppress(ConnectionError):  # a later one has its place
                        others[-1].send(ASK + offer.token)
                    if len(others) > store_connections.USER_CONNECTIONS:
                        others.popleft().close()
            words, (found,) = ask(own, offer.token)
            assert (words, read(found)) == (bytes([GIVEN]), b"a")
            assert len(open_descriptors() - before) < 4 * store_connections.USER_CONNECTIONS
        assert read(fetch(client, offer)[0]) == b"a"


def test_askers_beyond_a_users_share_take_each_others_place(store: DescriptorStore) -> None:
    most = store_connections.USER_CONNECTIONS
    offer = memory(store, b"a")
    with ExitStack() as stack:
        others = [stack.enter_context(visit_as_stranger(store.name)) for _ in range(3 * most)]
        for other in others[-most:]:
            words, (found,) = ask(other, offer.token)
            assert (words, read(found)) == (bytes([GIVEN]), b"a")
        assert others[0].recv(1) == b"", "it was silent for longest"


def test_the_user_with_most_makes_place_where_all_are_taken(
    store: DescriptorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_connections, "MOST_VISITORS", 3)
    monkeypatch.setattr(store_connections, "FEWEST_VISITORS", 1)
    token = os.urandom(TOKEN_BYTES)
    with ExitStack() as stack:

        def come(user: int) -> socket.socket:
            with acting_as(user):
                sock = stack.enter_context(visit(store.name))
            assert ask(sock, token)[0] == bytes([GONE])
            return sock

        strangers = [come(STRANGER) for _ in range(3)]
        come(os.geteuid())
        assert ask(strangers[0], token)[0] == bytes([GONE]), "our own user has places of its own"
        come(STRANGER + 1)
        assert strangers[1].recv(1) == b"", "it was silent for longest"
        assert ask(strangers[2], token)[0] == bytes([GONE])


def test_the_stores_of_a_process_share_the_places_of_strangers(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_connections, "MOST_VISITORS", 4)
    monkeypatch.setattr(store_connections, "FEWEST_VISITORS", 1)
    store, _ = make_store(), make_store()
    with ExitStack() as stack:
        strangers = [stack.enter_context(visit_as_stranger(store.name)) for _ in range(3)]
        assert strangers[0].recv(1) == b"", "each descriptor store has half of them"
        assert ask(strangers[1], os.urandom(TOKEN_BYTES))[0] == bytes([GONE])
