"""A crowd of raw clients of one hub, which know nothing but the protocol, do not reconnect, and count what they get.

Each group has publishers and readers. Each reader is of one kind, which says what it asks of the hub and how it reads.
Each message has the number of its publisher and its own number, so a reader sees what is missing, comes twice or comes
in the wrong order. What is missing has to be in a notice.
"""

from __future__ import annotations

import os
import socket
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from select import POLLIN, poll
from time import monotonic

from accounting import acting_as
from support import LONGEST, PATIENCE

from sbuslib.wire import control
from sbuslib.wire.batches import Batch, coalesce
from sbuslib.wire.packets import Control, Message, parse

__all__ = ["KINDS", "STRANGER", "Crowd", "Reader"]

STRANGER = 12_345
"""Another user, of whom there are clients where the tests run as root."""

SORTED = ("order/stack", "order/random")
LAZY = ("blocking/soft/discard", "blocking/soft/block", "blocking/hard/block", *SORTED)
"""Those that read now and then only, so that something waits for them."""

KINDS = ("plain", "batch/on", "senders/on", "echo/off", *LAZY, "twice", "secret")
"""What a reader asks for. ``twice`` subscribes twice and takes one back; ``secret`` wants its user's secrets, too."""

TALKS = 1_000_000
"""What the numbers of publishers begin with that are readers, too."""

SIZES = 10, 30, 4_000
"""Bytes that messages have, one after another: enough that the small send buffers get full."""


