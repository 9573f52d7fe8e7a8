"""Hubs as processes that are killed, stopped and started again; publishers and subscribers that count.

A publisher knows which of its messages were *passed on*: it asks its hub as a relay does. What was not passed on when
its hub was killed is uncertain for the publisher itself. Everything else that is missing has to be in a notice.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from select import POLLIN, poll
from time import monotonic

import msgspec
from support import LONGEST, PATIENCE

import sbuslib
from sbuslib.blocking import Client
from sbuslib.kernel.peers import peer_credentials
from sbuslib.secrets import Credentials, Namespace
from sbuslib.wire import control
from sbuslib.wire.packets import Control, parse

_PARENT = """
import json, os, signal, sys
import sbuslib.cli.daemon, sbuslib.cli.relay, sbuslib.hub, sbuslib.relay
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(flush=True)
for line in sys.stdin:
    module, *arguments = json.loads(line)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(writing, 1)
        os.closerange(3, 64)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os._exit(getattr(sbuslib.cli, module).main(arguments))
    os.close(writing)
    os.read(reading, 1)  # a hub closes its standard output when it listens
    os.close(reading)
    print(pid, flush=True)
"""


def wait_until(condition: Callable[[], object], what: str = "what the test waits for") -> None:
    """Wait for other processes and threads."""
    end = monotonic() + PATIENCE
    pause = threading.Event()
    while not condition():
        assert monotonic() < end, f"never: {what}"
        pause.wait(0.002)


class Programs:
    """Hubs by name, each a process of its own: ``sbusd``, or ``sbus-relay`` where there is a parent.

    They are forked from a process that has imported what they need, so each is there in some milliseconds.
    """

    def __init__(self, folder: str, errors: int | None = None) -> None:
        self.folder = folder
        self.pids: dict[str, int] = {}
        self.above: dict[str, str | None] = {}
        self.arguments: dict[str, tuple[str, ...]] = {}
        self._parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT],
            env=os.environ | {"PYTHONPATH": str(Path(sbuslib.__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        self._read_line()

    def _read_line(self) -> bytes:
        assert self._parent.stdout is not None
        return self._parent.stdout.readline()

    def address(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def start(self, name: str, above: str | None = None, *arguments: str) -> None:
        """Start a hub, and return when it listens."""
        command = ["daemon", "-f", "-a", self.address(name)]
        if above is not None:
            command = ["relay", "--upstream", self.address(above), "--listen", self.address(name)]
        self.above[name], self.arguments[name] = above, arguments
        assert self._parent.stdin is not None
        self._parent.stdin.write(msgspec.json.encode([*command, "-r", *arguments]) + b"\n")
        self._parent.stdin.flush()
        self.pids[name] = int(self._read_line())

    def start_again(self, name: str) -> None:
        self.start(name, self.above[name], *self.arguments[name])

    def take_over(self, name: str) -> None:
        """Have another process take a hub over that has none above, and return when the old one is gone."""
        old, arguments = self.pids[name], self.arguments[name]
        self.start(name, None, *arguments, "--take-over")
        self.arguments[name] = arguments
        wait_until(lambda: not os.path.exists(f"/proc/{old}"), "the old hub is gone")
        assert os.path.exists(f"/proc/{self.pids[name]}"), "the new hub did not take over"

    def send(self, name: str, number: int) -> None:
        os.kill(self.pids[name], number)

    def kill(self, name: str) -> None:
        """Kill a hub, and return when it is gone."""
        pid = self.pids.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the hub is gone")

    def kill_all(self) -> None:
        for name in list(self.pids):
            self.kill(name)

    def close(self) -> None:
        self.kill_all()
        with self._parent as parent:
            assert parent.stdin is not None
            parent.stdin.close()

    def wait_until_joined(self, name: str) -> None:
        """Wait until a hub and all above it have joined: its prefix is as long as its path."""
        depth, one = 0, self.above[name]
        while one is not None:
            depth, one = depth + 1, self.above[one]
        end = monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError, sbuslib.errors.SbusError), Client(self.address(name)) as client:
                if client.hub.whoami().count(b"!/cred/") == depth + 1 and client.sync("tree") == "tree":
                    return
            assert monotonic() < end, f"{name} never joined"


def connect_as(sock: socket.SocketType, address: str, uid: int | None) -> Credentials | None:
    """Connect as a process of this user. Returns whose the connection is; ``None``: nobody listens."""
    if uid is None:
        with contextlib.suppress(OSError):
            sock.connect(address)
            return Credentials(os.getgid(), os.getuid(), os.getpid())
        return None

    # The kernel notes who calls connect(2). A child does, since other threads of this process connect meanwhile.
    child = os.fork()
    if not child:
        status = 1
        with contextlib.suppress(OSError):
            os.setgid(uid)
            os.setuid(uid)
            sock.connect(address)
            status = 0
        os._exit(status)
    _, status = os.waitpid(child, 0)
    return Credentials(uid, uid, child) if not status else None


class Publisher:
    """Publishes messages that are numbered, over one connection after another. Never waits for its hub.

    :param uid: of whom each connection is; ``None``: of this process.
    """

    def __init__(self, address: str, name: str, uid: int | None = None) -> None:
        self.address = address
        self.name = name
        self.uid = uid
        self.sent_as: list[tuple[int, Credentials]] = []
        """The first number of each connection, and whose the kernel says that it is."""
        self.published = self.passed = 0
        self.uncertain = 0
        """Messages that were not passed on when a connection broke."""
        self.told = 0
        """Messages that notices spoke of."""
        self._sock: socket.SocketType | None = None
        self._rest = bytearray()

    def connect(self) -> bool:
        if self._sock is not None:
            return True
        sock = socket.SocketType(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        credentials = connect_as(sock, self.address, self.uid)
        if credentials is None:
            sock.close()
            return False
        self.sent_as.append((self.published, credentials))
        sock.setblocking(False)
        self._sock = sock
        self._send(b"CMSG notices/on\0")
        return True

    def sender_of(self, number: int) -> Credentials:
        """Whose the connection was over which a message was sent."""
        return self.sent_as[bisect_right(self.sent_as, number, key=itemgetter(0)) - 1][1]

    def publish(self, count: int, key: bytes, size: int = 0) -> bool:
        """Publish messages, and ask whether they are passed on. ``False``: the hub is away or takes no more."""
        if not self.connect():
            return False
        for _ in range(count):
            head = b"MSG %b\0%b %d " % (key, self.name.encode(), self.published)
            if not self._send(head + b"." * size):
                return False
            self.published += 1
        return self._send(b"CMSG hub/sync\0%d\0passed" % self.published)

    def _send(self, packet: bytes) -> bool:
        if self._sock is None:
            return False
        try:
            self._sock.send(packet)
        except BlockingIOError:
            return False
        except OSError:
            self.read()
            self._broken()
            return False
        return True

    def read(self) -> None:
        """Take answers and notices that have come."""
        while self._sock is not None:
            try:
                data = self._sock.recv(LONGEST)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # the kernel says so once, before packets that wait
            except OSError:
                data = b""
            if not data:
                self._broken()
                return
            packet = parse(data)
            assert isinstance(packet, Control)
            payload = packet.payload or b""
            if packet.key == control.SYNC:
                self.passed = max(self.passed, int(payload.partition(b"\0")[0]))
            elif packet.key == control.NOTICE_LOST:
                notice = control.decode_notice(packet.key, payload)
                assert isinstance(notice, control.Lost)
                self.told += notice.count

    def _broken(self) -> None:
        self.close()
        self.uncertain += self.published - self.passed
        self.passed = self.published

    def wait_until_passed(self) -> None:
        """Wait until all that was published was passed on, or is uncertain."""
        end = monotonic() + PATIENCE
        waiter = poll()
        self.read()
        while self.passed < self.published:
            assert monotonic() < end, f"{self.name}: {self.passed} of {self.published} messages were passed on"
            if self._sock is not None:
                waiter.register(self._sock, POLLIN)
                waiter.poll(100)
                waiter.unregister(self._sock)
            self.read()

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


class Subscriber:
    """A client in a thread of its own that reconnects, and keeps the numbers that it received of each publisher.

    :param senders: whether it asks for senders.
    """

    def __init__(self, address: str, *patterns: bytes, senders: bool = False) -> None:
        self.patterns = patterns
        self.asks_senders = senders
        self.client = Client(address, reconnect=True, timeout=PATIENCE, on_reconnect=self._note_hub, senders=senders)
        for pattern in patterns:
            self.client.subscribe(pattern)
        self.numbers: dict[str, list[int]] = {}
        self.keys: set[bytes] = set()
        self.senders: dict[str, list[tuple[int, bytes | None]]] = {}
        """The numbers again, and by whom each was sent, as the hub said."""
        self.known_by = 0
        """The last process of the hub in which its subscriptions are in force."""
        self._note_hub(self.client)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _note_hub(self, client: Client) -> None:
        client.sync()
        with (
            contextlib.suppress(sbuslib.errors.DisconnectedError),  # then it is called again
            socket.socket(fileno=os.dup(client.socket.fileno())) as sock,
        ):
            self.known_by = peer_credentials(sock).pid

    def _read(self) -> None:
        while True:
            try:
                messages = self.client.receive_many(timeout=60)
            except TimeoutError:
                continue
            except sbuslib.errors.SbusError:
                return
            for message in messages:
                name, number = message.payload.split(b" ")[:2]
                self.numbers.setdefault(name.decode(), []).append(int(number))
                self.senders.setdefault(name.decode(), []).append((int(number), message.sender))
                self.keys.add(message.key)

    def has(self, publisher: Publisher, number: int) -> bool:
        """Whether the last message received of a publisher is this one."""
        return self.numbers.get(publisher.name, [-1])[-1] == number

    def check_order(self, publisher: Publisher) -> None:
        """Each message came at most once, and in order."""
        numbers = self.numbers.get(publisher.name, [])
        wrong = [(a, b) for a, b in pairwise(numbers) if b <= a]
        assert not wrong, f"of {publisher.name}: {len(wrong)} times out of order or twice: {wrong[:5]}"

    def check_senders(self, publisher: Publisher) -> None:
        """Each message came with the sender that the kernel of its hub had named, and no other."""
        for number, sender in self.senders.get(publisher.name, []):
            found = Namespace().chain(sender or b"")
            due = publisher.sender_of(number)
            assert due in found[-1:], f"{number} of {publisher.name} is from {due}, and came as of {sender!r}"

    def close(self) -> None:
        self.client.close()
        self._thread.join()
