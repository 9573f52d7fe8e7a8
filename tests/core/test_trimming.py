"""Memory given back to the system: once clients have left, their patterns and what waited for them have gone."""

from __future__ import annotations

import ctypes
import gc
import socket
from collections.abc import Callable

import gevent
import pytest
from support import LONGEST, Peer, eventually

from sbuslib import Hub
from sbuslib.core import trimming
from sbuslib.core.connection import Connection
from sbuslib.core.quotas import CONNECTION_MEMORY, PATTERN_MEMORY
from sbuslib.limits import Limits

Connect = Callable[..., Peer]
MakeHub = Callable[..., Hub]

FREED = 4 * CONNECTION_MEMORY
LIMITS = Limits(trimmed_bytes=FREED, trim_pause=0.001)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that memory was given back."""
    times: list[int] = []
    monkeypatch.setattr(trimming, "give_back", lambda: times.append(1))
    return times


def rounds() -> None:
    """Let timers go that are due in a millisecond."""
    gevent.sleep(LIMITS.trim_pause)
    gevent.sleep(0)


def test_once_clients_have_left(make_hub: MakeHub, connect: Connect, asked: list[int]) -> None:
    hub = make_hub(limits=LIMITS)
    peers = [connect() for _ in range(4)]
    eventually(lambda: len(hub.connections) == 4)
    for peer in peers[1:]:
        peer.close()
    eventually(lambda: len(hub.connections) == 1)
    rounds()
    assert not asked  # three are too few to take the trouble
    peers[0].close()
    eventually(lambda: asked)
    assert asked == [1]


def test_once_patterns_have_gone(make_hub: MakeHub, connect: Connect, asked: list[int]) -> None:
    make_hub(limits=LIMITS)
    peer = connect()
    patterns = [b"p/%d" % number for number in range(FREED // PATTERN_MEMORY + 1)]
    peer.subscribe(*patterns)
    rounds()
    assert not asked
    peer.send(*(b"UNSUB " + pattern for pattern in patterns))
    eventually(lambda: asked)


def test_what_still_waits_is_waited_for(make_hub: MakeHub, connect: Connect, asked: list[int]) -> None:
    """Memory is not looked through in vain: more waits than has been freed."""
    hub = make_hub(limits=LIMITS)
    reader, writer = connect(), connect()
    reader.subscribe(b"k")
    size = 8 * FREED
    while not hub.quotas.waiting():
        writer.publish(b"k", bytes(size))
        writer.barrier()
    gone = [connect() for _ in range(5)]
    eventually(lambda: len(hub.connections) == 7)
    for peer in gone:
        peer.close()
    eventually(lambda: len(hub.connections) == 2)
    rounds()
    assert not asked
    while hub.quotas.waiting():
        reader.receive()
    eventually(lambda: asked)


@pytest.mark.parametrize("anything", [0, 1])
def test_the_library_is_asked_for_all_that_is_free(monkeypatch: pytest.MonkeyPatch, anything: int) -> None:
    calls: list[int] = []

    def trim(pad: ctypes.c_size_t) -> int:
        calls.append(pad.value)
        return anything

    monkeypatch.setattr(trimming, "_TRIM", trim)
    assert trimming.give_back() is bool(anything)
    assert calls == [0]


def test_a_library_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimming, "_TRIM", None)
    assert not trimming.give_back()


def test_what_took_long_is_put_off(make_hub: MakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large process it would else be done all the time, for whoever comes and goes."""
    clock = [1_000.0]
    took = iter([0.5, 0.0])

    def give_back() -> bool:
        clock[0] += next(took)
        return True

    monkeypatch.setattr(trimming, "monotonic", lambda: clock[0])
    monkeypatch.setattr(trimming, "give_back", give_back)
    hub = make_hub(limits=LIMITS)
    trimmer = hub._trimmer
    assert trimmer._pause == LIMITS.trim_pause
    trimmer._look()
    assert trimmer._pause == 0.5 / LIMITS.trim_share
    trimmer._look()
    assert trimmer._pause == LIMITS.trim_pause


@pytest.mark.parametrize("refusing", [False, True])
def test_a_client_that_died_leaves_nothing_to_collect(hub: Hub, connect: Connect, refusing: bool) -> None:
    """It is freed at once, also where the hub could not send on to it: garbage in a circle is seldom collected."""
    writer, reader = connect(), connect()
    reader.subscribe(b"k")
    while not hub.quotas.waiting():
        writer.publish(b"k", bytes(100_000))
        writer.barrier()
    gc.collect()
    gc.disable()
    try:
        if refusing:
            reader.socket.shutdown(socket.SHUT_RD)
            while reader.socket.recv(LONGEST):
                pass  # which makes room to send into
            eventually(lambda: not hub.quotas.waiting())
        reader.close()
        eventually(lambda: len(hub.connections) == 1)
        gevent.sleep(0)
        kept = [found for found in gc.get_objects() if isinstance(found, Connection) and found._hub is hub]
        assert len(kept) == 1  # the publisher's
    finally:
        gc.enable()


def test_a_stopped_hub_gives_nothing_back_later(make_hub: MakeHub, connect: Connect, asked: list[int]) -> None:
    hub = make_hub(limits=LIMITS)
    for _ in range(5):
        connect()
    eventually(lambda: len(hub.connections) == 5)
    hub.close()
    rounds()
    assert not asked