def raw(address: str, uid: int | None) -> socket.SocketType:
    with nullcontext() if uid is None else acting_as(uid):
        sock = socket.SocketType(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(address)
    sock.settimeout(PATIENCE)
    return sock


class Reader:
    """One client of a group."""

    def __init__(self, address: str, group: int, kind: str, uid: int | None) -> None:
        self.kind = kind
        self.group = group
        self.sock = raw(address, uid)
        self.got: dict[int, list[int]] = defaultdict(list)
        """The numbers that came of each publisher."""
        self.lost = 0
        """Messages that notices told of."""
        self.key = b""
        self._say(b"CMSG notices/on\0", b"SUB all/", b"SUB %d/" % group)
        if kind == "twice":
            self._say(b"SUB %d/" % group)
        elif kind not in ("plain", "secret"):
            self._say(b"CMSG %b\0" % kind.encode())
        self._wait_for_key()
        if kind == "secret":
            self._say(b"SUB %b/%d" % (self.key, group))
            self._wait_for_key()
        self.sock.setblocking(False)

    def _say(self, *packets: bytes) -> None:
        for packet in packets:
            self.sock.send(packet)

    def _wait_for_key(self) -> None:
        """Ask who this is. When the answer comes, all that was said before is in force."""
        self._say(b"CMSG !/cred/whoami\0")
        self.key = b""
        while not self.key:
            self.read(1)

    def take_one_back(self) -> None:
        if self.kind == "twice":
            self._say(b"UNSUB %d/" % self.group)

    def read(self, most: int = 10**9) -> None:
        for _ in range(most):
            try:
                data = self.sock.recv(LONGEST)
            except BlockingIOError:
                return
            assert data, f"{self.kind} was disconnected"
            for message in self._messages(data):
                publisher, number = map(int, message.payload.split()[:2])
                self.got[publisher].append(number)

    def _messages(self, data: bytes) -> Iterator[Message]:
        if data.startswith(b"CMSG from\0"):
            sender, data = control.unwrap_from(data[len(b"CMSG from\0") :])
            assert self.kind == "senders/on"
            assert sender.startswith(b"!/cred/")
        packet = None if data.startswith(b"CMSG batch\0") else parse(data)
        if packet is None:
            assert self.kind in ("batch/on", "echo/off")
            yield from Batch.parse(data).messages()
        elif isinstance(packet, Message):
            yield packet
        else:
            assert isinstance(packet, Control)
            self._note(packet)

    def _note(self, packet: Control) -> None:
        if packet.key == control.WHOAMI:
            self.key = packet.payload or b""
        elif packet.key == control.NOTICE_LOST:
            notice = control.decode_notice(packet.key, packet.payload or b"")
            assert isinstance(notice, control.Lost)
            self.lost += notice.count
        else:
            raise AssertionError(f"{self.kind} was told {packet!r}")

    def has_all(self, published: Counter[int]) -> bool:
        return sum(map(len, self.got.values())) + self.lost == sum(published.values())

    def check(self) -> None:
        """Nothing came twice, and what is sent in order came in order."""
        for publisher, numbers in self.got.items():
            if self.kind in SORTED:
                assert len(set(numbers)) == len(numbers), f"{self.kind}: twice of {publisher}"
            else:
                assert numbers == sorted(set(numbers)), f"{self.kind}: twice or out of order of {publisher}"


class Publisher:
    """Publishes to its group, and to all now and then; to the secrets of the readers, too."""

    def __init__(self, sock: socket.SocketType, name: int, group: int, secrets: list[bytes]) -> None:
        self.sock = sock
        self.sock.send(b"CMSG batch/on\0")
        self.sock.setblocking(False)
        self.name = name
        self.group = group
        self.keys = [b"%d/a" % group, b"%d/b" % group, *secrets]
        self.published = 0

    def publish(self, key: bytes, count: int = 1) -> int:
        """Publish up to ``count`` messages, as one packet if they are several. Returns how many were published."""
        numbers = range(self.published, self.published + count)
        packets = [
            b"MSG %b\0%d %d " % (key, self.name, number) + b"." * SIZES[number % len(SIZES)] for number in numbers
        ]
        batch = coalesce(packets) if count > 1 else None
        try:
            self.sock.send(packets[0] if batch is None else batch.packet)
        except BlockingIOError:
            return 0
        self.published += count
        return count


class Crowd:
    """So many readers, in groups with one of each kind and two publishers each; readers of every second are strangers.

    Those who asked for ``echo/off`` publish, too.

    ``all/`` goes to everybody, so that it is a fan-out to many clients of one user.
    """

    def __init__(self, address: str, readers: int) -> None:
        uids = [None, STRANGER] if os.getuid() == 0 else [None]
        kinds = [(number // len(KINDS), KINDS[number % len(KINDS)]) for number in range(readers)]
        self.readers = [Reader(address, group, kind, uids[group % len(uids)]) for group, kind in kinds]
        self.groups = range(kinds[-1][0] + 1)
        self.publishers = [
            Publisher(raw(address, None), 2 * group + which, group, self._secrets(group))
            for group in self.groups
            for which in range(2)
        ]
        self.publishers += [
            Publisher(one.sock, TALKS + one.group, one.group, []) for one in self.readers if one.kind == "echo/off"
        ]
        self.town_crier = Publisher(raw(address, None), -1, -1, [])
        self.to_all = self.turns = 0
        self.of_group: dict[int, Counter[int]] = {group: Counter() for group in self.groups}
        self.secret: dict[int, int] = Counter()
        """Messages under secret keys, by group."""
        self.longest_wait = 0.0
        self._poll = poll()
        self._by_number = {reader.sock.fileno(): reader for reader in self.readers if reader.kind not in LAZY}
        for number in self._by_number:
            self._poll.register(number, POLLIN)

    def _secrets(self, group: int) -> list[bytes]:
        return [b"%b/%d" % (one.key, group) for one in self.readers if one.group == group and one.kind == "secret"]

    def step(self) -> None:
        """Publish something, and have those read who do."""
        self.turns += 1
        for publisher in self.publishers:
            key = publisher.keys[self.turns % len(publisher.keys)]
            count = publisher.publish(key, 1 + 4 * (self.turns % 5 == 0))
            if key.startswith(b"!"):
                self.secret[publisher.group] += count
            else:
                self.of_group[publisher.group][publisher.name] += count
        self.to_all += self.town_crier.publish(b"all/news")
        self._read(lazy=self.turns % 20 == 0)

    def _read(self, lazy: bool) -> None:
        began = monotonic()
        for number, _ in self._poll.poll(1_000):
            self._by_number[number].read()
        self.longest_wait = max(self.longest_wait, monotonic() - began)
        if lazy:
            for reader in self.readers:
                if reader.kind in LAZY:
                    reader.read(3)

    def finish(self) -> None:
        """Read until everybody has all that it should get, or was told what is missing."""
        end = monotonic() + PATIENCE
        while behind := [reader for reader in self.readers if not reader.has_all(self.expected(reader))]:
            assert monotonic() < end, [
                (one.kind, one.group, sum(map(len, one.got.values())), one.lost, self.expected(one)) for one in behind
            ]
            for reader in behind:
                reader.read()
        for reader in self.readers:
            reader.check()

    def expected(self, reader: Reader) -> Counter[int]:
        expected = self.of_group[reader.group] + Counter({-1: self.to_all})
        if reader.kind == "echo/off":
            del expected[TALKS + reader.group]
        if reader.kind == "secret":
            expected[-2] = self.secret[reader.group]
        return expected

    @property
    def received(self) -> int:
        return sum(len(numbers) for reader in self.readers for numbers in reader.got.values())

    def close(self) -> None:
        for sock in [one.sock for one in self.readers] + [one.sock for one in (*self.publishers, self.town_crier)]:
            sock.close()
