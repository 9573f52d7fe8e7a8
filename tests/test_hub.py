"""The hub: its arguments, the embedder's side, which users may connect, what is counted."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import gevent
import pytest
from gevent import GreenletExit
from support import ROOT, Peer, eventually, in_thread, own_key

from sbuslib import Client, Hub, Limits
from sbuslib.core import acceptor, publisher
from sbuslib.core.client_role import ClientRole
from sbuslib.errors import (
    AddressError,
    DisconnectedError,
    KeyFormatError,
    PayloadError,
    SbusError,
    StateError,
    UsageError,
)
from sbuslib.secrets import Credentials
from sbuslib.statistics import decode_statistics
from sbuslib.wire.packets import Message

Connect = Callable[..., Peer]
MakeHub = Callable[..., Hub]
MakeClient = Callable[..., Client]


@pytest.mark.parametrize(
    "options",
    [
        {"mode": -1},
        {"mode": 0o1777},
        {"mode": "700"},
        {"users": "root"},
        {"users": b"root"},
        {"users": ["no such user"]},
        {"users": [-1]},
        {"users": 0},
        {"separator": b"//"},
        {"separator": ""},
        {"separator": "*"},
        {"separator": "ä"},
        {"separator": 47},
        {"authorize": 3},
    ],
)
def test_wrong_arguments_raise_at_the_call(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Hub("/tmp/never", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("listener", ["", "a\0b", "/" + "x" * 200, "/dev/fd/x", None, 3])
def test_an_argument_that_is_no_listener(listener: object) -> None:
    with pytest.raises(AddressError):
        Hub(listener)  # type: ignore[arg-type]


def test_to_make_a_hub_touches_nothing(address: str) -> None:
    hub = Hub(address)
    assert (hub.started, hub.closed, hub.address) == (False, True, address)
    assert not os.path.exists(address)
    hub.stop()


def test_methods_that_need_a_started_hub(address: str) -> None:
    hub = Hub(address)
    for verb in (lambda: hub.publish(b"a"), lambda: hub.subscribe(b"a"), hub.tap, hub.whoami):
        with pytest.raises(StateError, match="start"):
            verb()


def test_repr(hub: Hub, address: str) -> None:
    assert repr(hub) == f"<Hub at {address}, 0 clients>"
    hub.stop()
    assert repr(hub) == f"<Hub at {address}, not started>"


# -- the embedder is a client too -----------------------------------------------------------------------


def test_the_embedder_publishes_and_receives(hub: Hub, connect: Connect) -> None:
    peer = connect()
    peer.subscribe(b"a/")
    inbox = hub.subscribe(b"a/*", b"b")
    hub.publish(b"a/1", b"x")
    hub.publish(b"b")
    hub.publish(b"c")
    peer.publish(b"a/2", b"y\0z")
    assert peer.receive() == b"MSG a/1\0x"
    assert peer.receive() == b"MSG a/2\0y\0z"
    me = own_key()
    assert [inbox.get(5) for _ in range(3)] == [
        Message(b"a/1", b"x", me),
        Message(b"b", b"", me),
        Message(b"a/2", b"y\0z", me),
    ]
    assert len(inbox) == 0


def test_messages_that_the_embedder_may_not_publish(hub: Hub) -> None:
    with pytest.raises(KeyFormatError):
        hub.publish(b"a\0b")
    with pytest.raises(KeyFormatError):
        hub.publish("a")  # type: ignore[arg-type]
    with pytest.raises(PayloadError):
        hub.publish(b"a", b"x" * 409_600)
    with pytest.raises(KeyFormatError):
        hub.publish(b"!/x")
    with pytest.raises(KeyFormatError):
        hub.subscribe("a")  # type: ignore[arg-type]
    with pytest.raises(KeyFormatError):
        hub.subscribe(b"ok", b"!/cred/*/*/*/x")
    with pytest.raises(SbusError):
        hub.subscribe(b"x" * 100_000)
    with pytest.raises(UsageError):
        hub.subscribe()
    eventually(lambda: not hub.statistics().patterns)
    assert hub.statistics().received == 0
    assert hub._clients.violations.counts == {}


def test_the_embedder_holds_secrets(hub: Hub, connect: Connect) -> None:
    assert hub.whoami() == own_key()
    inbox = hub.subscribe(hub.whoami() + b"/x")
    everything = hub.subscribe(b"")
    connect().publish(own_key() + b"/x", b"secret")
    assert inbox.get(5).payload == b"secret"
    assert len(everything) == 0


def test_a_closed_inbox(hub: Hub) -> None:
    with hub.subscribe(b"a") as inbox:
        hub.publish(b"a", b"1")
    hub.publish(b"a", b"2")
    assert inbox.get(0).payload == b"1"
    with pytest.raises(DisconnectedError):
        inbox.get()
    assert list(inbox) == []
    eventually(lambda: not hub.statistics().patterns)


def test_a_tap_is_no_interest(hub: Hub, connect: Connect) -> None:
    tap, secrets = hub.tap(), hub.tap(secrets=True)
    peer = connect()
    peer.publish(b"a", b"1")
    peer.publish(own_key() + b"/x", b"2")
    peer.barrier()
    assert [message.payload for message in (tap.get(5),)] == [b"1"]
    assert [secrets.get(5).payload for _ in range(2)] == [b"1", b"2"]
    assert (len(tap), hub.statistics().patterns) == (0, 0)
    tap.close()
    secrets.close()
    peer.publish(b"a", b"3")
    peer.barrier()
    assert len(tap) == len(secrets) == 0


# -- who may connect ------------------------------------------------------------------------------------


def test_users_lets_in_the_users_that_it_names(make_hub: MakeHub, connect: Connect) -> None:
    make_hub(users=["root", 12345])
    connect().barrier()  # the hub's own user always may


def test_users_turns_others_away(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub = make_hub(users=[os.getuid() + 1])
    hub._acceptor._users = {os.getuid() + 1}  # as another user would find it
    for _ in range(3):
        assert connect().is_disconnected()
    assert hub.statistics().breaches == {"user not allowed": 3}
    assert len(caplog.records) == 1
    assert hub.statistics().clients_total == 0


STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[3]))
name = bytes.fromhex(sys.argv[1])
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
    try:
        sock.connect(name if name[:1] == bytes(1) else name.decode())
        sock.send(b"CMSG !/cred/whoami")
        print(sock.recv(999)[19:].decode() or "turned away")
    except (PermissionError, ConnectionResetError, BrokenPipeError):
        print("turned away")
"""


