"""Which users may connect. A hub at its limit refuses more clients and goes on serving."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
from collections import Counter
from contextlib import suppress
from time import thread_time
from typing import Any

import gevent
import pytest
from accounting import acting_as, settle
from support import Bus, Connect, ConnectAs, MakeHub, Peer, eventually
from worlds import World

from sbuslib import Hub
from sbuslib.core import acceptor
from sbuslib.core.acceptor import Acceptor
from sbuslib.core.publisher import Role
from sbuslib.core.quotas import Account
from sbuslib.core.scheduler import Scheduler
from sbuslib.kernel.sockets import accept as accept_one
from sbuslib.secrets import Credentials


def refused(peer: Peer) -> bool:
    """Whether the hub closed this connection, rather than answer on it."""
    try:
        peer.send(b"CMSG !/cred/whoami")
    except (BrokenPipeError, ConnectionResetError):
        return True
    return not peer.receive().startswith(b"CMSG !/cred/")


def test_strangers_share_the_connections(bus: Bus, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12, a first user may have 6, a second 2; the hub's own user has the rest."""
    monkeypatch.setattr("sbuslib.hub.most_connections", lambda limits: 12)
    hub = bus({"mode": 0o777})
    first = [connect_as(1001) for _ in range(7)]
    assert [refused(peer) for peer in first] == [False] * 6 + [True]
    second = [connect_as(1002) for _ in range(3)]
    assert [refused(peer) for peer in second] == [False] * 2 + [True]
    own = [connect_as(0) for _ in range(5)]
    assert [refused(peer) for peer in own] == [False] * 4 + [True]
    assert hub.statistics().violations == {"too many connections": 3}
    first[0].close()
    eventually(lambda: hub.statistics().clients == 11)
    assert not refused(connect_as(0))


def fail_first(monkeypatch: pytest.MonkeyPatch, times: int, code: int) -> list[int]:
    """Have so many calls to accept fail. Returns how many are still to do so."""
    failures, original = [times], accept_one

    def accept(*arguments: Any) -> socket.SocketType:
        if failures[0]:
            failures[0] -= 1
            raise OSError(code, "on purpose")
        return original(*arguments)

    monkeypatch.setattr(acceptor, "accept", accept)
    return failures


