"""Messages on their way to receivers: what each kind is, and that nothing is left of those that are gone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
from accounting import big, connection_of, narrow
from support import Connect, Peer, eventually

from sbuslib import Hub
from sbuslib.core.messages import Batched, Copied, InBuffer, Received
from sbuslib.kernel.packet_writer import PacketWriter


def test_copied_messages_say_how_short_the_shortest_is() -> None:
    messages = Copied(PacketWriter(), [b"333", b"22", b"4444"])
    assert [messages.shortest, messages.shortest] == [2, 2]


@pytest.fixture(autouse=True)
def _no_collector(hub: Hub) -> Iterator[None]:
    """What is found alive was not freed by the counts of references alone. What was there before is not looked at."""
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def _publishes_and_receives(hub: Hub, peer: Peer, other: Peer) -> None:
    peer.subscribe(b"a/", b"b/*")
    peer.send(*(b"MSG %b/%d\0" % (b"ab"[number % 2 :][:1], number) for number in range(100)))
    other.publish(b"a/1")
    peer.barrier()


def _wants_no_echo(hub: Hub, peer: Peer, other: Peer) -> None:
    peer.send(b"CMSG echo/off", b"SUB a", b"MSG a\0")
    peer.barrier()


def _holds_a_publisher(hub: Hub, peer: Peer, other: Peer) -> None:
    receiver = narrow(hub, peer).outbound
    peer.send(b"CMSG blocking/soft/block")
    peer.subscribe(b"a")
    for number in range(4):
        other.publish(b"a", big(number))
    eventually(lambda: receiver.held)


def _is_held(hub: Hub, peer: Peer, other: Peer) -> None:
    _holds_a_publisher(hub, other, peer)
    other.close()  # else the hub would not read from the publisher, and not find that it has gone


def _lets_messages_wait(hub: Hub, peer: Peer, other: Peer) -> None:
    narrow(hub, peer)
    peer.send(b"CMSG notices/on")
    peer.subscribe(b"a")
    for number in range(4):
        other.publish(b"a", big(number))
    other.barrier()


@pytest.mark.parametrize(
    "act", [_publishes_and_receives, _wants_no_echo, _holds_a_publisher, _is_held, _lets_messages_wait]
)
def test_client_that_has_left_is_freed_at_once(
    hub: Hub, connect: Connect, act: Callable[[Hub, Peer, Peer], None]
) -> None:
    peer, other = connect(), connect()
    connection = connection_of(hub, peer)
    left: list[weakref.ref[object]] = [weakref.ref(connection), weakref.ref(connection.outbound)]
    del connection
    act(hub, peer, other)
    peer.close()
    eventually(lambda: [reference() for reference in left] == [None, None])
    assert gc.collect() == 0, "nothing refers back to itself"


def test_messages_that_were_delivered_are_freed_at_once(hub: Hub, connect: Connect) -> None:
    """Runs of packets to several receivers, and batches of which some receivers get plain packets."""
    plain, batched, some, publisher = connect(), connect(), connect(), connect()
    batched.send(b"CMSG batch/on")
    publisher.send(b"CMSG batch/on")
    for peer in (plain, batched):
        peer.subscribe(b"")
    some.subscribe(b"a")
    publisher.send(*(b"MSG %b\0%d" % (b"ab"[number % 2 :][:1], number) for number in range(60)))
    publisher.barrier()
    batch = next(packet for packet in batched.pending() if packet.startswith(b"CMSG batch\0"))
    publisher.send(batch)
    publisher.barrier()
    assert len(plain.pending()) > 60
    assert not [one for one in gc.get_objects() if isinstance(one, (Batched, Copied, InBuffer, Received))]
    assert gc.collect() == 0, "nothing refers back to itself"
