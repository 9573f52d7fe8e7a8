"""The embedding process as a sender, and what it receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from support import Connect, MakeHub, eventually, own_key

from sbuslib import Hub, Limits
from sbuslib.errors import DisconnectedError, KeyFormatError, PayloadError, SbusError, UsageError
from sbuslib.wire.packets import Message


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
    assert [inbox.receive(timeout=5) for _ in range(3)] == [
        Message(b"a/1", b"x", me),
        Message(b"b", b"", me),
        Message(b"a/2", b"y\0z", me),
    ]
    assert len(inbox) == 0


def test_messages_that_the_embedder_may_not_publish(hub: Hub) -> None:
    wrong: Any = ["a"]
    for key in (b"a\0b", b"!/x", wrong):
        with pytest.raises(KeyFormatError):
            hub.publish(key)
    with pytest.raises(PayloadError):
        hub.publish(b"a", b"x" * 409_600)
    for pattern in (b"!/cred/*/*/*/x", wrong):
        with pytest.raises(KeyFormatError):
            hub.subscribe(b"ok", pattern)
    with pytest.raises(SbusError):
        hub.subscribe(b"x" * 100_000)
    with pytest.raises(UsageError):
        hub.subscribe()
    eventually(lambda: not hub.statistics().patterns)
    assert hub.statistics().published == 0
    assert hub.clients.violations.counts == {}


def test_the_embedder_holds_secrets(hub: Hub, connect: Connect) -> None:
    assert hub.whoami() == own_key()
    inbox = hub.subscribe(hub.whoami() + b"/x")
    everything = hub.subscribe(b"")
    connect().publish(own_key() + b"/x", b"secret")
    assert inbox.receive(timeout=5).payload == b"secret"
    assert len(everything) == 0


def test_the_callers_timeout_passes(hub: Hub) -> None:
    inbox = hub.subscribe(b"a")
    waits: list[Callable[[], object]] = [inbox.receive, lambda: inbox.receive(timeout=30), lambda: next(iter(inbox))]
    for get in waits:
        with pytest.raises(gevent.Timeout) as caught, gevent.Timeout(0.001) as mine:
            get()
        assert caught.value is mine
    hub.publish(b"a", b"x")
    assert inbox.receive(timeout=0).payload == b"x"


def test_what_is_here_may_be_nothing(hub: Hub) -> None:
    inbox = hub.subscribe(b"a")
    assert inbox.receive_many(timeout=0) == []
    with pytest.raises(TimeoutError):
        inbox.receive_many(timeout=0.001)
    with pytest.raises(TimeoutError):
        inbox.receive(timeout=0)


def test_several_greenlets_wait_for_one_inbox(hub: Hub) -> None:
    inbox = hub.subscribe(b"a")
    getting = [gevent.spawn(inbox.receive, timeout=10) for _ in range(3)]
    gevent.sleep(0)
    for number in range(3):
        hub.publish(b"a", b"%d" % number)
        gevent.sleep(0)
    assert sorted(one.get().payload for one in getting) == [b"0", b"1", b"2"]


def test_a_wait_is_no_longer_while_others_take_what_comes(hub: Hub) -> None:
    inbox = hub.subscribe(b"a")
    waiting = gevent.spawn(inbox.receive, timeout=0.05)
    gevent.sleep(0)
    for _ in range(200):
        hub.publish(b"a", b"x")
        assert inbox.receive(timeout=0).payload == b"x"
        gevent.sleep(0.005)
        if waiting.ready():
            break
    assert isinstance(waiting.exception, TimeoutError)


def test_a_full_inbox(make_hub: MakeHub) -> None:
    hub = make_hub(limits=Limits(queued_packets=2, queued_bytes=100))
    inbox = hub.subscribe(b"a")
    for number in range(5):
        hub.publish(b"a", b"%d" % number)
    assert (len(inbox), inbox.lost) == (2, {"overflow": 3})
    assert [inbox.receive().payload for _ in range(2)] == [b"0", b"1"]
    hub.publish(b"a", b"x" * 80)
    hub.publish(b"a", b"y" * 80)
    hub.publish(b"a", b"z")
    assert [message.payload[:1] for message in (inbox.receive(), inbox.receive())] == [b"x", b"z"]
    statistics = hub.statistics()
    assert (statistics.published, statistics.delivered, statistics.lost) == (8, 4, {"overflow": 4})


def test_the_end_of_the_hub(hub: Hub) -> None:
    inbox = hub.subscribe(b"a")
    iterating = gevent.spawn(list, hub.subscribe(b"a"))
    getting = gevent.spawn(hub.subscribe(b"b").receive)
    gevent.sleep(0)
    hub.publish(b"a", b"x")
    hub.stop()
    assert inbox.receive().payload == b"x"  # what waited can still be taken
    with pytest.raises(DisconnectedError):
        inbox.receive()
    assert [message.payload for message in iterating.get(timeout=10)] == [b"x"]
    with pytest.raises(DisconnectedError):
        getting.get(timeout=10)


def test_a_closed_inbox(hub: Hub) -> None:
    with hub.subscribe(b"a") as inbox:
        hub.publish(b"a", b"1")
    hub.publish(b"a", b"2")
    assert inbox.receive(timeout=0).payload == b"1"
    with pytest.raises(DisconnectedError):
        inbox.receive()
    assert list(inbox) == []
    eventually(lambda: not hub.statistics().patterns)


def test_a_tap_is_no_interest(hub: Hub, connect: Connect) -> None:
    tap, secrets = hub.tap(), hub.tap(secrets=True)
    peer = connect()
    peer.publish(b"a", b"1")
    peer.publish(own_key() + b"/x", b"2")
    peer.barrier()
    assert [message.payload for message in (tap.receive(timeout=5),)] == [b"1"]
    assert [secrets.receive(timeout=5).payload for _ in range(2)] == [b"1", b"2"]
    assert (len(tap), hub.statistics().patterns) == (0, 0)
    tap.unsubscribe()
    secrets.unsubscribe()
    peer.publish(b"a", b"3")
    peer.barrier()
    assert len(tap) == len(secrets) == 0