def as_stranger(hub: Hub, gid: int, uid: int) -> str:
    """Who a process of another user is to the hub, or ``turned away``."""
    if os.getuid() != 0:
        pytest.skip("only root can act as another user")
    if hub.address.startswith("/dev/unix/abstract/"):
        name = bytes.fromhex(hub.address.removeprefix("/dev/unix/abstract/"))
    else:
        name = os.fsencode(hub.address)
    arguments = [sys.executable, "-S", "-E", "-c", STRANGER, name.hex(), str(gid), str(uid)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd="/")
    with process:
        try:
            eventually(lambda: process.poll() is not None)
        finally:
            process.kill()
        assert process.stdout is not None
        return process.stdout.read().strip()


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
    if os.getgid() != 0:
        pytest.skip("written for a hub of root's")
    hub = make_hub("/dev/unix/abstract", **options)
    answer = as_stranger(hub, gid, uid)
    assert answer.startswith(f"!/cred/{gid}/{uid}/") if enters else answer == "turned away"


@pytest.mark.parametrize(("mode", "enters"), [(0o700, False), (0o777, True)])
def test_users_that_may_connect_to_a_path(make_hub: MakeHub, folder: str, mode: int, enters: bool) -> None:
    os.chmod(folder, 0o755)
    answer = as_stranger(make_hub(mode=mode), 4242, 4242)
    assert answer.startswith("!/cred/4242/4242/") if enters else answer == "turned away"


# -- authorize= -----------------------------------------------------------------------------------------


