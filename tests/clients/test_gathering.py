"""A gevent client that gathers what one turn of the event loop published."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any

import gevent
import pytest
from support import PATIENCE, ROOT, FakeHub, HubThread, Peer, eventually

import sbuslib.clients.gathering
from sbuslib import Client, Hub, blocking
from sbuslib.clients.gathering import _living
from sbuslib.errors import DisconnectedError, KeyFormatError, PayloadError
from sbuslib.limits import PACKET_BYTES, ClientLimits
from sbuslib.wire.batches import BATCH, Bundle

Connect = Callable[..., Peer]
MakeClient = Callable[..., Client]

FEATURES = b"batch/on hub/sync id=1 path=1"
PATIENT = ClientLimits(gather_time=PATIENCE, gathered=2)
"""That a slow machine ends no gathering before the test does, and that few messages are enough for a packet."""


@pytest.fixture
def gathering(hub: Hub, client: MakeClient) -> Client:
    """A client that gathers, and has begun to."""
    made = client(limits=PATIENT)
    made.publish(b"first")
    return made


def greet(
    fake: FakeHub,
    client: MakeClient,
    features: bytes = FEATURES,
    *,
    limits: ClientLimits = PATIENT,
    **options: object,
) -> tuple[Peer, Client]:
    """A false hub's end of a connection, and a client that gathers at the other."""
    connecting = gevent.spawn(client, limits=limits, **options)
    peer = fake.greet(features)
    made: Client = connecting.get(timeout=PATIENCE)
    if b"batch/on" in features:
        assert peer.receive() == b"CMSG batch/on\0"
    return peer, made


def opened(packet: bytes) -> list[bytes]:
    return Bundle.parse(packet).plain if packet.startswith(BATCH) else [packet]


def here(peer: Peer) -> list[bytes]:
    """The packets that are here now, without a turn of the event loop."""
    packets = []
    while True:
        try:
            packets.append(os.read(peer.socket.fileno(), PACKET_BYTES))
        except BlockingIOError:
            return packets


# ---------------------------------------------------------------------------------------------------
# What goes when


def test_the_first_of_a_turn_goes_at_once_and_the_others_at_its_end(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client)
        for number in range(100):
            made.publish(b"a/%d" % (number % 3), b"%d" % number)
        assert here(peer) == [b"MSG a/0\x000"]
        assert opened(peer.receive()) == [b"MSG a/%d\0%d" % (number % 3, number) for number in range(1, 100)]
        made.publish(b"a/1", b"alone")
        assert here(peer) == [b"MSG a/1\0alone"]
        gevent.sleep(0)
        made.publish(b"a/1", b"in the next turn")
        assert here(peer) == [b"MSG a/1\0in the next turn"]


def test_a_few_go_one_by_one(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client, limits=ClientLimits(gather_time=PATIENCE, gathered=3))
        for number in range(3):
            made.publish(b"k", b"%d" % number)
        made.flush()
        assert here(peer) == [b"MSG k\0%d" % number for number in range(3)]
        for number in range(4):
            made.publish(b"k", b"%d" % number)
        made.flush()
        assert list(map(len, map(opened, here(peer)))) == [1, 3]


def test_flush_sends_at_once(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client)
        for number in range(3):
            made.publish(b"k", b"%d" % number)
        made.flush()
        made.flush()
        first, others = here(peer)
        assert [first, *opened(others)] == [b"MSG k\0%d" % number for number in range(3)]


def test_who_lets_no_event_loop_run_is_not_kept_waiting(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client, limits=ClientLimits(gather_time=1e-9))
        for number in range(5):
            made.publish(b"k", b"%d" % number)
            assert here(peer) == [b"MSG k\0%d" % number]


def test_gathering_may_be_turned_off(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client)
        for number in range(3):
            made.publish(b"k", b"%d" % number)
        made.gather(False)
        assert len(here(peer)) == 2
        made.publish(b"k", b"3")
        made.publish(b"k", b"4")
        assert here(peer) == [b"MSG k\x003", b"MSG k\x004"]
        made.gather()
        made.publish(b"k", b"5")
        made.gather(False)
        made.publish(b"k", b"6")
        assert here(peer) == [b"MSG k\x005", b"MSG k\x006"]
        made.gather()
        made.publish(b"k", b"7")
        made.publish(b"k", b"8")
        assert here(peer) == [b"MSG k\x007"]
        assert peer.receive() == b"MSG k\x008"


