"""The hub: its arguments, start and stop, and what comes between: forks, threads, listeners of all forms."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading

import gevent
import gevent.os
import pytest
from support import PATIENCE, ROOT, Connect, HubThread, MakeClient, MakeHub, Peer, eventually, in_thread, python

from sbuslib import Client, Hub, blocking
from sbuslib.core import clients
from sbuslib.errors import AddressError, DisconnectedError, StateError, UsageError
from sbuslib.kernel.sockets import Listener
from sbuslib.wire.addresses import PathAddress
from sbuslib.wire.batches import coalesce

# -- start and stop -------------------------------------------------------------------------------------


def test_restart(hub: Hub, connect: Connect) -> None:
    for number in range(3):
        with Peer(hub.address) as peer:
            peer.subscribe(b"k")
            inbox = hub.subscribe(b"k")
            hub.tap()
            peer.publish(b"k", b"%d" % number)
            assert peer.receive() == b"MSG k\0%d" % number
            assert inbox.receive(timeout=5).payload == b"%d" % number
            hub.stop()
            assert peer.is_disconnected()
        statistics = hub.statistics()
        assert (statistics.clients, statistics.patterns, statistics.published) == (0, 0, number + 1)
        hub.start()
        assert hub.context.router.route(b"MSG k\0") == ()


def test_stop_delivers_packets_that_were_sent(hub: Hub, connect: Connect) -> None:
    """What clients had handed to the kernel is routed, and what waits for a slow reader is delivered."""
    slow, publisher = connect(), connect()
    slow.subscribe(b"k")
    publisher.barrier()
    sent = 0
    while sent < 3_000:
        publisher.publish(b"k", b"%05d" % sent + bytes(1_000))
        sent += 1
        if sent % 50 == 0:
            gevent.sleep(0)
    assert hub.statistics().waiting > 0
    reading = gevent.spawn(lambda: [*iter(slow.receive, b"")])
    hub.stop(PATIENCE)
    got = reading.get(timeout=PATIENCE)
    assert [packet[6:11] for packet in got] == [b"%05d" % number for number in range(sent)]
    assert hub.statistics().lost == {}


def test_what_was_to_happen_later_does_not_happen_after_the_stop(hub: Hub) -> None:
    timer = hub.context.running.after(3_600, lambda: None)
    assert timer.active
    hub.stop()
    assert not timer.active


def test_stop_waits_no_longer_than_it_was_told(hub: Hub, connect: Connect) -> None:
    stuck, publisher = connect(), connect()
    stuck.subscribe(b"k")
    for _ in range(1_000):
        publisher.publish(b"k", bytes(2_000))
    publisher.barrier()
    queued = hub.statistics().waiting
    assert queued > 0
    hub.stop(0.01)
    assert hub.closed
    assert hub.statistics().lost == {"outage": queued}


def test_stop_ends_although_a_client_goes_on_sending(hub: Hub, connect: Connect) -> None:
    talker = connect()
    talker.barrier()

    def talk() -> None:
        try:
            while True:
                talker.publish(b"k", bytes(100))
        except OSError:
            pass

    talking = gevent.spawn(talk)
    gevent.sleep(0)
    hub.stop(0.05)
    assert hub.closed
    talking.get(timeout=PATIENCE)


def test_no_client_connects_to_a_hub_that_stops(hub: Hub, connect: Connect) -> None:
    stuck = connect()
    stuck.subscribe(b"k")
    for _ in range(500):
        hub.publish(b"k", bytes(2_000))
    stopping = gevent.spawn(hub.stop, PATIENCE)
    gevent.sleep(0)
    assert not stopping.ready()
    assert not os.path.exists(hub.address)
    with pytest.raises(FileNotFoundError):
        connect()
    second = gevent.spawn(hub.stop)  # waits for the first
    while stuck.receive():
        pass
    stopping.get(timeout=PATIENCE)
    second.get(timeout=PATIENCE)


def test_a_stop_that_is_interrupted_stops_all_the_same(hub: Hub, connect: Connect) -> None:
    stuck = connect()
    stuck.subscribe(b"k")
    for _ in range(500):
        hub.publish(b"k", bytes(2_000))
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.005):
        hub.stop(PATIENCE)
    assert hub.closed
    hub.start()
    hub.publish(b"k")


def test_a_stop_that_may_not_remove_the_file_stops_all_the_same(
    hub: Hub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a process that gave up its privileges after it began to listen."""
    publisher, subscriber = connect(), connect()
    subscriber.subscribe(b"k")
    publisher.send(b"MSG k\0x")
    path = hub.address

    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(PermissionError):
            hub.stop()
    assert hub.closed
    assert subscriber.receive() == b"MSG k\0x"
    assert subscriber.receive() == b""
    hub.stop()
    os.unlink(path)
    hub.start()
    connect().barrier()