@pytest.mark.parametrize("code", [errno.ECONNABORTED, errno.EPROTO, errno.EINTR, errno.EPERM])
def test_a_connection_that_fails_while_it_is_accepted_stops_no_other(
    bus: Bus, connect: Connect, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failures = fail_first(monkeypatch, 2, code)
    hub = bus()
    connect().barrier()
    assert failures == [0]
    assert hub.statistics().violations == {}


@pytest.mark.parametrize("code", [errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EINVAL])
def test_the_acceptor_pauses_after_an_error_that_is_not_the_connections_own(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    fail_first(monkeypatch, 3, code)
    monkeypatch.setattr(acceptor, "ACCEPT_PAUSE", 0.002)
    hub = make_hub()
    connect().barrier()
    assert hub.statistics().violations == {"accept failed": 3}
    assert len(caplog.records) == 1


def test_a_hub_that_stops_while_it_pauses(make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts the listen backlog before it stops. That fails as well, and must not leave a pause."""
    ended: list[Acceptor] = []
    monkeypatch.setattr(Acceptor, "_accept_again", lambda acceptor: ended.append(acceptor))
    monkeypatch.setattr(acceptor, "ACCEPT_PAUSE", 0.02)
    with monkeypatch.context() as patched:
        fail_first(patched, 10**9, errno.EMFILE)
        hub = make_hub()
        connect()
        eventually(lambda: hub.clients.violations.counts["accept failed"])
        hub.stop()
    assert hub.closed
    ended.clear()
    gevent.sleep(2 * acceptor.ACCEPT_PAUSE)
    assert not ended
    hub.start()
    connect().barrier()


def test_a_storm_of_connections_delays_no_connected_client(bus: Bus, connect: Connect) -> None:
    hub = bus()
    reader, publisher = connect(), connect()
    reader.subscribe(b"k")
    publisher.barrier()
    storm = [connect() for _ in range(300)]
    publisher.publish(b"k", b"x")
    assert reader.receive() == b"MSG k\0x"
    assert hub.statistics().clients < 300  # it was not kept until all had come in
    for peer in storm:
        peer.barrier()


# -- by user ----------------------------------------------------------------------------------------------


def test_a_newcomer_is_served_before_the_rest_of_another_users_storm(
    bus: Bus, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are in the listen backlog, the newcomer last; what each connection costs is a turn of its own user."""
    hub = bus({"mode": 0o777})
    served: list[int] = []
    admit = hub.clients.admit

    def note(sock: socket.SocketType, credentials: Credentials, account: Account, role: Role) -> None:
        served.append(credentials.uid)
        busy_for(0.0005)  # a turn that costs something
        admit(sock, credentials, account, role)

    monkeypatch.setattr(hub.clients, "admit", note)
    for _ in range(300):
        connect_as(1002)
    connect_as(1001).barrier()
    assert served.index(1001) < 100
    eventually(lambda: len(served) == 301)


def busy_for(seconds: float) -> None:
    """Take so much of the processor's time."""
    until = thread_time() + seconds
    while thread_time() < until:
        pass


def test_a_connection_counts_from_when_it_is_accepted(
    bus: Bus, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no more of a user wait to be served than it may have; what is beyond is closed at once, and counted.

    The hub's own user is not bound by that limit.
    """
    hub = bus({"mode": 0o777}, user_connections=3)
    with monkeypatch.context() as patched:
        patched.setattr(hub.context.running.scheduler, "postpone", lambda user, resume: None)  # nobody is served
        peers = [connect_as(1001) for _ in range(5)]
        eventually(lambda: hub.statistics().violations == {"too many connections": 2})
        assert hub.statistics().clients == 0
        (user,) = hub.statistics().per_user
        assert user.connections == 3
    hub._here.acceptor.accept_rest()
    assert hub.statistics().clients == 3
    assert sorted(refused(peer) for peer in peers) == [False] * 3 + [True] * 2
    assert not any(refused(connect_as(0)) for _ in range(5))


def test_a_hub_that_stops_serves_clients_that_were_accepted(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had sent by then is passed on."""
    hub = make_hub()
    inbox = hub.subscribe(b"k")
    settle(hub)
    with monkeypatch.context() as patched:
        patched.setattr(hub.context.running.scheduler, "postpone", lambda user, resume: None)
        connect().publish(b"k", b"x")
        eventually(lambda: bool(hub._here.acceptor._accepted))
        hub.stop()
    assert inbox.receive().payload == b"x"
    assert hub.context.quotas.is_clear()


def test_a_closed_acceptor_closes_connections_that_were_not_served(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = make_hub()
    monkeypatch.setattr(hub.context.running.scheduler, "postpone", lambda user, resume: None)
    peer = connect()
    eventually(lambda: bool(hub._here.acceptor._accepted))
    hub._here.acceptor.close()
    assert not peer.receive()
    assert hub.context.quotas.connections.used == 0


def answer_to(hub: Hub, gid: int, uid: int) -> bytes:
    """What a hub tells a client of another user: who it is, or why it is turned away; nothing if the kernel does so."""
    try:
        with acting_as(uid, gid):
            peer = Peer(hub.address)
    except PermissionError:
        return b""
    with peer:
        with suppress(BrokenPipeError):  # the hub was faster
            peer.send(b"CMSG !/cred/whoami")
        return peer.receive().partition(b"\0")[2]


@pytest.mark.parametrize(
    ("options", "gid", "uid", "enters"),
    [
        ({}, 4242, 4242, False),
        ({}, 0, 4242, False),  # the hub's group, but not asked for
        ({"mode": 0o770}, 0, 4242, True),
        ({"mode": 0o770}, 4242, 4242, False),
        ({"mode": 0o777}, 4242, 4242, True),
        ({"users": [4242]}, 4242, 4242, True),
        ({"users": [4243]}, 4242, 4242, False),
        ({"users": [4243], "mode": 0o777}, 4242, 4242, False),
    ],
)
def test_users_that_may_connect_to_an_abstract_address(
    make_hub: MakeHub, options: dict[str, object], gid: int, uid: int, enters: bool
) -> None:
    answer = answer_to(make_hub("/dev/unix/abstract", **options), gid, uid)
    assert answer.startswith(b"!/cred/%d/%d/" % (gid, uid)) if enters else answer == b"user not allowed"


@pytest.mark.parametrize(("mode", "enters"), [(0o700, False), (0o777, True)])
def test_users_that_may_connect_to_a_path(make_hub: MakeHub, folder: str, mode: int, enters: bool) -> None:
    os.chmod(folder, 0o755)
    answer = answer_to(make_hub(mode=mode), 4242, 4242)
    assert answer.startswith(b"!/cred/4242/4242/") if enters else answer == b""


def test_out_of_descriptors(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The one too many waits, the others stay, and once there is room again all is as before."""
    monkeypatch.setattr(acceptor, "ACCEPT_PAUSE", 0.01)
    hub = make_hub()
    good = connect()
    good.barrier()
    late = connect()  # connected in the kernel, accepted once the loop runs
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
    fillers = []
    try:
        while True:
            try:
                fillers.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        eventually(lambda: hub.statistics().violations.get("accept failed"))
        good.barrier()
        assert hub.statistics().clients == 1
    finally:
        for fd in fillers:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    late.barrier()
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


def test_accepting_is_charged_to_who_connects(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    charged: Counter[int] = Counter()
    charge = Scheduler.charge

    def note(scheduler: Scheduler, uid: int, seconds: float) -> None:
        charged[uid] += seconds > 0
        charge(scheduler, uid, seconds)

    monkeypatch.setattr(Scheduler, "charge", note)
    world.hub("top")
    for peer in [world.peer_of("top", 1001) for _ in range(50)]:
        peer.send(b"SUB k", b"MSG k\0")
        peer.close()
    eventually(lambda: charged[1001] >= 50)
    assert charged.keys() == {1001}
