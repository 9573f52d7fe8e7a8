"""Peers on the wire: byte scripts over TCP, quotas, time limits, slow peers, lifecycle."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent
import msgspec
import pytest
from support import eventually

from sbuslib.errors import (
    AddressError,
    DisconnectedError,
    NameFormatError,
    PayloadError,
    ServiceError,
    StateError,
    UsageError,
)
from sbuslib.tcp import Peer, Publish, TcpLimits
from sbuslib.tcp.transport import is_loopback

Make = Callable[..., Peer]
Connect = Callable[..., Any]


def with_limits(limits: TcpLimits, **changes: Any) -> TcpLimits:
    return msgspec.structs.replace(limits, **changes)


# -- the three commands -----------------------------------------------------------------------------


def test_the_three_commands_on_the_wire(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    inbox = peer.subscribe("//myorg/chat/")
    connection = raw(peer)
    connection.expect(b"sub //myorg/chat/\n")
    connection.send(b"pub //myorg/chat/main 5 hello\npub //other 1 x\nsub //myorg/\n")
    assert inbox.get(10) == Publish("//myorg/chat/main", b"hello")
    peer.wait_for_subscriber("//myorg/news", timeout=10)
    peer.publish("//myorg/news", b"\x00 \n")
    peer.publish("//elsewhere", b"x")
    peer.publish("//myorg/news", b"")
    connection.expect(b"pub //myorg/news 3 \x00 \n\npub //myorg/news 0 \n")
    inbox.close()
    connection.expect(b"unsub //myorg/chat/\n")
    assert peer.statistics().unwanted == 1


def test_commands_that_come_byte_by_byte(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    inbox = peer.subscribe("chat")
    connection = raw(peer)
    for byte in b"pub //chat 5 hello\nsub x\n":
        connection.send(bytes([byte]))
        gevent.sleep(0)
    assert inbox.get(10) == Publish("//chat", b"hello")
    peer.wait_for_subscriber("x", timeout=10)


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
    assert inbox.get(10).data == b"x"
    peer.publish("//a", b"own")
    for connection in (one, two):
        connection.expect(b"pub //a 3 own\n")
    assert len(inbox) == 0  # nor does this end get its own


def test_commands_before_a_fault_are_carried_out(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    inbox = peer.subscribe("a")
    connection = raw(peer)
    connection.expect(b"sub a\n")
    connection.send(b"pub a 1 x\npub a 1 y\nnonsense\npub a 1 z\n")
    connection.expect_end()
    assert [inbox.get(10).data, inbox.get(10).data] == [b"x", b"y"]
    assert len(inbox) == 0
    assert peer.statistics().breaches == {"unknown verb": 1}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (b"pub a x 1\n", "length is not a number"),
        (b"pub a 1048577 ", "data too long"),
        (b"pub a 1 xy\n", "no LF after the data"),
        (b"sub \xff\n", "name is not UTF-8"),
    ],
)
def test_a_bad_line_is_logged_once_and_counted(
    make_peer: Make, raw: Connect, caplog: pytest.LogCaptureFixture, script: bytes, reason: str
) -> None:
    peer = make_peer()
    with caplog.at_level(logging.WARNING, "sbuslib"):
        for _ in range(3):
            connection = raw(peer)
            connection.send(script)
            connection.expect_end()
    eventually(lambda: peer.statistics().breaches == {reason: 3})
    assert [reason in record.getMessage() for record in caplog.records] == [True]


def test_the_end_inside_a_command_is_a_fault(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    connection = raw(peer)
    connection.send(b"pub a 10 half")
    connection.socket.shutdown(1)
    eventually(lambda: peer.statistics().breaches == {"ended inside a command": 1})


# -- bounds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [b"pu", b"pub a 100 half", b"sub half"])
def test_a_half_sent_command_has_a_time_limit(make_peer: Make, raw: Connect, limits: TcpLimits, half: bytes) -> None:
    peer = make_peer(limits=with_limits(limits, command_seconds=0.05))
    patient = raw(peer)
    patient.send(b"sub x\n")
    connection = raw(peer)
    connection.send(half)
    connection.expect_end()
    assert peer.statistics().breaches == {"command not finished in time": 1}
    assert len(peer.links) == 1  # who sends nothing at all may stay


def test_single_bytes_do_not_extend_the_time_limit(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=with_limits(limits, command_seconds=0.05))
    connection = raw(peer)
    connection.send(b"pub a 100000 ")
    eventually(lambda: peer.links)
    while peer.links:
        with suppress(ConnectionError):
            connection.send(b"x")
        gevent.sleep(0.001)
    assert peer.statistics().breaches == {"command not finished in time": 1}


def test_only_a_peer_that_does_not_read_loses_messages(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=with_limits(limits, queued_bytes=100_000))
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
        got += len(inbox.get_many(timeout=10))
    assert got == count
    assert slow_link.slow
    assert sum(link.lost for link in peer.links) == slow_link.lost == peer.statistics().lost


def test_a_peer_that_reads_nothing_for_long_is_disconnected(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=with_limits(limits, stall_seconds=0.05))
    connection = raw(peer)
    connection.send(b"sub a\n")
    peer.wait_for_subscriber("a", timeout=10)
    peer.publish_many([("a", b"x" * 1_000_000)] * 15)
    eventually(lambda: not peer.links)
    assert peer.statistics().breaches == {"takes nothing": 1}
    assert peer.statistics().lost == 15


def test_a_peer_with_too_many_substrings_is_disconnected(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=with_limits(limits, substrings=3))
    connection = raw(peer)
    connection.send(b"sub a\nsub a\nsub b\nsub c\nunsub c\nsub d\nsub e\n")
    connection.expect_end()
    assert peer.statistics().breaches == {"too many substrings": 1}


def test_a_peer_with_too_many_bytes_of_substrings_is_disconnected(
    make_peer: Make, raw: Connect, limits: TcpLimits
) -> None:
    peer = make_peer(limits=with_limits(limits, substring_bytes=10))
    connection = raw(peer)
    connection.send(b"sub aaaaaaa\nunsub aaaaaaa\nsub bbbbbbb\nsub cccc\n")
    connection.expect_end()
    assert peer.statistics().breaches == {"too many substrings": 1}


def test_connections_of_one_address_are_bounded_and_leave_room_for_others(
    make_peer: Make, raw: Connect, limits: TcpLimits
) -> None:
    peer = make_peer(limits=with_limits(limits, address_links=2))
    first, _ = raw(peer), raw(peer)
    eventually(lambda: len(peer.links) == 2)
    raw(peer).expect_end()
    raw(peer, "127.0.0.2").send(b"sub other\n")
    peer.wait_for_subscriber("other", timeout=10)
    first.socket.close()
    eventually(lambda: len(peer.links) == 2)
    raw(peer).send(b"sub again\n")
    peer.wait_for_subscriber("again", timeout=10)
    assert peer.statistics().breaches == {"too many connections of one address": 1}


def test_substrings_of_one_address_are_bounded(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=with_limits(limits, address_substrings=3))
    one, two = raw(peer), raw(peer)
    one.send(b"sub a\nsub b\n")
    peer.wait_for_subscriber("b", timeout=10)
    two.send(b"sub c\nsub d\n")
    two.expect_end()
    raw(peer, "127.0.0.2").send(b"sub d\n")
    peer.wait_for_subscriber("d", timeout=10)


def test_queued_bytes_of_one_address_are_bounded(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=with_limits(limits, address_queued_bytes=2_500))
    links = [raw(peer) for _ in range(2)]
    for connection in links:
        connection.send(b"sub a\n")
    peer.wait_for_subscriber("a", 2, timeout=10)
    peer.publish_many([("a", b"x" * 988)])  # 998 bytes to each of two: nothing yields in between
    peer.publish("a", b"x" * 988)
    assert sum(link.lost for link in peer.links) == 2
    for connection in links:
        connection.expect(b"pub a 988 " + b"x" * 988 + b"\n")


def test_the_number_of_connections_is_bounded(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=with_limits(limits, links=1))
    raw(peer).send(b"sub a\n")
    peer.wait_for_subscriber("a", timeout=10)
    raw(peer).expect_end()


def test_a_full_inbox_counts_what_it_loses(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=with_limits(limits, inbox_messages=3))
    inbox, other = peer.subscribe("a"), peer.subscribe("end")
    raw(peer).send(b"pub a 1 1\npub a 1 2\npub a 1 3\npub a 1 4\npub a 1 5\npub end 1 x\n")
    other.get(10)
    assert inbox.lost == 2
    assert [message.data for message in inbox.get_many()] == [b"1", b"2", b"3"]


def test_names_count_against_the_bytes_of_an_inbox(make_peer: Make, raw: Connect, limits: TcpLimits) -> None:
    peer = make_peer(limits=with_limits(limits, inbox_bytes=5_000))
    inbox, other = peer.subscribe("a"), peer.subscribe("end")
    connection = raw(peer)
    for _ in range(10):
        connection.send(b"pub %b 1 x\n" % (b"a" * 999))
    connection.send(b"pub end 1 x\n")
    other.get(10)
    assert (len(inbox), inbox.lost) == (5, 5)
    inbox.get_many(2)
    assert inbox._bytes == 3_000
    inbox.get_many()
    assert inbox._bytes == 0


def test_a_closed_connection_keeps_no_received_messages(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    connection = raw(peer)
    connection.send(b"pub a 1 x\npub a 1000000 " + bytes(500_000))
    eventually(lambda: peer.links and peer.links[0]._parser.pending > 400_000)
    (link,) = peer.links
    connection.socket.close()
    eventually(lambda: link.closed)
    assert link._parser.pending == 0
    assert not link._parser._headers


# -- the application's side -------------------------------------------------------------------------


def test_messages_keep_their_order(make_peer: Make) -> None:
    one, two = make_peer(), make_peer()
    inbox = two.subscribe("//n/")
    two.connect(one.address)
    one.wait_for_subscriber("//n/", timeout=10)
    sent = [(f"//n/{number % 3}", b"%d" % number) for number in range(2_000)]
    assert one.publish_many(sent[:1_500]) == 1_500
    for name, data in sent[1_500:]:
        one.publish(name, data)
    got: list[tuple[str, bytes]] = []
    while len(got) < len(sent):
        got += [(message.name, message.data) for message in inbox.get_many(7, timeout=10)]
    assert got == sent
    assert one.flush(10)
    assert one.link_statistics()[0].sent == 2_000


def test_several_inboxes_subscribe_once_at_other_peers(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    connection = raw(peer)
    one, two = peer.subscribe("a", "b"), peer.subscribe("a")
    eventually(lambda: peer.links)
    connection.expect(b"sub a\nsub b\n")
    one.close()
    connection.expect(b"unsub b\n")
    connection.send(b"pub a 1 x\n")
    assert two.get(10).data == b"x"
    two.close()
    connection.expect(b"unsub a\n")
    with pytest.raises(DisconnectedError):
        two.get()
    assert list(two) == []


def test_retained_data_is_sent_to_later_subscribers(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    early = raw(peer)
    early.send(b"sub //state\n")
    peer.wait_for_subscriber("//state", timeout=10)
    peer.retain("//state/door", b"open")
    peer.retain("//state/door", b"shut")
    early.expect(b"pub //state/door 4 open\npub //state/door 4 shut\n")
    late = raw(peer)
    late.send(b"sub //state\nsub door\nsub //state\n")
    late.expect(b"pub //state/door 4 shut\n")
    peer.wait_for_subscriber("//state", 2, timeout=10)
    peer.release("//state/door")
    peer.publish("//state/door", b"end")
    late.expect(b"pub //state/door 3 end\n")


def test_a_lost_connection_is_made_again(make_peer: Make, limits: TcpLimits) -> None:
    first = make_peer()
    other = make_peer()
    inbox = other.subscribe("a")
    address = first.address
    other.connect(address)
    first.wait_for_subscriber("a", timeout=10)
    with pytest.raises(StateError):
        other.connect(address)
    first.stop()
    eventually(lambda: not other.links)
    again = make_peer(address)
    again.wait_for_subscriber("a", timeout=20)
    again.publish("a", b"x")
    assert inbox.get(10).data == b"x"
    other.disconnect(address)
    eventually(lambda: not again.links)
    assert not other.is_dialling(address)


def test_connect_without_waiting_returns_at_once(make_peer: Make) -> None:
    one = make_peer()
    address = one.address
    one.stop()
    other = make_peer(None)
    with pytest.raises(ConnectionRefusedError):
        other.connect(address)
    assert not other.is_dialling(address)
    other.connect(address, wait=False)
    one = make_peer(address)
    eventually(lambda: other.links)
    assert other.address == ""
    with pytest.raises(UsageError):
        one.connect(one.address)


def test_an_impossible_host_name_is_refused(make_peer: Make) -> None:
    peer = make_peer(None, insecure=True)
    with pytest.raises(OSError, match="cannot be the name of a host"):
        peer.connect("a..b:9")
    peer.connect("a..b:9", wait=False)
    gevent.sleep(0)
    assert peer.is_dialling("a..b:9")
    peer.greenlets.check()
    with pytest.raises(AddressError, match="cannot be the name of a host"):
        is_loopback("a..b")


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
        got += len(inbox.get_many(timeout=10))
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
            peer.subscribe("a").get(0.001)
    assert peer.closed
    waiting = gevent.spawn(peer.serve_forever)
    eventually(lambda: peer.started)
    peer.stop()
    waiting.get(timeout=10)


def test_another_thread_is_refused(make_peer: Make) -> None:
    peer = make_peer()
    errors: list[BaseException] = []

    def use() -> None:
        try:
            peer.subscribe("a")
        except StateError as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(errors) == 1


@pytest.mark.parametrize(
    "address", ["", "host", "1.2.3.4", "h:x", "h:65536", "::1:80", "[::1]", "a b:1", "h:-1", "h:+1"]
)
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(AddressError):
        Peer(address)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_listening_for_other_machines_needs_tls_or_insecure(address: str) -> None:
    with pytest.raises(UsageError, match="other machines"):
        Peer(address)
    Peer(address, insecure=True)


def test_listening_without_a_host_is_loopback(make_peer: Make) -> None:
    assert make_peer(":0").address.startswith("127.0.0.1:")


def test_a_peer_listens_on_ipv6(make_peer: Make) -> None:
    try:
        peer = make_peer("[::1]:0")
    except OSError:
        pytest.skip("there is no IPv6 here")
    other = make_peer()
    other.connect(peer.address)
    eventually(lambda: peer.links and other.links)
    assert peer.address.startswith("[::1]:")