def test_a_hub_that_takes_single_messages_gets_each_at_once(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client, b"")
        made.gather()
        for number in range(3):
            made.publish(b"k", b"%d" % number)
        assert here(peer) == [b"MSG k\0%d" % number for number in range(3)]


def test_what_is_too_long_for_a_packet_of_many_goes_alone(gathering: Client, hub: Hub) -> None:
    inbox = hub.subscribe(b"k")
    payloads = [b"1", bytes(200_000), b"2", bytes(130_000), bytes(130_000), b"3"]
    for payload in payloads:
        gathering.publish(b"k", payload)
    assert [inbox.get(PATIENCE).payload for _ in payloads] == payloads


def test_what_else_is_sent_comes_after_it(hub: Hub, gathering: Client, connect: Connect) -> None:
    reader = connect()
    reader.subscribe(b"k", b"!/cred//%d//" % os.getuid())
    gathering.publish(b"k", b"0")
    gathering.publish(b"k", b"1")
    gathering.publish_many([(b"k", b"2"), (b"k", b"3")])
    gathering.publish(b"k", b"4")
    gathering.publish(b"k", b"5", flags=socket.MSG_DONTWAIT)
    gathering.publish(b"!/cred//%d//" % os.getuid(), b"6")
    gathering.publish(b"k", b"7")
    message = gathering.prepare_message(b"k")
    message.payload[:1] = b"8"
    message.send(1)
    gathering.send_packets([b"MSG k\x009"])
    gathering.publish(b"k", b"10")
    gathering.subscribe(b"never")  # which ends with an answer, so that all is in force
    assert [packet.rpartition(b"\0")[2] for packet in reader.pending()] == [b"%d" % number for number in range(11)]


def test_what_is_said_comes_after_it(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client)
        made.publish(b"k", b"0")
        made.publish(b"k", b"1")
        made.echo(False)
        assert here(peer) == [b"MSG k\x000", b"MSG k\x001", b"CMSG echo/off\0"]


def test_any_number_of_greenlets_may_share_it(hub: Hub, gathering: Client) -> None:
    inbox = hub.subscribe(b"k/")

    def publish(who: int) -> None:
        for number in range(50):
            gathering.publish(b"k/%d" % who, b"%d" % number)
            if number % 7 == who:
                gevent.sleep(0)
            if number % 20 == who:
                gathering.sync()

    gevent.joinall([gevent.spawn(publish, who) for who in range(5)], raise_error=True)
    gathering.sync()
    got = [inbox.get(0) for _ in range(250)]
    for who in range(5):
        mine = [message.payload for message in got if message.key == b"k/%d" % who]
        assert mine == [b"%d" % number for number in range(50)]


# ---------------------------------------------------------------------------------------------------
# Faults, and a hub that has no room


def test_a_fault_shows_at_once(gathering: Client, hub: Hub) -> None:
    inbox = hub.subscribe(b"k")
    for key, payload, error in [
        (b"a\0", b"", KeyFormatError),
        (b"!/x", b"", KeyFormatError),
        ("k", b"", KeyFormatError),
        ([], b"", KeyFormatError),
        (b"k", "text", PayloadError),
        (b"k", 3, PayloadError),
        (b"k", bytes(PACKET_BYTES - 5), PayloadError),
    ]:
        gathering.publish(b"k", b"good")
        with pytest.raises(error):
            gathering.publish(key, payload)  # type: ignore[arg-type]
    gathering.publish(b"k", bytes(PACKET_BYTES - 6))
    kept = bytearray(b"mutable")
    gathering.publish(b"k", b"good")
    gathering.publish(b"k", kept)  # type: ignore[arg-type]
    kept[:] = b"changed"
    gathering.flush()
    got = [inbox.get(PATIENCE).payload for _ in range(10)]
    assert got == [b"good"] * 7 + [bytes(PACKET_BYTES - 6), b"good", b"mutable"]


