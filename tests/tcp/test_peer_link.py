"""One connection of a peer: the commands on the wire, time limits, slow ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import gevent
import pytest
from msgspec import structs
from support import PATIENCE, eventually

from sbuslib.tcp import Publish, TcpLimits, peer_link

from .conftest import Connect, Make, Raw


def test_the_three_commands_on_the_wire(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    inbox = peer.subscribe("//myorg/chat/")
    connection = raw(peer)
    connection.expect(b"sub //myorg/chat/\n")
    connection.send(b"pub //myorg/chat/main 5 hello\npub //other 1 x\nsub //myorg/\n")
    assert inbox.receive(timeout=10) == Publish("//myorg/chat/main", b"hello")
    peer.wait_for_subscriber("//myorg/news", timeout=10)
    peer.publish("//myorg/news", b"\x00 \n")
    peer.publish("//elsewhere", b"x")
    peer.publish("//myorg/news", b"")
    connection.expect(b"pub //myorg/news 3 \x00 \n\npub //myorg/news 0 \n")
    inbox.unsubscribe()
    connection.expect(b"unsub //myorg/chat/\n")
    assert peer.statistics().unwanted == 1


def test_subscriptions_are_counted(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    connection = raw(peer)
    connection.send(b"sub a\nsub a\nunsub a\nunsub never\nsub begin\n")
    peer.wait_for_subscriber("begin", timeout=10)
    assert peer.subscriber_count("a") == 1
    connection.send(b"unsub a\nunsub a\nsub end\n")
    peer.wait_for_subscriber("end", timeout=10)
    assert peer.subscriber_count("a") == 0
    assert peer.statistics().ignored == 2


def test_one_copy_however_many_substrings_match(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    connection = raw(peer)
    connection.send(b"sub //a\nsub b\nsub \nsub /b\nsub end\n")
    peer.wait_for_subscriber("end", timeout=10)
    peer.publish("//a/b", b"1")
    peer.publish_many([("//a/b", b"2"), ("x", b"3")])
    connection.expect(b"pub //a/b 1 1\npub //a/b 1 2\npub x 1 3\n")


def test_a_message_is_neither_sent_back_nor_passed_on(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    one, two = raw(peer), raw(peer)
    inbox = peer.subscribe("//a")
    for connection in (one, two):
        connection.expect(b"sub //a\n")
        connection.send(b"sub //a\n")
    peer.wait_for_subscriber("//a", 2, timeout=10)
    one.send(b"pub //a 1 x\n")
    assert inbox.receive(timeout=10).data == b"x"
    peer.publish("//a", b"own")
    for connection in (one, two):
        connection.expect(b"pub //a 3 own\n")
    assert len(inbox) == 0  # nor does this end get its own


def test_commands_before_a_fault_are_carried_out_and_it_is_logged_once(
    make_peer: Make, raw: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    peer = make_peer()
    inbox = peer.subscribe("a")
    for _ in range(3):
        connection = raw(peer)
        connection.expect(b"sub a\n")
        connection.send(b"pub a 1 x\npub a 1 y\nnonsense\npub a 1 z\n")
        connection.expect_end()
    assert b"".join(inbox.receive(timeout=10).data for _ in range(6)) == b"xyxyxy"
    assert len(inbox) == 0
    eventually(lambda: peer.statistics().violations == {"malformed command": 3})
    assert ["malformed command" in message for message in caplog.messages] == [True]


def test_the_end_inside_a_command_is_a_fault(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    connection = raw(peer)
    connection.send(b"pub a 10 half")
    connection.socket.shutdown(1)
    eventually(lambda: peer.statistics().violations == {"ended inside a command": 1})


@pytest.mark.parametrize("half", [b"pu", b"pub a 100 half", b"sub half"])
def test_a_half_sent_command_has_a_time_limit(make_peer: Make, raw: Connect, limits: TcpLimits, half: bytes) -> None:
    peer = make_peer(limits=structs.replace(limits, command_seconds=0.05))
    patient = raw(peer)
    patient.send(b"sub x\n")
    connection = raw(peer)
    connection.send(half)
    connection.expect_end()
    assert peer.statistics().violations == {"command not finished in time": 1}
    assert len(peer.links) == 1  # who sends nothing at all may stay


def test_single_bytes_do_not_extend_the_time_limit(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=structs.replace(limits, command_seconds=0.05))
    connection = raw(peer)
    connection.send(b"pub a 100000 ")
    eventually(lambda: peer.links)
    while peer.links:
        with suppress(ConnectionError):
            connection.send(b"x")
        gevent.sleep(0.001)
    assert peer.statistics().violations == {"command not finished in time": 1}


def test_only_a_peer_that_does_not_read_loses_messages(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=structs.replace(limits, queued_bytes=100_000))
    other = make_peer()
    slow = raw(peer)
    slow.send(b"sub a\n")
    inbox = other.subscribe("a")
    other.connect(peer.address)
    peer.wait_for_subscriber("a", 2, timeout=10)
    [slow_link] = [link for link in peer.links if link.remote.port == slow.socket.getsockname()[1]]
    count = 0
    while not slow_link.lost:
        assert peer.publish_many([("a", b"x" * 1_000)] * 50, patience=0.001) == 50
        count += 50
        gevent.sleep(0)
        assert slow_link.queued_bytes <= 100_000
    got = 0
    while got < count:
        got += len(inbox.receive_many(timeout=10))
    assert got == count
    assert slow_link.slow
    assert sum(link.lost for link in peer.links) == slow_link.lost == peer.statistics().lost


def test_a_peer_that_reads_nothing_for_long_is_disconnected(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=structs.replace(limits, stall_seconds=0.05))
    connection = raw(peer)
    connection.send(b"sub a\n")
    peer.wait_for_subscriber("a", timeout=10)
    peer.publish_many([("a", b"x" * 1_000_000)] * 15)
    eventually(lambda: not peer.links)
    assert peer.statistics().violations == {"takes nothing": 1}
    assert peer.statistics().lost == 15


def test_a_closed_connection_keeps_no_received_messages(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    connection = raw(peer)
    connection.send(b"pub a 1 x\npub a 1000000 " + bytes(500_000))
    eventually(lambda: peer.links and peer.links[0]._parser.pending > 400_000)
    (link,) = peer.links
    connection.socket.close()
    eventually(lambda: link.closed)
    assert link._parser.pending == 0


class _Recorder:
    """A receiver in the peer's own process."""

    def __init__(self, on_messages: Callable[[], None]) -> None:
        self._on_messages = on_messages

    def take(self, messages: Sequence[Publish], source: object) -> None:
        self._on_messages()


