"""The embedding process as a sender."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import Peer, eventually, own_key

from sbuslib import Hub
from sbuslib.errors import KeyFormatError, PayloadError, SbusError, UsageError
from sbuslib.wire.packets import Message

Connect = Callable[..., Peer]


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
    with pytest.raises(KeyFormatError):
        hub.publish(b"a\0b")
    with pytest.raises(KeyFormatError):
        hub.publish(["a"])  # type: ignore[arg-type]
    with pytest.raises(PayloadError):
        hub.publish(b"a", b"x" * 409_600)
    with pytest.raises(KeyFormatError):
        hub.publish(b"!/x")
    with pytest.raises(KeyFormatError):
        hub.subscribe(["a"])  # type: ignore[arg-type]
    with pytest.raises(KeyFormatError):
        hub.subscribe(b"ok", b"!/cred/*/*/*/x")
    with pytest.raises(SbusError):
        hub.subscribe(b"x" * 100_000)
    with pytest.raises(UsageError):
        hub.subscribe()
    eventually(lambda: not hub.statistics().patterns)
    assert hub.statistics().published == 0
    assert hub._clients.violations.counts == {}


def test_the_embedder_holds_secrets(hub: Hub, connect: Connect) -> None:
    assert hub.whoami() == own_key()
    inbox = hub.subscribe(hub.whoami() + b"/x")
    everything = hub.subscribe(b"")
    connect().publish(own_key() + b"/x", b"secret")
    assert inbox.receive(timeout=5).payload == b"secret"
    assert len(everything) == 0
