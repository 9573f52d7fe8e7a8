"""The forms in which messages are handed over: each sends, copies and counts itself as the others do."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from sbuslib.core.messages import Batched, Copied, InArea, Messages, OneInArea, Received
from sbuslib.kernel.areas import PlainArea, make_area
from sbuslib.kernel.packet_writer import PacketWriter
from sbuslib.wire.batches import Batch, coalesce

PACKETS = [b"MSG a\0one", b"MSG b\0", b"MSG a\0three"]
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(scope="module")
def area() -> Iterator[PlainArea]:
    made = make_area(slots=16)
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        there.settimeout(5)
        yield here, there


def receive(area: PlainArea, packets: list[bytes]) -> Received:
    """Packets as one receive call brings them."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        there.setblocking(False)
        for packet in packets:
            here.send(packet)
        return Received(area, PacketWriter(), area.receive(there))


def in_area(area: PlainArea, packets: list[bytes]) -> Messages:
    return receive(area, packets).slice(range(len(packets)))


def picked(area: PlainArea, packets: list[bytes]) -> Messages:
    between = [packet for one in packets for packet in (one, b"MSG other\0")]
    return InArea(receive(area, between), list(range(0, len(between), 2)))


def copied(area: PlainArea, packets: list[bytes]) -> Messages:
    return Copied(PacketWriter(), list(packets))


def batched(area: PlainArea, packets: list[bytes]) -> Messages:
    batch = coalesce(list(packets))
    assert batch is not None
    return Batched(PacketWriter(), batch)


Make = Callable[[PlainArea, list[bytes]], Messages]
FORMS: list[Make] = [in_area, picked, copied, batched]


def sent_to(there: socket.socket) -> list[bytes]:
    """What has come, batches taken apart."""
    found: list[bytes] = []
    there.setblocking(False)
    try:
        while packet := there.recv(500_000):
            found += Batch.parse(packet).plain if packet.startswith(b"CMSG batch\0") else [packet]
    except BlockingIOError:
        return found
    return found


@pytest.mark.parametrize("make", FORMS)
def test_each_form_sends_and_counts_the_same_messages(make: Make, area: PlainArea, pair: Pair) -> None:
    messages = make(area, PACKETS)
    assert (messages.count, messages.size) == (3, sum(map(len, PACKETS)))
    assert messages.shortest <= len(min(PACKETS, key=len))
    assert messages.packets() == PACKETS
    assert messages.send(pair[0]) == 3
    assert sent_to(pair[1]) == PACKETS


@pytest.mark.parametrize("make", FORMS[:3])
def test_what_was_not_sent_is_what_comes_after(make: Make, area: PlainArea, pair: Pair) -> None:
    rest = make(area, PACKETS).after(1)
    assert rest.count == 2
    assert rest.send(pair[0]) == 2
    assert sent_to(pair[1]) == PACKETS[1:]


@pytest.mark.parametrize("make", FORMS)
def test_what_is_kept_outlives_the_turn(make: Make, area: PlainArea) -> None:
    kept = make(area, PACKETS).keep()
    receive(area, [b"MSG z\0overwrites the area"] * len(PACKETS) * 2)
    assert kept.packets() == PACKETS


@pytest.mark.parametrize("make", FORMS[:3])
def test_wrapped_packets_begin_with_the_wrapper(make: Make, area: PlainArea, pair: Pair) -> None:
    assert make(area, PACKETS).send_wrapped(pair[0], b"<") == 3
    assert sent_to(pair[1]) == [b"<" + packet for packet in PACKETS]


def test_a_single_message_in_the_area(area: PlainArea, pair: Pair) -> None:
    receive(area, [b"MSG a\0x"])
    one = OneInArea(area, PacketWriter(), 7)
    assert (one.count, one.size, one.shortest, one.is_batch) == (1, 7, 7, False)
    assert one.send(pair[0]) == 1
    assert one.send_wrapped(pair[0], b"<") == 1
    assert sent_to(pair[1]) == [b"MSG a\0x", b"<MSG a\0x"]
    assert one.packets()[0] is one.packets()[0]
    kept = one.keep()
    receive(area, [b"MSG b\0other"])
    assert kept.packets() == [b"MSG a\0x"]
