"""Whatever a client that gathers is told to do, in whatever order: its messages come, each once and in that order."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import PATIENCE, eventually

from sbuslib import Client, Hub
from sbuslib.errors import KeyFormatError
from sbuslib.limits import ClientLimits

SECRET = b"!/cred//%d//" % os.getuid()
KEYS = st.sampled_from([b"a", b"b/c", b"", SECRET + b"x"])
COUNTS = st.integers(1, 30)

Step = Callable[[Client, list[tuple[bytes, bytes]]], None]


class Publisher:
    """Carries steps out, and notes what is to come: payloads are numbers, some of them long."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.expected: list[tuple[bytes, bytes]] = []

    def next(self, key: bytes, size: int = 0) -> tuple[bytes, bytes]:
        pair = key, b"%d:" % len(self.expected) + bytes(size)
        self.expected.append(pair)
        return pair

    def publish(self, key: bytes, count: int, size: int = 0) -> None:
        for _ in range(count):
            self.client.publish(*self.next(key, size))

    def keys(self, count: int) -> None:
        for number in range(count):
            self.client.publish(*self.next(b"k/%d" % number))

    def mutable(self, key: bytes) -> None:
        key, payload = self.next(key)
        self.client.publish(key, bytearray(payload))  # type: ignore[arg-type]

    def many(self, key: bytes, count: int) -> None:
        self.client.publish_many([self.next(key) for _ in range(count)])

    def packets(self, key: bytes, count: int) -> None:
        self.client.send_packets([b"MSG %b\0%b" % self.next(key) for _ in range(count)])

    def prepared(self, key: bytes) -> None:
        key, payload = self.next(key)
        message = self.client.prepare_message(key)
        message.payload[: len(payload)] = payload
        message.send(len(payload))

    def at_once(self, key: bytes) -> None:
        pair = self.next(key)
        try:
            self.client.publish(*pair, flags=socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.expected.pop()

    def wrong(self, key: bytes) -> None:
        with pytest.raises(KeyFormatError):
            self.client.publish(key)

    def gather(self, on: bool) -> None:
        self.client.gather(on)

    def say(self, verb: str) -> None:
        getattr(self.client, verb)()

    def subscribe(self, pattern: bytes) -> None:
        self.client.subscribe(pattern)
        self.client.unsubscribe(pattern)

    def turn(self) -> None:
        gevent.sleep(0)


def step(name: str, *strategies: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.tuples(st.just(name), *strategies)


STEPS = st.lists(
    st.one_of(
        step("publish", KEYS, COUNTS),
        step("publish", KEYS, COUNTS, st.sampled_from([20, 300, 2_000, 9_000])),
        step("keys", COUNTS),
        step("mutable", KEYS),
        step("many", KEYS, COUNTS),
        step("packets", KEYS, COUNTS),
        step("prepared", KEYS),
        step("at_once", KEYS),
        step("wrong", st.sampled_from([b"a\0", b"!/x"])),
        step("gather", st.booleans()),
        step("say", st.sampled_from(["flush", "whoami", "sync", "echo"])),
        step("subscribe", st.just(b"never")),
        step("turn"),
    ),
    min_size=2,
    max_size=20,
)
LIMITS = st.builds(
    ClientLimits,
    gathered=st.sampled_from([1, 2, 8]),
    batch_messages=st.sampled_from([3, 1_024]),
    batch_bytes=st.sampled_from([500, 131_072]),
    gather_time=st.sampled_from([1e-9, 0.001, PATIENCE]),
)


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    """One hub for all examples."""
    with tempfile.TemporaryDirectory(prefix="sbus-") as folder, Hub(os.path.join(folder, "bus")) as hub:
        yield hub


@given(STEPS, LIMITS)
def test_messages_come_once_and_in_order(hub: Hub, steps: list[tuple[str, ...]], limits: ClientLimits) -> None:
    with hub.subscribe(b"", SECRET) as inbox:
        with Client(hub.address, limits=limits) as client:
            publisher = Publisher(client)
            for name, *arguments in steps:
                getattr(publisher, name)(*arguments)
        got = [inbox.get(PATIENCE) for _ in publisher.expected]
        assert [(message.key, message.payload) for message in got] == publisher.expected
        eventually(lambda: not hub.statistics().clients)  # the one has gone; an inbox is not counted
        assert not len(inbox)
