"""What many hubs below cost one hub: time and memory until all know what the others want, and the rate of ``SUB``.

Run ``python benchmarks/many_links.py [OTHER]``, where ``OTHER`` is a checkout of other code to compare with. The hub is
a process of its own. The hubs below are sockets of this process: they say what relays say, read all they are told and
answer the hub's questions. Told is, for each number of links and of patterns of each link, all distinct:

* the seconds until a ``sync`` of the whole tree is answered, after all said what they want, and the hub's CPU time;
* the hub's memory, and how many patterns the first link holds then;
* how many ``SUB`` of another client the hub puts in force each second, and its CPU time for each until all links know.
  The client's patterns are of one family, so from some number on they are replaced by one that covers them.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sbuslib.bench.process import cpu_seconds, raise_descriptor_limit, resident_bytes

HERE = Path(__file__).parent.parent
ANNOUNCED = ((100, 50, "slave/%d/%d"), (1_000, 100, "slave/%d/%d"), (1_000, 100, "%d/%d"))
TOO_MUCH = 1_000_000
"""Patterns times links that code is spared that does not limit them: it would take minutes, and all memory."""
LINKS = (0, 1_000, 4_000)
SUBSCRIPTIONS = 10_000
SYNC = b"CMSG interest/sync\0"
WHOAMI = b"CMSG !/cred/whoami"


class Hub:
    """A hub in a process, and connections to it."""

    def __init__(self, code: Path, folder: str) -> None:
        self.address = os.path.join(folder, "hub")
        command = [sys.executable, "-m", "sbuslib", "hub", "-a", self.address]
        environment = {**os.environ, "PYTHONPATH": str(code)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=code, env=environment)
        assert self.process.stdout is not None
        self.process.stdout.read()  # closed once it listens
        self.sockets: dict[int, socket.socket] = {}
        self.held: dict[int, set[bytes]] = {}
        self.poll = select.epoll()

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sock.connect(self.address)
        return sock

    def link(self) -> socket.socket:
        sock = self.connect()
        sock.send(b"CMSG interest/on")
        sock.setblocking(False)
        self.sockets[sock.fileno()] = sock
        self.held[sock.fileno()] = set()
        self.poll.register(sock, select.EPOLLIN)
        return sock

    def read(self, wait: float) -> None:
        """Read what the links are told."""
        for fileno, _ in self.poll.poll(wait):
            sock, held = self.sockets[fileno], self.held[fileno]
            try:
                while packet := sock.recv(65_536):
                    word, _, text = packet.partition(b"\0")
                    if word == b"CMSG interest/add":
                        held.update(text.split(b"\0"))
                    elif word == b"CMSG interest/remove":
                        held.difference_update(text.split(b"\0"))
                    elif packet.startswith(SYNC):
                        sock.send(packet + b"\0tree")
            except BlockingIOError:
                pass

    def say(self, sock: socket.socket, packets: list[bytes]) -> None:
        """Send packets, and read meanwhile what the links are told."""
        sock.setblocking(False)
        for packet in packets:
            while True:
                try:
                    sock.send(packet)
                    break
                except BlockingIOError:
                    self.read(0.001)

    def ask(self, sock: socket.socket, question: bytes, answer: bytes) -> None:
        """Ask, and wait for the answer."""
        sock.setblocking(False)
        self.say(sock, [question])
        while True:
            self.read(0.0001)
            try:
                packet = sock.recv(1 << 16)
            except BlockingIOError:
                continue
            if packet.startswith(answer):
                return
            self.say(sock, [question])  # some did not answer in time

    def settle(self, sock: socket.socket) -> None:
        """Wait until all links know what is wanted."""
        self.ask(sock, b"CMSG hub/sync\0x\0tree", b"CMSG hub/sync\0x\0tree")

    @property
    def cpu(self) -> float:
        return cpu_seconds([self.process.pid])

    def stop(self) -> None:
        for sock in self.sockets.values():
            sock.close()
        self.process.terminate()
        self.process.wait()


def announce(hub: Hub, links: int, patterns: int, form: str) -> None:
    client = hub.connect()
    idle, cpu, started = resident_bytes(hub.process.pid), hub.cpu, time.perf_counter()
    for n in range(links):
        hub.say(hub.link(), [b"SUB " + (form % (n, m)).encode() for m in range(patterns)])
        hub.read(0)
    hub.settle(client)
    elapsed = time.perf_counter() - started
    used = (resident_bytes(hub.process.pid) - idle) / 2**20
    told = len(next(iter(hub.held.values())))
    cpu = hub.cpu - cpu
    print(f"    {elapsed:.1f} s, {cpu:.1f} s of CPU, {used:.0f} MiB; the first link holds {told:,}", flush=True)


def subscribe(hub: Hub, links: int) -> None:
    for _ in range(links):
        hub.link()
        hub.read(0)
    client = hub.connect()
    hub.settle(client)
    packets = [b"SUB room/%d/temp" % n for n in range(SUBSCRIPTIONS)]
    others = [hub.connect(), hub.connect()]
    for name, other in zip(("new patterns", "patterns that another client holds"), others, strict=True):
        cpu = hub.cpu
        hub.settle(client)
        question = hub.cpu - cpu
        cpu, started = hub.cpu, time.perf_counter()
        hub.say(other, packets)
        hub.ask(other, WHOAMI, WHOAMI)
        rate = SUBSCRIPTIONS / (time.perf_counter() - started)
        hub.settle(client)
        each = (hub.cpu - cpu - question) / SUBSCRIPTIONS * 1e6
        print(f"    {links:,} links, {name}: {rate:,.0f} SUB/s, {each:.0f} µs of CPU each", flush=True)


def main(codes: list[Path]) -> None:
    raise_descriptor_limit()
    for links, patterns, form in ANNOUNCED:
        print(f"{links:,} links x {patterns} patterns {form}")
        for code in codes:
            print(f"  {code.name}", flush=True)
            if code is not codes[-1] and links * links * patterns > TOO_MUCH:
                print("    left out")
                continue
            with tempfile.TemporaryDirectory() as folder:
                hub = Hub(code, folder)
                try:
                    announce(hub, links, patterns, form)
                finally:
                    hub.stop()
    print("SUB of one client")
    for code in codes:
        print(f"  {code.name}", flush=True)
        for links in LINKS:
            with tempfile.TemporaryDirectory() as folder:
                hub = Hub(code, folder)
                try:
                    subscribe(hub, links)
                finally:
                    hub.stop()


if __name__ == "__main__":
    print(f"{os.uname().release}, Python {sys.version.split()[0]}")
    main([*map(Path, sys.argv[1:]), HERE])
