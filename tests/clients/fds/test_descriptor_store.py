"""The descriptor store: who is handed what, and for how long."""

from __future__ import annotations

import errno
import os
import resource
import socket
from contextlib import ExitStack, closing, suppress

import pytest
from clients.fds.conftest import MakeStore, sleep, wait_readable
from clients.fds.visits import STRANGER, ask, fetch, memory, offer_of, read, visit, visit_as_stranger
from descriptors import can_refuse, ends, lingering, send_with
from support import TESTS, eventually, python

from sbuslib.clients.fds import descriptor_store as stores
from sbuslib.clients.fds import in_flight
from sbuslib.clients.fds.descriptor_client import DescriptorClient
from sbuslib.clients.fds.descriptor_store import DescriptorStore
from sbuslib.clients.fds.memory import check_memory
from sbuslib.clients.fds.store_connections import StoreConnection
from sbuslib.clients.fds.transfers import Transfer
from sbuslib.errors import DescriptorError, PayloadError, StateError
from sbuslib.limits import ClientLimits
from sbuslib.wire.offers import ASK, GIVEN, GONE, MOST_TOKENS, TOKEN_BYTES


def test_who_has_the_token_is_handed_the_descriptor_as_often_as_it_asks(
    store: DescriptorStore, client: DescriptorClient
) -> None:
    offer = memory(store, b"a")
    first, guessed, last = fetch(client, offer, offer_of(store, os.urandom(TOKEN_BYTES)), offer)
    assert (read(first), guessed, read(last)) == (b"a", None, b"a")


@pytest.mark.parametrize("limit", [{"offered": 2}, {"offered_bytes": 5}])
def test_so_much_of_what_is_offered_is_kept(
    make_store: MakeStore, client: DescriptorClient, limit: dict[str, int]
) -> None:
    store = make_store(**limit)
    offers = [memory(store, data) for data in (b"00", b"11", b"22")]
    first, *others = fetch(client, *offers)
    assert (first, [read(other) for other in others]) == (None, [b"11", b"22"])
    if "offered_bytes" in limit:
        with pytest.raises(PayloadError, match=r"6 bytes are more than ClientLimits\.offered_bytes, 5"):
            memory(store, b"123456")


def test_what_is_offered_is_kept_for_a_time(make_store: MakeStore, client: DescriptorClient) -> None:
    store = make_store(offered_seconds=0.001)
    here, there = socket.socketpair()
    with here, there:
        store.offer_descriptor(here.fileno())
        here.close()
        there.settimeout(20)
        assert there.recv(1) == b"", "the descriptor store closed the last descriptor of it"


def test_memory_is_used_again_while_nobody_has_it(make_store: MakeStore, client: DescriptorClient) -> None:
    store = make_store(offered=1)
    (held,) = fetch(client, memory(store, b"0"))
    assert held is not None
    inodes = [os.fstat(held).st_ino]
    for number in range(1, 5):
        (found,) = fetch(client, memory(store, b"%d" % number))
        assert found is not None
        inodes.append(os.fstat(found).st_ino)
        assert read(found) == b"%d" % number
    assert len(set(inodes[:3])) == 3
    assert inodes[3:] == inodes[1:3]
    assert read(held) == b"0"


def test_what_a_stranger_had_is_not_used_again(make_store: MakeStore, client: DescriptorClient) -> None:
    store = make_store(offered=1)
    memory(store, b"a"), memory(store, b"b")
    offer = memory(store, b"c")
    (own,) = fetch(client, offer)
    with visit_as_stranger(store.name) as sock:
        _, (found,) = ask(sock, offer.token)
        check_memory(found, 1, is_ours=False)
        for number in range(4):
            memory(store, b"%d" % number)
        assert (read(own), read(found)) == (b"c", b"c")


def test_who_offers_nothing_more_keeps_no_memory(make_store: MakeStore) -> None:
    store = make_store(offered=1)
    for _ in range(3):
        offer = memory(store)
    assert store._spare
    store.take_back(offer.token)
    store._connections.wake()
    eventually(lambda: not store._spare)


def test_a_store_that_was_closed_hands_out_its_last_offers_for_a_while(
    store: DescriptorStore, client: DescriptorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "LINGER", 60.0)
    offer = memory(store, b"a")
    store.close()
    assert read(fetch(client, offer)[0]) == b"a"
    with pytest.raises(StateError):
        memory(store)
    with pytest.raises(StateError):
        store.lend(Transfer(1, 1.0, 0.0))
    monkeypatch.setattr(stores, "LINGER", 0.0)
    store.close()
    with pytest.raises(DescriptorError, match="no descriptor store"):
        fetch(client, offer)


def test_what_is_taken_back_is_handed_out_no_more(store: DescriptorStore, client: DescriptorClient) -> None:
    offer = memory(store)
    store.take_back(offer.token)
    store.take_back(offer.token)
    assert fetch(client, offer) == [None]