@pytest.mark.parametrize("gathered", [1, 1_000])
def test_whoever_publishes_waits_for_room(address: str, client: MakeClient, gathered: int) -> None:
    """No more is gathered than one packet takes, and what was not taken was not published."""
    with FakeHub(address) as fake:
        limits = ClientLimits(batch_messages=10, batch_bytes=1_000, gather_time=PATIENCE, gathered=gathered)
        peer, made = greet(fake, client, limits=limits)
        made.timeout = 0.01
        done = publish_until_it_waits(made)
        assert len(made._gathered) <= 10
        made.timeout = PATIENCE
        waiting = gevent.spawn(made.publish, b"k", b"%d" % done)
        got: list[bytes] = []
        while len(got) < done + 1:
            got += opened(peer.receive())
        assert got == [b"MSG k\0%d" % number for number in range(done + 1)]
        waiting.get(timeout=PATIENCE)
        eventually(lambda: not made._has_flusher)
        assert not made._gathered


def publish_until_it_waits(made: Client) -> int:
    """Publish numbers until the hub, which does not read, has no room for what was gathered; how many were taken."""
    done = 0
    made.timeout = 0.01
    with contextlib.suppress(TimeoutError):
        while True:
            made.publish(b"k", b"%d" % done)
            done += 1
    return done


def fill(made: Client) -> int:
    """The same, quickly; how many were taken."""
    done = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            made.publish(b"k", bytes(10_000), flags=socket.MSG_DONTWAIT)
            done += 1
    done += publish_until_it_waits(made)  # that there was no room for the long one leaves some for short ones
    assert made._gathered
    return done


def test_who_may_not_wait_does_not_wait_for_what_was_gathered(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client)
        done = fill(made)
        made.timeout = None
        with pytest.raises(BlockingIOError):
            made.publish(b"k", b"urgent", flags=socket.MSG_DONTWAIT)
        got: list[bytes] = []
        while len(got) < done:
            got += opened(peer.receive())
        made.publish(b"k", b"urgent", flags=socket.MSG_DONTWAIT)
        assert peer.receive() == b"MSG k\0urgent"