class Asked:
    """An ``authorize=`` that refuses keys that hold ``no``, and notes what it was asked."""

    def __init__(self) -> None:
        self.questions: list[tuple[str, bytes]] = []

    def __call__(self, credentials: Credentials, verb: str, key: bytes) -> bool:
        assert credentials == Credentials(gid=os.getgid(), uid=os.getuid(), pid=os.getpid())
        self.questions.append((verb, key))
        if b"error" in key:
            raise RuntimeError("no answer")
        return b"no" not in key


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_authorize_is_asked_for_each_verb(make_hub: MakeHub, connect: Connect, asked: Asked) -> None:
    make_hub(authorize=asked)
    peer = connect()
    peer.subscribe(b"a/", b"b")
    peer.publish(b"a/1", b"x")
    peer.send(b"UNSUB b", b"CMSG echo/on")
    assert peer.receive() == b"MSG a/1\0x"
    peer.barrier()
    assert asked.questions == [("subscribe", b"a/"), ("subscribe", b"b"), ("publish", b"a/1")]


def test_authorize_is_not_asked_about_a_pattern_beyond_the_limits(
    make_hub: MakeHub, connect: Connect, asked: Asked
) -> None:
    """The answer about one of 400,000 segments may take long."""
    make_hub(authorize=asked)
    peer = connect()
    peer.send(b"SUB " + b"/" * 400_000)
    assert peer.is_disconnected()
    assert asked.questions == []


def test_authorize_answers_are_remembered(make_hub: MakeHub, connect: Connect, asked: Asked) -> None:
    make_hub(authorize=asked)
    one, other = connect(), connect()
    one.subscribe(b"")
    for number in range(100):
        for peer in (one, other):
            peer.publish(b"a", b"%d" % number)
            peer.barrier()
    assert asked.questions == [("subscribe", b""), ("publish", b"a"), ("publish", b"a")]  # once for each client
    assert len(one.pending()) == 200