def test_a_store_in_a_folder(make_store: MakeStore, folder: str) -> None:
    store = make_store(folder)
    with (
        closing(DescriptorClient(wait_readable, sleep, folder)) as inside,
        closing(DescriptorClient(wait_readable, sleep, None)) as outside,
    ):
        assert [read(found) for found in fetch(inside, memory(store, b"a"))] == [b"a"]
        with pytest.raises(DescriptorError, match="a folder that this client was not given"):
            fetch(outside, memory(store))
    store.close()
    assert os.listdir(folder) == []


def test_what_is_asked_for_and_cannot_be_had_at_once_is_asked_for_again(
    store: DescriptorStore, client: DescriptorClient
) -> None:
    offer = memory(store, b"a")
    with ExitStack() as stack:
        for _ in range(in_flight.TRUSTED_MOST // MOST_TOKENS - 1):
            sock = stack.enter_context(visit(store.name))
            sock.send(ASK + offer.token * MOST_TOKENS)
            assert sock.recv(100, socket.MSG_PEEK) == bytes([GIVEN]) * MOST_TOKENS
        last = stack.enter_context(visit(store.name))
        last.send(ASK + offer.token * 3)
        assert last.recv(100, socket.MSG_PEEK) == bytes([GIVEN]) * 3
        assert [read(found) for found in fetch(client, offer, offer, offer)] == [b"a"], "of the first"


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_a_socket_that_closes_slowly_delays_nobody_at_the_store(
    kernel: str, request: pytest.FixtureRequest, make_store: MakeStore, client: DescriptorClient
) -> None:
    refused = kernel == "new" and can_refuse()
    if kernel == "old":
        request.getfixturevalue("old_kernel")
    store = make_store()
    with lingering() as (sock, other), visit(store.name) as connection:
        with suppress(PermissionError):
            send_with(connection, b"x", [sock.fileno()])
        sock.close()
        assert read(fetch(client, memory(store, b"a"))[0]) == b"a"
        if not refused:
            assert connection.recv(1) == b"", "it is let go"
        assert ends(other)


def test_the_child_of_a_fork_has_no_store(store: DescriptorStore, client: DescriptorClient) -> None:
    offer = memory(store, b"a")
    child = os.fork()
    if not child:
        try:
            fetch(client, offer)
        except DescriptorError:
            os._exit(2)
        try:
            memory(store)
        except StateError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read(fetch(client, offer)[0]) == b"a"


def test_a_store_that_was_closed_is_nothing_to_the_child_of_a_fork(store: DescriptorStore) -> None:
    """Its descriptors may be others' by then."""
    store.close()
    with open(os.devnull) as first, open(os.devnull) as second:
        child = os.fork()
        if not child:
            os.fstat(first.fileno())
            os.fstat(second.fileno())
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_where_gevent_has_patched_everything_the_store_has_a_real_thread() -> None:
    code = """
from gevent import monkey; monkey.patch_all()
import os, time
from sbuslib.clients.fds.descriptor_store import DescriptorStore
from sbuslib.clients.fds.memory import check_memory
from sbuslib.limits import ClientLimits
from clients.fds.visits import memory, visit, ask, read
store = DescriptorStore(None, ClientLimits())
offer = memory(store, b"a")
with monkey.get_original("socket", "socket")(1, 5) as sock:
    sock.connect(b"\\0sbus-fds/" + store.name.hex().encode())
    sock.send(b"\\0ask" + offer.token)
    assert sock.recv(100) == b"\\0"  # and gevent's event loop did not run meanwhile
store.close()
"""
    assert python("-c", code, PYTHONPATH=str(TESTS)) == ""


def test_no_descriptor_is_left_for_visitors(store: DescriptorStore, client: DescriptorClient) -> None:
    """The descriptor store waits, and serves those that it has."""
    offer = memory(store, b"a")
    with visit(store.name) as known:
        _, (found,) = ask(known, offer.token)
        os.close(found)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        with visit(store.name) as late:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
            try:
                known.send(ASK + offer.token)
                assert known.recv(1, socket.MSG_PEEK) == bytes([GIVEN])
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            _, descriptors, _, _ = socket.recv_fds(known, 100, 100)
            assert read(descriptors[0]) == b"a"
            assert ask(late, os.urandom(TOKEN_BYTES))[0] == bytes([GONE])


def test_a_store_for_which_no_descriptor_is_left_opens_later(client: DescriptorClient) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, "no descriptor is left")

    with closing(DescriptorStore(None, ClientLimits())) as store:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "eventfd", fail)
            with pytest.raises(OSError, match="no descriptor is left"):
                memory(store)
        assert read(fetch(client, memory(store, b"a"))[0]) == b"a"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can ask as root")
def test_root_is_trusted_at_the_stores_of_others() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert StoreConnection(here, STRANGER).is_trusted
        assert not StoreConnection(here, STRANGER).is_ours
