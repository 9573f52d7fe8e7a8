"""``authorize=``: what it is asked, what its answers do, and what becomes of its errors."""

from __future__ import annotations

import os
from contextlib import nullcontext

import gevent
import pytest
from accounting import connection_of
from gevent import GreenletExit
from support import Connect, MakeHub, eventually

from sbuslib import Hub, Limits
from sbuslib.core import publisher
from sbuslib.reasons import Reason
from sbuslib.secrets import Credentials


class Asked:
    """An ``authorize=`` that refuses keys that hold ``no``, and notes what it was asked."""

    def __init__(self) -> None:
        self.questions: list[tuple[str, bytes]] = []

    def __call__(self, credentials: Credentials, verb: str, key: bytes) -> bool:
        assert credentials == Credentials(gid=os.getgid(), uid=os.getuid(), pid=os.getpid())
        self.questions.append((verb, key))
        if b"error" in key:
            raise RuntimeError("no answer")
        return b"no" not in key


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_authorize_is_asked_for_each_verb(make_hub: MakeHub, connect: Connect, asked: Asked) -> None:
    make_hub(authorize=asked)
    peer = connect()
    peer.subscribe(b"a/", b"b")
    peer.publish(b"a/1", b"x")
    peer.send(b"UNSUB b", b"CMSG echo/on")
    assert peer.receive() == b"MSG a/1\0x"
    peer.barrier()
    assert asked.questions == [("subscribe", b"a/"), ("subscribe", b"b"), ("publish", b"a/1")]


def test_authorize_is_not_asked_about_a_pattern_beyond_the_limits(
    make_hub: MakeHub, connect: Connect, asked: Asked
) -> None:
    """The answer about one of 400,000 segments may take long."""
    make_hub(authorize=asked)
    peer = connect()
    peer.send(b"SUB " + b"/" * 400_000)
    assert peer.is_disconnected()
    assert asked.questions == []


def test_authorize_answers_are_remembered(make_hub: MakeHub, connect: Connect, asked: Asked) -> None:
    make_hub(authorize=asked)
    one, other = connect(), connect()
    one.subscribe(b"")
    for number in range(100):
        for peer in (one, other):
            peer.publish(b"a", b"%d" % number)
            peer.barrier()
    assert asked.questions == [("subscribe", b""), ("publish", b"a"), ("publish", b"a")]  # once for each client
    assert len(one.pending()) == 200