def fill(connection: Raw, data: bytes) -> None:
    """Send until the kernel takes no more, without letting any greenlet run."""
    connection.socket.settimeout(0)
    with suppress(BlockingIOError):
        while True:
            connection.socket.send(data)


@pytest.mark.parametrize("name", [b"//flood", b"//%d"], ids=["one name", "new names"])
def test_one_whose_socket_always_has_data_holds_others_for_a_piece(make_peer: Make, raw: Connect, name: bytes) -> None:
    peer = make_peer()
    stranger, other = raw(peer), raw(peer)
    eventually(lambda: len(peer.links) == 2)
    [link] = [link for link in peer.links if link.remote.port == stranger.socket.getsockname()[1]]
    asked: list[int] = []
    answered: list[int] = []

    def on_first() -> None:
        if not asked:
            asked.append(link.received)
            other.socket.send(b"pub ask 1 x\n")

    peer.attach(_Recorder(on_first), "//first")
    peer.attach(_Recorder(lambda: answered.append(link.received)), "ask")
    message = b"pub %b 1 x\n" % name
    fill(stranger, b"pub //first 1 x\n" + b"".join(message % n if b"%" in message else message for n in range(100_000)))
    eventually(lambda: answered)
    assert (answered[0] - asked[0]) * len(message) < 4 * 65_536


def test_commands_of_one_piece_keep_their_order_over_several_turns(
    make_peer: Make, raw: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_link, "_TURN_SECONDS", -1.0)
    peer = make_peer()
    inbox = peer.subscribe("a")
    connection = raw(peer)
    connection.expect(b"sub a\n")
    pieces = [b"pub a%d 1 x\npub b 1 x\nsub %d\npub a%d 1 x\n" % (n, n, n) for n in range(100)]
    connection.send(b"".join(pieces) + b"pub a 3 end\n")
    got: list[Publish] = []
    while not got or got[-1].data != b"end":
        got += inbox.receive_many(timeout=PATIENCE)
    assert [message.name for message in got] == [f"a{n // 2}" for n in range(200)] + ["a"]
    assert peer.statistics().substrings == 100
    assert peer.held_bytes == sum(len(str(n)) for n in range(100))


def test_a_peer_that_stops_between_two_turns_takes_nothing_more(
    make_peer: Make, raw: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_link, "_TURN_SECONDS", -1.0)
    peer = make_peer()
    came: list[None] = []

    def on_message() -> None:
        came.append(None)
        if len(came) == 3:
            gevent.spawn(peer.stop, 0)

    peer.attach(_Recorder(on_message), "a")
    raw(peer).send(b"".join(b"pub a%d 1 x\n" % n for n in range(1_000)))
    eventually(lambda: peer.closed)
    assert len(came) == 3
    assert peer.held_bytes == 0
