"""Helpers for tests: raw connections, fake hubs, and the test vectors. Hubs in threads are our users' too."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import gevent
import gevent.socket
import pytest

from sbuslib import Client, Hub, aio
from sbuslib.clients.endpoint import Endpoint
from sbuslib.limits import CONTROL_EXTRA, PACKET_BYTES
from sbuslib.matcher import matches
from sbuslib.testing import HubThread as HubThread
from sbuslib.wire.addresses import AbstractAddress, PathAddress, parse_address

Connect: TypeAlias = Callable[..., "Peer"]
MakeHub: TypeAlias = Callable[..., Hub]
MakeClient: TypeAlias = Callable[..., Client]
Bus: TypeAlias = Callable[..., Hub]
ConnectAs: TypeAlias = Callable[..., "Peer"]
"""What the fixtures of these names give."""

TESTS = Path(__file__).parent
ROOT = TESTS.parent
WHOAMI = b"CMSG !/cred/whoami"
LONGEST = PACKET_BYTES + CONTROL_EXTRA
PATIENCE = 20.0
"""Seconds that a test waits at most. Long, since it passes only if a test fails."""

both_ways = pytest.mark.parametrize("syscalls", ["batched", "plain"], indirect=True)
"""Marks a test that runs twice: with ``recvmmsg`` and ``sendmmsg``, and with a call for each packet."""


def own_key() -> bytes:
    """The credential key of this process."""
    return b"!/cred/%d/%d/%d" % (os.getgid(), os.getuid(), os.getpid())


def unescape(text: str) -> bytes:
    """Bytes of a text in which ``%XX`` stands for a byte."""
    return re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes.fromhex(found[1].decode()), text.encode("ascii"))


def vectors() -> Iterator[tuple[bool, bytes, bytes]]:
    """The rows of ``vectors/matching.tsv``: whether the pattern matches, the pattern, the key."""
    for line in (TESTS / "vectors" / "matching.tsv").read_text("ascii").splitlines():
        if not line.startswith("#"):
            verdict, pattern, key = line.split("\t")
            yield verdict == "1", unescape(pattern), unescape(key)


def choose(client: Endpoint, *keys: bytes) -> None:
    """Have a client choose something of its hub later than when it was made, such as ``senders/on``."""
    client._core.choose(*keys)


async def choose_soon(client: aio.Client, *keys: bytes) -> None:
    """As :func:`choose`, with asyncio."""
    client._core.choose(*keys)


def open_descriptors() -> set[tuple[str, str]]:
    """Files and sockets that this process has open, without those of the event loop."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        if not target.startswith(("anon_inode:", "pipe:")):
            found.add((fd, target))
    return found


def eventually(condition: Callable[[], object]) -> None:
    """Let the event loop run until ``condition`` holds. For changes about which no packet comes."""
    with gevent.Timeout(PATIENCE, AssertionError("it never came true")):
        while not condition():
            gevent.sleep(0.001)