def test_authorize_answers_of_all_clients_are_bounded_together(
    make_hub: MakeHub, connect: Connect, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one user's clients may have remembered between them; each goes on, and is asked about more often."""
    monkeypatch.setattr(publisher, "ALLOWED_KEY", 200 - len(b"MSG kk\0"))
    hub = make_hub(authorize=asked, limits=Limits(allowed_bytes=2 * 10 * 200))
    one, other = connect(), connect()
    for number in range(8):
        one.publish(b"k%d" % number)
    one.barrier()
    for number in range(8):
        other.publish(b"k%d" % number)
    other.barrier()
    assert hub.context.quotas.allowed.used <= 10 * 200
    before = len(asked.questions)
    for number in range(8):
        one.publish(b"k%d" % number)
    one.barrier()
    assert len(asked.questions) == before
    for peer in (one, other):
        peer.close()
    eventually(hub.context.quotas.is_clear)  # its patterns are forgotten in a turn of its user's


@pytest.mark.parametrize("key", [b"no", b"error"])
@pytest.mark.parametrize("verb", ["publish", "subscribe"])
def test_authorize_refuses(
    make_hub: MakeHub, connect: Connect, asked: Asked, verb: str, key: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    hub = make_hub(authorize=asked)
    bad, good = connect(), connect()
    good.subscribe(b"")
    bad.publish(b"before", b"x")
    bad.send(b"MSG %b\0x" % key if verb == "publish" else b"SUB " + key, b"MSG after\0x")
    while (packet := bad.receive()) != b"":
        assert packet == b"never"
    assert good.pending() == [b"MSG before\0x"]
    assert hub.statistics().violations == {{"publish": "publishing", "subscribe": "subscription"}[verb] + " refused": 1}
    assert hub.statistics().clients == 1
    assert any("refused" in record.getMessage() for record in caplog.records)


def test_an_authorize_function_that_fails_does_not_fill_the_log(
    make_hub: MakeHub, connect: Connect, asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that has found out how to make it fail may come back as often as it likes."""
    hub = make_hub(authorize=asked)
    for number in range(20):
        peer = connect()
        peer.publish(b"error/%d" % number)
        assert peer.is_disconnected()
    assert hub.statistics().violations == {"publishing refused": 20}
    assert 1 <= len(caplog.records) <= 2  # that it failed, and that the client was let go


@pytest.mark.parametrize("error", [gevent.Timeout, GreenletExit, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("packet", [b"SUB raises", b"MSG raises\0x"])
def test_an_authorize_function_that_raises_a_base_exception_refuses(
    make_hub: MakeHub, connect: Connect, error: type[BaseException], packet: bytes
) -> None:
    """SystemExit and KeyboardInterrupt are raised in the main greenlet besides, as from any callback."""

    def authorize(credentials: Credentials, verb: str, key: bytes) -> bool:
        if key == b"raises":
            raise error
        return True

    hub = make_hub(authorize=authorize)
    bad, good = connect(), connect()
    good.subscribe(b"a")
    bad.send(packet)
    with pytest.raises(error) if error in (SystemExit, KeyboardInterrupt) else nullcontext():
        eventually(lambda: hub.statistics().clients == 1)
        gevent.sleep(0.01)
    assert sum(hub.statistics().violations.values()) == hub.context.authorization.failures == 1
    assert bad.is_disconnected()
    good.publish(b"a", b"still served")
    assert good.receive() == b"MSG a\0still served"


def test_authorize_routes_are_never_stale(make_hub: MakeHub, connect: Connect) -> None:
    make_hub(authorize=lambda *_: True)
    one, other = connect(), connect()
    for _ in range(3):
        one.publish(b"a", b"1")
        one.barrier()
        other.subscribe(b"a")
        one.publish(b"a", b"2")
        one.barrier()
        assert other.pending() == [b"MSG a\x002"]
        other.send(b"UNSUB a")
        other.barrier()
    # In one turn of the hub, too: what was published after the SUB comes back, what was before does not.
    one.send(b"MSG a\x003", b"SUB a", b"MSG a\x004", b"UNSUB a", b"MSG a\x005")
    assert one.pending() == [b"MSG a\x004"]


def test_a_message_whose_publisher_is_disconnected_when_authorize_says_yes_goes_nowhere(
    make_hub: MakeHub, connect: Connect
) -> None:
    def authorize(credentials: Credentials, verb: str, key: bytes) -> bool:
        if key == b"bad":
            hub.clients.kick(outbound, Reason.UNKNOWN_VERB)
        return True

    hub = make_hub(authorize=authorize)
    reader, publisher = connect(), connect()
    outbound = connection_of(hub, publisher).outbound
    reader.subscribe(b"")
    publisher.publish(b"good")
    publisher.publish(b"bad")
    assert publisher.is_disconnected()
    assert reader.pending() == [b"MSG good\0"]


def test_authorize_may_publish(make_hub: MakeHub, connect: Connect) -> None:
    """An audit log: what a callback publishes goes out before the message that it was asked about."""
    hubs: list[Hub] = []

    def audit(credentials: Credentials, verb: str, key: bytes) -> bool:
        hubs[0].publish(b"audit", verb.encode() + b" " + key)
        return True

    hubs.append(make_hub(authorize=audit))
    inbox = hubs[0].subscribe(b"")
    peer = connect()
    peer.publish(b"a", b"x")
    peer.barrier()
    assert [(m.key, m.payload) for m in (inbox.receive(timeout=5), inbox.receive(timeout=5))] == [
        (b"audit", b"publish a"),
        (b"a", b"x"),
    ]
