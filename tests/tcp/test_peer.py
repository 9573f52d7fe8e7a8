"""A peer's life: starting, stopping, threads, unforeseen errors."""

from __future__ import annotations

import gevent
import pytest
from support import eventually, in_thread

from sbuslib.errors import NameFormatError, PayloadError, ServiceError, StateError, UsageError
from sbuslib.tcp import Peer

from .conftest import Connect, Make


def test_an_unforeseen_error_ends_the_peer_and_serve_forever_raises_it(
    make_peer: Make, raw: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = make_peer()
    monkeypatch.setattr(peer, "take_command", lambda link, command: 1 // 0)
    raw(peer).send(b"sub a\n")
    with pytest.raises(ServiceError, match=r"peer at 127\.0\.0\.1:\d+ ended by an unforeseen error: ZeroDivisionError"):
        peer.serve_forever()
    assert not peer.started
    monkeypatch.undo()
    peer.start()  # afresh
    peer.greenlets.check()


def test_stop_delivers_what_was_published(make_peer: Make) -> None:
    one, two = make_peer(), make_peer()
    inbox = two.subscribe("a")
    two.connect(one.address, keep=False)
    one.wait_for_subscriber("a", timeout=10)
    one.publish_many([("a", b"x" * 1_000)] * 2_000)
    one.stop(10)
    got = 0
    while got < 2_000:
        got += len(inbox.receive_many(timeout=10))
    assert one.statistics().lost == 0
    one.stop()
    one.close()


def test_wrong_calls_raise_and_stop_ends_serve_forever(make_peer: Make) -> None:
    peer = Peer("127.0.0.1:0")
    assert (peer.closed, peer.started) == (True, False)
    for act in (lambda: peer.publish("a", b""), lambda: peer.subscribe("a"), lambda: peer.publish_many([("a", b"")])):
        with pytest.raises(StateError):
            act()
    with peer:
        assert peer.started
        with pytest.raises(StateError):
            peer.start()
        with pytest.raises(UsageError):
            peer.subscribe()
        with pytest.raises(NameFormatError):
            peer.publish("a b", b"")
        with pytest.raises((PayloadError, TypeError)):
            peer.publish_many([("a", "text")])  # type: ignore[list-item]
        with pytest.raises(TimeoutError):
            peer.wait_for_subscriber("a", timeout=0.001)
        with pytest.raises(TimeoutError):
            peer.subscribe("a").receive(timeout=0.001)
    assert peer.closed
    waiting = gevent.spawn(peer.serve_forever)
    eventually(lambda: peer.started)
    peer.stop()
    waiting.get(timeout=10)


def test_another_thread_is_refused(make_peer: Make) -> None:
    peer = make_peer()
    assert isinstance(in_thread(lambda: peer.subscribe("a")), StateError)