def python(*arguments: str, **environment: str) -> str:
    """Run another Python with this checkout on its path. Returns what it prints; it must succeed without errors.

    It has as long as the test has, whose alarm ends it.
    """
    # From 3.12 on, Python warns of a fork beside threads, which some tests are about.
    environment["PYTHONWARNINGS"] = "ignore:This process:DeprecationWarning"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def in_thread(function: Callable[[], object]) -> object:
    """Run in another thread: the result or the exception."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(function())
        except Exception as error:
            results.append(error)
        finally:
            gevent.get_hub().destroy(destroy_loop=True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


class Peer:
    """A raw connection to any sbus daemon: sends and receives packets as they are. Waits in the event loop."""

    def __init__(self, to: str | gevent.socket.socket) -> None:
        self.socket = gevent.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) if isinstance(to, str) else to
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST + 16_384)
        self.socket.settimeout(PATIENCE)
        self._early: list[bytes] = []
        if isinstance(to, str):
            parsed = parse_address(to)
            assert isinstance(parsed, (PathAddress, AbstractAddress))
            try:
                self.socket.connect(parsed.path if isinstance(parsed, PathAddress) else parsed.name)
            except BaseException:
                self.socket.close()
                raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *packets: bytes) -> None:
        for packet in packets:
            self.socket.sendmsg([packet])  # send() would leave an empty packet out

    def _receive(self) -> bytes:
        while True:
            try:
                return self.socket.recv(LONGEST + 1)
            except ConnectionResetError:
                continue  # the kernel reports it once, before packets that wait

    def receive(self) -> bytes:
        """The next packet; ``b""`` at the end of the connection."""
        return self._early.pop(0) if self._early else self._receive()

    def barrier(self) -> None:
        """Return when the daemon has acted on all packets sent here. Packets that come meanwhile are kept."""
        self.send(WHOAMI)
        while not (packet := self._receive()).startswith(WHOAMI + b"\0"):
            assert packet, "disconnected"
            self._early.append(packet)

    def subscribe(self, *patterns: bytes) -> None:
        """Subscribe, and return when that is in force."""
        self.send(*(b"SUB " + pattern for pattern in patterns))
        self.barrier()

    def publish(self, key: bytes, payload: bytes = b"") -> None:
        self.send(b"MSG %b\0%b" % (key, payload))

    def pending(self) -> list[bytes]:
        """All packets that the daemon sent until now."""
        self.barrier()
        packets, self._early = self._early, []
        return packets

    def is_disconnected(self) -> bool:
        """Wait for the next packet. Returns whether the connection ended instead."""
        return self.receive() == b""


class PlainDaemon:
    """A daemon that knows the plain protocol only, with faults of the C daemon.

    It disconnects whoever subscribes to a pattern that names credentials, delivers secrets to wildcards, and answers
    ``whoami`` with the group in the place of the process.
    """

    def __init__(self, address: str) -> None:
        self._listener = gevent.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen(16)
        self._patterns: dict[Peer, Counter[bytes]] = {}
        self._quiet: set[Peer] = set()
        self.accepted = 0
        self.published: list[bytes] = []
        """All messages that came."""
        self._greenlets: list[gevent.Greenlet[..., None]] = [gevent.spawn(self._accept)]

    def __enter__(self) -> PlainDaemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        gevent.killall(self._greenlets)
        self._listener.close()

    def disconnect(self) -> None:
        """End all connections."""
        for peer in self._patterns:
            peer.socket.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            peer = Peer(self._listener.accept()[0])
            peer.socket.settimeout(None)
            self.accepted += 1
            self._patterns[peer] = Counter()
            self._greenlets.append(gevent.spawn(self._serve, peer))

    def _serve(self, peer: Peer) -> None:
        with peer, contextlib.suppress(OSError):
            while (packet := peer.receive()) and self._act(peer, packet):
                pass
        del self._patterns[peer]

    def _act(self, peer: Peer, packet: bytes) -> bool:
        """Act on a packet. Returns ``False`` if the client has to be disconnected."""
        word, _, rest = packet.partition(b" ")
        key = rest.partition(b"\0")[0]
        patterns = self._patterns[peer]
        match word:
            case b"SUB":
                patterns[key] += 1
                return not re.match(rb"!/cred/(\d+/[^/]*/[^/]*|[^/]*/\d+/[^/]*|[^/]*/[^/]*/\d+)/", key)
            case b"UNSUB":
                patterns -= Counter([key])
                self._patterns[peer] = patterns
            case b"MSG":
                self.published.append(packet)
                for other, held in list(self._patterns.items()):
                    wants = any(matches(pattern, key) for pattern in held)
                    if wants and not (other is peer and peer in self._quiet):
                        other.send(packet)
            case b"CMSG" if key == b"!/cred/whoami":
                gid, uid, _ = own_key().removeprefix(b"!/cred/").split(b"/")
                peer.send(WHOAMI + b"\0!/cred/%b/%b/%b" % (gid, uid, gid))
            case b"CMSG" if key == b"echo/off":
                self._quiet.add(peer)
            case _:
                return word == b"CMSG"
        return True


class FakeHub:
    """A listening socket only, to play a hub that is slow, silent, hostile or old. Blocks no event loop."""

    def __init__(self, address: str) -> None:
        self.socket = gevent.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE)
        self.socket.bind(address)
        self.socket.listen(16)
        self.accepted: list[Peer] = []

    def __enter__(self) -> FakeHub:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self.accepted:
            peer.close()
        self.socket.close()

    def accept(self) -> Peer:
        peer = Peer(self.socket.accept()[0])
        self.accepted.append(peer)
        return peer

    def accept_relay(self) -> Peer:
        """Accept a relay, and answer as a daemon without features."""
        peer = self.accept()
        while peer.receive() != WHOAMI + b"\0":
            pass
        peer.send(WHOAMI + b"\0!/cred/1/2/3")
        return peer

    def greet(self, features: bytes = b"") -> Peer:
        """Accept a client, and answer its first questions; the one about ``features`` only if there are any."""
        peer = self.accept()
        assert peer.receive() == b"CMSG hub/features\0"
        assert peer.receive() == WHOAMI + b"\0"
        if features:
            peer.send(b"CMSG hub/features\0" + features)
        peer.send(WHOAMI + b"\0" + own_key())
        return peer