def test_close_sends_what_was_gathered(hub: Hub, client: MakeClient) -> None:
    inbox = hub.subscribe(b"")
    with client(limits=PATIENT) as made:
        for number in range(3):
            made.publish(b"k", b"%d" % number)
    assert [inbox.get(PATIENCE).payload for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(DisconnectedError):
        made.publish(b"k", b"3")
    made.close()


def test_nothing_is_gathered_once_it_is_closed(gathering: Client) -> None:
    gathering.close()
    with pytest.raises(DisconnectedError):
        gathering.publish(b"first")


class SignalledError(Exception):
    """As ``KeyboardInterrupt``, which comes between any two steps of the program's."""


@contextlib.contextmanager
def traced(step: Callable[[int], None]) -> Iterator[None]:
    """Call ``step`` with the number of each line of the module that is about to be carried out here."""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and frame.f_code.co_filename == sbuslib.clients.gathering.__file__:
            step(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("gathered", [1, 1_000])
def test_a_signal_that_raises_makes_nothing_go_twice_or_get_lost(
    address: str, client: MakeClient, gathered: int
) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client, limits=ClientLimits(gather_time=PATIENCE, gathered=gathered))
        certain: list[int] = []
        got: list[int] = []
        numbers = count()

        def publish(step: Callable[[int], None]) -> None:
            with traced(step):
                for _ in range(4):
                    number = next(numbers)
                    made.publish(b"%d" % (number % 3), b"%d" % number)
                    certain.append(number)
                made.flush()

        def receive() -> None:
            made.flush()
            gevent.sleep(0)
            got.extend(int(packet[6:]) for packets in here(peer) for packet in opened(packets))

        publish(lambda line: None)
        lines: list[int] = []
        publish(lines.append)
        receive()
        assert len(lines) > 50
        for place, target in enumerate(lines):
            left = lines[: place + 1].count(target)

            def step(line: int, target: int = target) -> None:
                nonlocal left
                left -= line == target
                if not left:
                    raise SignalledError

            with pytest.raises(SignalledError):
                publish(step)
            receive()
        assert got == sorted(set(got))
        assert set(certain) <= set(got)


def test_close_tells_what_found_no_room(address: str, client: MakeClient, caplog: pytest.LogCaptureFixture) -> None:
    with FakeHub(address) as fake:
        _, made = greet(fake, client)
        fill(made)
        waiting = len(made._gathered)
        with pytest.raises(TimeoutError, match=f"are lost: {waiting}"):
            made.close()
        assert made.closed
        assert not made._gathered
        made.close()
        eventually(lambda: not made._has_flusher)
    assert not caplog.records


def test_who_is_kept_from_closing_properly_is_told_in_the_log(
    address: str, client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeHub(address) as fake:
        _, made = greet(fake, client)
        fill(made)
        made.timeout = None
        with pytest.raises(gevent.Timeout), gevent.Timeout(0.01):
            made.close()
        assert made.closed
        assert not made._gathered
        eventually(lambda: not made._has_flusher)
    assert "messages that were gathered and are lost" in caplog.text


def test_what_is_lost_with_the_connection_is_told(
    address: str, client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client)
        made.publish(b"k")
        peer.close()
        made.publish(b"k")
        made.publish(b"k")
        eventually(lambda: made._failure is not None)
        with pytest.raises(DisconnectedError, match="are lost: 2"):
            made.publish(b"k")
        with pytest.raises(DisconnectedError) as caught:
            made.publish(b"k")
        assert "are lost" not in str(caught.value)
        made.close()
    assert not caplog.records


def test_close_tells_what_is_lost_with_the_connection(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client)
        for _ in range(3):
            made.publish(b"k")
        peer.close()
        with pytest.raises(DisconnectedError, match="are lost: 2"):
            made.close()
        assert made.closed


def test_what_was_gathered_outlasts_a_reconnection(address: str, client: MakeClient) -> None:
    """To a hub that takes no batches, at that; and what is called on reconnecting may publish."""
    with FakeHub(address) as fake:
        peer, made = greet(
            fake, client, reconnect=True, on_reconnect=lambda client: client.publish(b"k", b"on reconnecting")
        )
        for number in range(5):
            made.publish(b"k", b"%d" % number)
        assert here(peer) == [b"MSG k\x000"]
        peer.close()
        again = fake.greet()
        expected = [b"MSG k\0%d" % number for number in range(1, 5)] + [b"MSG k\0on reconnecting"]
        assert [again.receive() for _ in range(5)] == expected
        eventually(lambda: not made._has_flusher)
        assert here(again) == []


def test_a_send_buffer_that_the_caller_made_small(address: str, client: MakeClient) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client)
        made.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
        size = made.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        for number in range(4):
            made.publish(b"k", b"%d" % number + bytes(size // 3))
        made.publish(b"k", bytes(2 * size))
        made.publish(b"k", b"last")
        got: list[bytes] = []
        while len(got) < 5:
            got += opened(peer.receive())
        assert [packet[6:7] for packet in got] == [b"0", b"1", b"2", b"3", b"l"]
        with pytest.raises(OSError, match=os.strerror(errno.EMSGSIZE)):
            made.flush()


@pytest.mark.parametrize("gathered", [1, 1_000])
def test_what_is_too_long_for_such_a_buffer_alone_is_told(address: str, client: MakeClient, gathered: int) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, client, limits=ClientLimits(gather_time=PATIENCE, gathered=gathered))
        made.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
        size = made.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        for payload in (b"0", b"1", bytes(size), b"2", b"3"):
            made.publish(b"k", payload)
        with pytest.raises(OSError, match=os.strerror(errno.EMSGSIZE)):
            made.flush()
        assert [one for packet in here(peer) for one in opened(packet)] == [
            b"MSG k\0%d" % number for number in range(4)
        ]
        made.flush()


# ---------------------------------------------------------------------------------------------------
# Ends


@pytest.fixture
def subscriber(address: str) -> Iterator[blocking.Client]:
    with HubThread(address), blocking.Client(address, timeout=PATIENCE) as subscriber:
        subscriber.subscribe(b"")
        yield subscriber


PUBLISHES = """
import os, sys, threading, gevent
from sbuslib import Client
from sbuslib.limits import ClientLimits
def publish():
    client = Client(sys.argv[1], limits=ClientLimits(gather_time=60))
    for number in range(5):
        client.publish(b"k", b"%d" % number)
    return client
"""
ENDS = {
    "end of the program": "client = publish()",
    "exit": "client = publish(); sys.exit(0)",
    "in a function": "publish()",
    "in a greenlet": "gevent.spawn(lambda: (publish(), sys.exit(0))).join()",
    "of a thread": "client = []; threading.Thread(target=lambda: client.append(publish())).start()",
    "fork": "client = publish()\nif os.fork() == 0: client.flush(); client.close(); sys.exit()\nos.wait()",
    "process": "import multiprocessing\n"
    "process = multiprocessing.get_context('fork').Process(target=publish); process.start(); process.join()",
    "forks": "import multiprocessing; client = publish()\n"
    "process = multiprocessing.get_context('fork').Process(target=client.flush); process.start(); process.join()",
}


@pytest.mark.parametrize("how", ENDS)
def test_a_program_that_ends_sends_what_it_gathered(subscriber: blocking.Client, how: str) -> None:
    script = PUBLISHES + ENDS[how]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script, subscriber.address], env=environment, capture_output=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert [subscriber.receive(PATIENCE).payload for _ in range(5)] == [b"%d" % number for number in range(5)]
    subscriber.sync()
    assert not subscriber._session.inbox


def test_a_program_that_ends_waits_for_room(address: str) -> None:
    script = f"""{PUBLISHES}
import atexit, socket
client = publish()
try:
    while True:
        client.socket.send(b"MSG a\\0" + bytes(10_000))
except BlockingIOError:
    atexit.register(os.write, 1, b"there is no room")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        FakeHub(address) as fake,
        subprocess.Popen([sys.executable, "-c", script, address], env=environment, stdout=subprocess.PIPE) as program,
    ):
        peer = fake.greet(FEATURES)
        assert program.stdout is not None
        gevent.os.tp_read(program.stdout.fileno(), 1)
        got: list[bytes] = []
        while packet := peer.receive():
            got += opened(packet)
        assert got[-4:] == [b"MSG k\0%d" % number for number in range(1, 5)]
        assert program.wait(PATIENCE) == 0


def test_a_program_that_ends_without_its_hub_says_what_is_lost(address: str) -> None:
    with FakeHub(address) as fake:
        script = PUBLISHES + "client = publish(); os.write(1, b'.'); sys.stdin.read()"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        program = subprocess.Popen(
            [sys.executable, "-c", script, address],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with program:
            peer = fake.greet(FEATURES)
            assert program.stdout is not None
            gevent.os.tp_read(program.stdout.fileno(), 1)
            peer.close()
            _, complaint = program.communicate(timeout=PATIENCE)
        assert b"messages that were gathered and are lost: 4" in complaint


class Loopless(Client):
    """A client whose event loop ended with its thread: no turn comes, and nobody holds it."""

    def _at_end_of_turn(self, function: Callable[[], object]) -> None: ...


def test_a_client_that_nobody_has_any_more_sends_what_it_gathered(hub: Hub) -> None:
    inbox = hub.subscribe(b"")
    made = Loopless(hub.address, limits=PATIENT)
    for number in range(5):
        made.publish(b"k", b"%d" % number)
    gevent.sleep(0)
    assert made in _living()
    assert len(made._gathered) == 4
    del made
    gc.collect()
    assert [inbox.get(PATIENCE).payload for _ in range(5)] == [b"%d" % number for number in range(5)]


def test_a_child_forgets_what_its_parent_gathered(address: str, client: MakeClient) -> None:
    """And sends at once what it publishes: it may end without a word."""
    with FakeHub(address) as fake:
        peer, made = greet(fake, client)
        for number in range(3):
            made.publish(b"k", b"%d" % number)
        child = os.fork()
        if not child:
            try:
                made.flush()
                made.publish(b"k", b"of the child")
                made.publish(b"k", b"of the child")
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        assert here(peer) == [b"MSG k\x000", b"MSG k\0of the child", b"MSG k\0of the child"]
        made.flush()
        assert opened(here(peer)[0]) == [b"MSG k\x001", b"MSG k\x002"]


def test_what_nobody_asked_about_is_logged_in_the_end(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with FakeHub(address) as fake:
        peer, made = greet(fake, functools.partial(Client, address))
        made.publish(b"k")
        peer.close()
        made.publish(b"k")
        eventually(functools.partial(getattr, made, "_failure"))
        made.socket.close()
        with caplog.at_level(logging.WARNING):
            del made
            gc.collect()
    assert "messages that were gathered and are lost: 1" in caplog.text