def test_patterns_of_an_earlier_start_do_not_wait_for_its_event_loop(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "FORGOTTEN_A_STEP", 1)
    hub = Hub(address)

    def serve() -> None:
        with hub, Client(address) as client:
            client.subscribe(*[b"%d" % number for number in range(10)])
            client.close()
            eventually(lambda: hub.statistics().clients == 0)

    for _ in range(2):
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join()
    assert hub.context.router.pattern_count() == 0
    with hub, Client(address) as client:
        client.subscribe(*[b"%d" % number for number in range(10)])
        client.close()
        eventually(lambda: hub.context.router.pattern_count() == 0)


def test_stop_when_empty(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub(stop_when_empty=True)
    gevent.sleep(0)
    assert hub.started  # nobody has come yet
    one, other = connect(), connect()
    one.barrier()
    other.barrier()
    one.close()
    eventually(lambda: hub.statistics().clients == 1)
    gevent.sleep(0)
    assert hub.started
    other.send(b"nonsense")  # to be thrown out is to leave
    eventually(lambda: hub.closed)
    assert not os.path.exists(hub.address)


# -- forms of the listener ------------------------------------------------------------------------------


def test_a_random_abstract_address(make_hub: MakeHub, client: MakeClient) -> None:
    hub = make_hub("/dev/unix/abstract")
    assert len(hub.address) == len("/dev/unix/abstract/") + 216
    assert client(hub.address).hub.whoami() == hub.whoami()
    address = hub.address
    assert make_hub("/dev/unix/abstract").address != address
    hub.stop()
    hub.start()
    assert hub.address == address


@pytest.mark.parametrize("listening", [False, True])
@pytest.mark.parametrize("form", ["descriptor", "socket", "gevent"])
def test_a_socket_that_was_passed(
    make_hub: MakeHub, client: MakeClient, connect: Connect, address: str, listening: bool, form: str
) -> None:
    make = gevent.socket.socket if form == "gevent" else socket.socket
    with make(socket.AF_UNIX, socket.SOCK_SEQPACKET) as passed:
        passed.bind(address)
        if listening:
            passed.listen(5)
        hub = make_hub(f"/dev/fd/{passed.fileno()}" if form == "descriptor" else passed)
        assert client(hub.address).hub.whoami() == hub.whoami()
        hub.stop()
        assert os.path.exists(address)  # whoever made it may still want it
        assert passed.fileno() >= 0
        hub.start()  # from the same socket
        connect().barrier()


def test_a_listener_that_is_open_already(address: str, connect: Connect) -> None:
    hub = Hub(Listener(PathAddress(address)))
    assert hub.address == address
    waiting = connect()  # before the hub starts
    with hub:
        waiting.barrier()
    assert not os.path.exists(address)
    with pytest.raises(StateError, match="closed"):
        hub.start()


def test_another_separator(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub(separator=".")
    peer = connect()
    peer.send(b"SUB room.*.temp", b"SUB a/")
    peer.send(b"CMSG !/cred/whoami")
    assert peer.receive() == b"CMSG !/cred/whoami\0!.cred.%d.%d.%d" % (os.getgid(), os.getuid(), os.getpid())
    inbox = hub.subscribe(hub.whoami() + b".x")
    peer.publish(b"room.1.temp", b"x")
    peer.publish(b"a/b", b"y")
    peer.publish(hub.whoami() + b".x", b"secret")
    assert peer.receive() == b"MSG room.1.temp\0x"
    assert inbox.receive(timeout=5).payload == b"secret"
    assert peer.pending() == []
    peer.send(b"SUB !.")
    assert peer.is_disconnected()


# -- fork -----------------------------------------------------------------------------------------------

FORKED = """
import os, sys
import gevent, gevent.os
import sbuslib
from sbuslib.core import clients
from sbuslib.errors import DisconnectedError, StateError
from support import Peer, eventually

fork = {"os": os.fork, "gevent": gevent.os.fork}[sys.argv[2]]
clients.FORGOTTEN_A_STEP = 1
hub = sbuslib.Hub(sys.argv[1])
hub.start()
client = sbuslib.Client(sys.argv[1])
client.subscribe(b"k")
inbox = hub.subscribe(b"k")
with Peer(sys.argv[1]) as leaving:
    leaving.subscribe(*(b"left/%d" % number for number in range(20_000)))
eventually(lambda: hub.context.running.work.waits)
child = fork()
if not child:
    wrong = []
    if hub.context.running.work.waits:
        wrong.append("goes on with what its parent's hub was about")
    for verb in (lambda: hub.publish(b"k", b"child"), lambda: hub.subscribe(b"k"), hub.tap, hub.whoami):
        try:
            verb()
            wrong.append("no error")
        except StateError as error:
            if "fork" not in str(error):
                wrong.append(f"which tells nothing of the fork: {error}")
    try:
        inbox.receive(timeout=0)
        wrong.append("a message")
    except DisconnectedError:
        pass
    hub.stop()
    if hub.started or not os.path.exists(sys.argv[1]):
        wrong.append("stopped its parent's hub")
    own = (0, 1, 2, client.socket.fileno())
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + fd).startswith("socket:") and int(fd) not in own:
                wrong.append("keeps a socket of its parent's hub")
        except OSError:
            pass
    if sys.argv[2] == "gevent":  # which takes care that the child has an event loop of its own
        with sbuslib.Hub(sys.argv[1] + ".child") as mine, Peer(mine.address) as peer:
            peer.subscribe(b"c")
            mine.publish(b"c", b"x")
            if peer.receive() != b"MSG c" + bytes(1) + b"x":
                wrong.append("does not serve")
    print("\\n".join(wrong), flush=True, end="")
    sys.exit(0) if sys.argv[2] == "os" else os._exit(0)  # once with all that an interpreter does at its end
pid, status = os.waitpid(child, 0)
assert status == 0, status
for number in range(3):
    with Peer(sys.argv[1]) as peer:
        peer.publish(b"k", b"%d" % number)
        assert client.receive(timeout=10).payload == b"%d" % number
        assert inbox.receive(timeout=10).payload == b"%d" % number
statistics = hub.statistics()
assert (statistics.published, statistics.violations) == (3, {}), statistics
hub.stop()
assert not os.path.exists(sys.argv[1])
print("fine")
"""


@pytest.mark.parametrize("loop", ["libev-cext", "libuv"])
@pytest.mark.parametrize("fork", ["os", "gevent"])
def test_fork(address: str, fork: str, loop: str) -> None:
    assert python("-c", FORKED, address, fork, PYTHONPATH=str(ROOT / "tests"), GEVENT_LOOP=loop) == "fine\n"


EXECUTED = """
import subprocess, sys
import sbuslib
with sbuslib.Hub(sys.argv[1]) as hub, sbuslib.Client(sys.argv[1]) as client:
    print(subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True).stdout.split())
"""


def test_a_program_that_is_started_inherits_nothing(address: str) -> None:
    assert python("-c", EXECUTED, address) == "['0', '1', '2', '3']\n"  # the last is ls's own


def test_fork_with_the_hub_in_another_thread(server: HubThread) -> None:
    """The child has only the thread that forked, and not the hub's."""
    with blocking.Client(server.address) as client:
        client.subscribe(b"k")
        child = os.fork()
        if not child:
            os._exit(0 if os.path.exists(server.address) else 1)
        assert os.waitpid(child, 0) == (child, 0)
        client.publish(b"k", b"x")
        assert client.receive(timeout=PATIENCE).payload == b"x"


# -- programs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [b"SUB last", b"MSG last\0", b"CMSG batch\0"])
def test_client_of_a_hub_that_authorize_stops_leaves_nothing(make_hub: MakeHub, connect: Connect, last: bytes) -> None:
    """The answer is yes, and comes when the client has been let go already: nothing is charged to it any more."""

    def authorize(credentials: object, verb: str, key: bytes) -> bool:
        if key == b"last":
            hub.stop(0)
        return True

    hub = make_hub(authorize=authorize)
    peer = connect()
    peer.subscribe(b"first")
    if last.startswith(b"CMSG"):
        batch = coalesce([b"MSG %b\0" % key for key in (b"first", b"last", b"more")])
        assert batch is not None
        peer.send(b"CMSG batch/on")
        last = batch.packet
    peer.send(b"MSG first\0", last, b"MSG more\0")
    eventually(lambda: not hub.started)
    assert hub.statistics().patterns == 0
    assert hub.context.quotas.is_clear()


def test_hub_that_stops_when_empty_serves_a_client_that_is_accepted_as_the_last_one_leaves(
    make_hub: MakeHub, connect: Connect
) -> None:
    hub = make_hub(stop_when_empty=True)
    connect().barrier()
    second = connect()
    hub._here.acceptor._accept(1)  # and its user's turn, in which it is served, is still to come
    (first,) = hub.clients.connections
    hub.clients.close(first, "closed")
    second.barrier()
    assert hub.started
    second.close()
    eventually(lambda: not hub.started)


def test_methods_that_need_a_started_hub(address: str) -> None:
    hub = Hub(address)
    for verb in (lambda: hub.publish(b"a"), lambda: hub.subscribe(b"a"), hub.tap, hub.whoami):
        with pytest.raises(StateError, match="start"):
            verb()


def test_another_thread_is_told_so(hub: Hub, connect: Connect) -> None:
    inbox = hub.subscribe(b"a")
    for verb in (
        lambda: hub.publish(b"a"),
        lambda: hub.subscribe(b"a"),
        hub.tap,
        hub.whoami,
        hub.stop,
        hub.close,
        lambda: inbox.receive(timeout=0),
        inbox.unsubscribe,
    ):
        error = in_thread(verb)
        assert isinstance(error, StateError), error
        assert "thread" in str(error)
    peer = connect()
    peer.publish(b"a", b"x")
    peer.barrier()
    assert inbox.receive(timeout=5).payload == b"x"


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
        user.receive(timeout=10)


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
    assert python("-c", code) == "[]\n"


def test_a_hub_is_not_started_inside_an_event_loop_of_asyncio(address: str) -> None:
    """As in a notebook: that loop would never let it serve anybody."""

    async def start() -> None:
        with pytest.raises(StateError, match="start it in a thread"):
            Hub(address).start()
        assert not os.path.exists(address)

    asyncio.run(start())