def test_authorize_answers_of_all_clients_are_bounded_together(
    make_hub: MakeHub, connect: Connect, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one user's clients may have remembered between them; each goes on, and is asked about more often."""
    monkeypatch.setattr(publisher, "ALLOWED_KEY", 200 - len(b"MSG kk\0"))
    hub = make_hub(authorize=asked, limits=Limits(allowed_bytes=2 * 10 * 200))
    one, other = connect(), connect()
    for number in range(8):
        one.publish(b"k%d" % number)
    one.barrier()
    for number in range(8):
        other.publish(b"k%d" % number)
    other.barrier()
    assert hub.context.quotas.allowed.used <= 10 * 200
    before = len(asked.questions)
    for number in range(8):
        one.publish(b"k%d" % number)
    one.barrier()
    assert len(asked.questions) == before
    for peer in (one, other):
        peer.close()
    eventually(lambda: not hub.statistics().clients)
    assert hub.context.quotas.is_clear()


def test_authorize_is_not_asked_again_when_others_subscribe(make_hub: MakeHub, connect: Connect, asked: Asked) -> None:
    """``authorize=`` is asked once for each client and key, whatever other clients do."""
    make_hub(authorize=asked)
    one, other = connect(), connect()
    for number in range(10):
        one.publish(b"a", b"")
        one.barrier()
        other.subscribe(b"b%d/" % number)
    assert asked.questions.count(("publish", b"a")) == 1


@pytest.mark.parametrize("key", [b"no", b"error"])
@pytest.mark.parametrize("verb", ["publish", "subscribe"])
def test_authorize_refuses(
    make_hub: MakeHub, connect: Connect, asked: Asked, verb: str, key: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    hub = make_hub(authorize=asked)
    bad, good = connect(), connect()
    good.subscribe(b"")
    bad.publish(b"before", b"x")
    bad.send(b"MSG %b\0x" % key if verb == "publish" else b"SUB " + key, b"MSG after\0x")
    while (packet := bad.receive()) != b"":
        assert packet == b"never"
    assert good.pending() == [b"MSG before\0x"]
    assert hub.statistics().breaches == {{"publish": "publishing", "subscribe": "subscription"}[verb] + " refused": 1}
    assert hub.statistics().clients == 1
    assert any("refused" in record.getMessage() for record in caplog.records)


def test_an_authorize_function_that_fails_does_not_fill_the_log(
    make_hub: MakeHub, connect: Connect, asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that has found out how to make it fail may come back as often as it likes."""
    hub = make_hub(authorize=asked)
    for number in range(20):
        peer = connect()
        peer.publish(b"error/%d" % number)
        assert peer.is_disconnected()
    assert hub.statistics().breaches == {"publishing refused": 20}
    assert 1 <= len(caplog.records) <= 2  # that it failed, and that the client was let go


@pytest.mark.parametrize("error", [gevent.Timeout, GreenletExit, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("packet", [b"SUB raises", b"MSG raises\0x"])
def test_an_authorize_function_that_raises_a_base_exception_refuses(
    make_hub: MakeHub, connect: Connect, error: type[BaseException], packet: bytes
) -> None:
    """SystemExit and KeyboardInterrupt are raised in the main greenlet besides, as from any callback."""

    def authorize(credentials: Credentials, verb: str, key: bytes) -> bool:
        if key == b"raises":
            raise error
        return True

    hub = make_hub(authorize=authorize)
    bad, good = connect(), connect()
    good.subscribe(b"a")
    bad.send(packet)
    with pytest.raises(error) if error in (SystemExit, KeyboardInterrupt) else nullcontext():
        eventually(lambda: hub.statistics().clients == 1)
        gevent.sleep(0.01)
    assert sum(hub.statistics().breaches.values()) == hub.context.authorization.failures == 1
    assert bad.is_disconnected()
    good.publish(b"a", b"still served")
    assert good.receive() == b"MSG a\0still served"


class Raising(logging.Handler):
    """A handler of the application's that fails."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def emit(self, record: logging.LogRecord) -> None:
        raise self.error("the log is full")


@pytest.fixture
def raising(request: pytest.FixtureRequest) -> Iterator[None]:
    handler = Raising(request.param)
    logging.getLogger("sbuslib").addHandler(handler)
    yield
    logging.getLogger("sbuslib").removeHandler(handler)


@pytest.mark.parametrize("raising", [ValueError, gevent.Timeout], indirect=True)
@pytest.mark.usefixtures("raising")
def test_a_logging_handler_that_raises_does_not_stop_the_hub_from_accepting(
    make_hub: MakeHub, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first client is not allowed, which is logged from the callback that accepts clients."""
    hub = make_hub(users=[])
    hub._acceptor._users = set()
    assert connect().is_disconnected()
    hub._acceptor._users = None
    good = connect()
    good.subscribe(b"a")
    good.publish(b"a", b"x")
    assert good.receive() == b"MSG a\0x"
    assert hub.statistics().breaches == {"user not allowed": 1}
    assert "the log is full" in capsys.readouterr().err


def test_an_error_in_the_hub_lets_the_client_go(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug of ours must not leave a client that is never read from."""
    hub = make_hub()
    bad, good = connect(), connect()
    good.subscribe(b"a")

    def fails(self: object, publisher: object, packet: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(ClientRole, "act_on", fails)
        bad.send(b"SUB x")
        assert bad.is_disconnected()
    assert hub.statistics().breaches == {"error in the hub": 1}
    good.publish(b"a", b"x")
    assert good.receive() == b"MSG a\0x"
    assert "RuntimeError: a bug" in capsys.readouterr().err


def test_authorize_is_no_way_around_the_reserved_keys(make_hub: MakeHub, connect: Connect) -> None:
    make_hub(authorize=lambda *_: True)
    for packet in (b"MSG !/x\0", b"SUB !/cred/*/*/*/x", b"SUB */!/"):
        peer = connect()
        peer.send(packet)
        assert peer.is_disconnected()


def test_authorize_routes_are_never_stale(make_hub: MakeHub, connect: Connect) -> None:
    make_hub(authorize=lambda *_: True)
    one, other = connect(), connect()
    for _ in range(3):
        one.publish(b"a", b"1")
        one.barrier()
        other.subscribe(b"a")
        one.publish(b"a", b"2")
        one.barrier()
        assert other.pending() == [b"MSG a\x002"]
        other.send(b"UNSUB a")
        other.barrier()
    # In one turn of the hub, too: what was published after the SUB comes back, what was before does not.
    one.send(b"MSG a\x003", b"SUB a", b"MSG a\x004", b"UNSUB a", b"MSG a\x005")
    assert one.pending() == [b"MSG a\x004"]


def test_authorize_may_publish(make_hub: MakeHub, connect: Connect) -> None:
    """An audit log: what a callback publishes goes out before the message that it was asked about."""
    hubs: list[Hub] = []

    def audit(credentials: Credentials, verb: str, key: bytes) -> bool:
        hubs[0].publish(b"audit", verb.encode() + b" " + key)
        return True

    hubs.append(make_hub(authorize=audit))
    inbox = hubs[0].subscribe(b"")
    peer = connect()
    peer.publish(b"a", b"x")
    peer.barrier()
    assert [(m.key, m.payload) for m in (inbox.get(5), inbox.get(5))] == [(b"audit", b"publish a"), (b"a", b"x")]


# -- what is counted ------------------------------------------------------------------------------------


def test_statistics(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub()
    one, other = connect(), connect()
    one.subscribe(b"a", b"b", b"a")
    other.subscribe(b"")
    one.publish(b"a", b"x")
    one.send(b"CMSG unknown", b"UNSUB never")
    one.barrier()
    hub.publish(b"c")
    statistics = hub.statistics()
    assert (statistics.clients, statistics.clients_peak, statistics.clients_total) == (2, 2, 2)
    assert (statistics.patterns, statistics.received, statistics.delivered) == (3, 2, 3)
    assert (statistics.queued, statistics.lost, statistics.ignored, statistics.breaches) == (0, {}, 2, {})
    other.close()
    one.send(b"bad")
    assert one.receive() == b"MSG a\0x"
    assert one.is_disconnected()
    eventually(lambda: hub.statistics().clients == hub.statistics().patterns == 0)
    statistics = hub.statistics()
    assert (statistics.clients_peak, statistics.clients_total) == (2, 2)
    assert (statistics.received, statistics.delivered) == (2, 3)
    assert statistics.breaches == {"unknown verb": 1}
    with pytest.raises(AttributeError):
        statistics.clients = 7  # type: ignore[misc]


def test_statistics_that_do_not_fit_one_packet(hub: Hub, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the answer would never come."""
    connect().barrier()
    sizes = []
    for clients, users in ((1, 1), (0, 1), (0, 0)):
        encoded = hub._reporter.statistics()
        told = decode_statistics(encoded, "")
        assert (len(told.per_client), len(told.per_user), told.clients) == (clients, users, 1)
        sizes.append(len(encoded))
        monkeypatch.setattr("sbuslib.core.reporting.PACKET_BYTES", len(encoded) - 1)
    assert sizes == sorted(sizes, reverse=True)


def test_a_breach_is_logged_once_and_counted_after(
    hub: Hub, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        peer = connect()
        peer.send(b"nonsense")
        assert peer.is_disconnected()
    assert hub.statistics().breaches == {"unknown verb": 5}
    told = [record for record in caplog.records if record.name == "sbuslib"]
    assert len(told) == 1
    assert told[0].levelno == logging.WARNING
    text = told[0].getMessage()
    assert str(os.getpid()) in text
    assert "unknown verb" in text


def test_good_behaviour_is_not_logged(hub: Hub, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    peer = connect()
    peer.subscribe(b"a")
    peer.publish(b"a", b"x")
    peer.barrier()
    peer.close()
    eventually(lambda: hub.statistics().clients == 0)
    assert caplog.records == []


def test_secrets_are_not_logged(hub: Hub, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for packet in (b"MSG !/cred/x/y/hunter2\0hunter2", b"SUB !/cred/9/9/9/hunter2", b"hunter2", b"MSG !/hunter2\0"):
        peer = connect()
        peer.send(packet)
        assert peer.is_disconnected()
    assert "hunter2" not in caplog.text


def test_an_idle_client_queues_up_to_the_limit(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub(limits=Limits(queued_packets=10))
    slow = connect()
    slow.subscribe(b"a")
    publisher = connect()
    for number in range(3_000):
        publisher.publish(b"a", b"%06d" % number + bytes(1_000))
    publisher.barrier()
    statistics = hub.statistics()
    assert statistics.queued == 10
    lost = statistics.lost["overflow"]
    assert statistics.delivered + statistics.queued + lost == statistics.received == 3_000
    assert lost > 0
    got = [packet[6:12] for packet in slow.pending()]
    assert got == sorted(got)  # the oldest stayed, in order
    assert len(got) == 3_000 - lost
    slow.publish(b"a", b"later")
    assert slow.receive() == b"MSG a\0later"


def test_unread_answers_pile_up_to_the_limit(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub(limits=Limits(queued_answers=10))
    peer, other = connect(), connect()
    with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):
        peer.send(*[b"CMSG hub/features"] * 100_000)
    eventually(lambda: hub.statistics().breaches == {"too many unread answers": 1})
    other.barrier()


# -- descriptors ----------------------------------------------------------------------------------------


def test_out_of_descriptors(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The one too many is turned away, the others stay, and once there is room again all is as before."""
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
        assert late.is_disconnected()
        good.barrier()
    finally:
        for fd in fillers:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    connect().barrier()
    assert hub.statistics().breaches["accept failed"] >= 1
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


def test_a_start_that_fails_leaves_nothing_behind(address: str) -> None:
    hub = Hub(address)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 3, hard))
        while True:
            try:
                fillers.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        os.close(fillers.pop())  # enough for the listening socket, and for nothing else
        with pytest.raises(OSError, match="Too many open files"):
            hub.start()
        assert not hub.started
        assert not os.path.exists(address)
    finally:
        for fd in fillers:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with hub:
        assert hub.started


# -- threads --------------------------------------------------------------------------------------------


def test_another_thread_is_told_so(hub: Hub, connect: Connect) -> None:
    inbox = hub.subscribe(b"a")
    for verb in (
        lambda: hub.publish(b"a"),
        lambda: hub.subscribe(b"a"),
        hub.tap,
        hub.whoami,
        hub.stop,
        hub.close,
        lambda: inbox.get(0),
        inbox.close,
    ):
        error = in_thread(verb)
        assert isinstance(error, StateError), error
        assert "thread" in str(error)
    peer = connect()
    peer.publish(b"a", b"x")
    peer.barrier()
    assert inbox.get(5).payload == b"x"


def test_a_hub_in_another_thread(address: str, client: MakeClient) -> None:
    hub = Hub(address)
    ready, done = threading.Event(), threading.Event()
    outcome: list[int] = []

    def serve() -> None:
        with hub:
            ready.set()
            while not done.is_set():
                gevent.sleep(0.001)
            outcome.append(hub.statistics().received)
        gevent.get_hub().destroy(destroy_loop=True)

    thread = threading.Thread(target=serve)
    thread.start()
    ready.wait()
    try:
        with pytest.raises(StateError, match="thread"):
            hub.publish(b"a")
        user = client()
        user.subscribe(b"a")
        user.publish(b"a", b"x")
        assert user.receive(10).payload == b"x"
    finally:
        done.set()
        thread.join()
    assert outcome == [1]
    with hub:  # and in this one, since it was stopped in that one
        hub.publish(b"a")


# -- programs -------------------------------------------------------------------------------------------


def test_serve_forever_until_stopped(address: str, client: MakeClient) -> None:
    hub = Hub(address)
    serving = gevent.spawn(hub.serve_forever)
    eventually(lambda: hub.started)
    user = client()
    hub.stop()
    serving.get(timeout=10)
    assert hub.closed
    with pytest.raises(DisconnectedError):
        user.receive(10)


def test_serve_forever_that_is_killed_stops(address: str) -> None:
    hub = Hub(address)
    serving = gevent.spawn(hub.serve_forever)
    eventually(lambda: hub.started)
    serving.kill()
    assert hub.closed
    assert not os.path.exists(address)


def test_ready_soon_after_start() -> None:
    """What must not be loaded to serve: each costs a part of the 0.3 s until the first client can connect."""
    code = "import sys, sbuslib.hub; print([m for m in ('asyncio', 'ssl', 'email', 'http', 'dns') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"
