"""Many packets with one call, received and sent, from a receive buffer and from anywhere in memory; both ways."""

from __future__ import annotations

import errno
import select
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TypeAlias, cast

import pytest
from support import both_ways

from sbuslib.kernel import receive_buffer, vectors
from sbuslib.kernel.packet_writer import PacketWriter
from sbuslib.kernel.receive_buffer import PlainReceiveBuffer, ReceiveBuffer, make_receive_buffer
from sbuslib.kernel.vectors import ONE_PACKET_FLAGS
from sbuslib.limits import CONTROL_EXTRA, PACKET_BYTES

# -- Many packets with one call, received and sent; both ways

Socket: TypeAlias = socket.SocketType


@pytest.fixture
def buffer(syscalls: str) -> Iterator[PlainReceiveBuffer]:
    buffer = make_receive_buffer(8, 1_000)
    yield buffer
    buffer.close()


@both_ways
def test_the_environment_chooses_the_calls(syscalls: str, buffer: PlainReceiveBuffer) -> None:
    assert type(buffer) is (ReceiveBuffer if syscalls == "batched" else PlainReceiveBuffer)


@both_ways
def test_packets_are_received_into_slots(pair: tuple[Socket, Socket], buffer: PlainReceiveBuffer) -> None:
    here, there = pair
    assert buffer.receive(there) == []
    packets = [b"a" * length for length in (1, 999, 1_000, 7)]
    for packet in packets:
        here.send(packet)
    lengths = buffer.receive(there)
    assert lengths == [1, 999, 1_000, 7]
    assert [buffer.packet(slot, length) for slot, length in enumerate(lengths)] == packets
    assert [buffer.data[offset] for offset in buffer.offsets[:4]] == [ord("a")] * 4


@both_ways
def test_what_cannot_be_received_from_raises(pair: tuple[Socket, Socket], buffer: PlainReceiveBuffer) -> None:
    pair[0].close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        buffer.receive(pair[0])


@both_ways
def test_receive_takes_at_most_the_number_asked_for(pair: tuple[Socket, Socket], buffer: PlainReceiveBuffer) -> None:
    here, there = pair
    for number in range(20):
        here.send(b"%d" % number)
    assert len(buffer.receive(there, 1)) == 1
    assert buffer.packet(0, 1) == b"0"
    assert len(buffer.receive(there, 3)) == 3
    assert len(buffer.receive(there)) == 8
    assert len(buffer.receive(there, 100)) == 8
    assert buffer.packet(7, 2) == b"19"
    assert buffer.receive(there) == buffer.receive(there, 1) == []


@both_ways
def test_a_packet_that_is_too_long_has_a_length_beyond_its_slot(
    pair: tuple[Socket, Socket], buffer: PlainReceiveBuffer
) -> None:
    here, there = pair
    here.send(b"x" * 1_001)
    here.send(b"x" * 5_000)
    here.send(b"y")
    lengths = buffer.receive(there)
    assert lengths[0] > buffer.slot_bytes
    assert lengths[1] > buffer.slot_bytes
    assert buffer.packet(2, lengths[2]) == b"y"


@both_ways
def test_the_longest_packets(pair: tuple[Socket, Socket]) -> None:
    here, there = pair
    buffer = make_receive_buffer(2)
    try:
        for length in (PACKET_BYTES, PACKET_BYTES + CONTROL_EXTRA):
            assert PacketWriter().send(here, [b"x" * length]) == 1
            assert buffer.receive(there) == [length]
            assert buffer.send(there, [0], [length]) == 1
            assert len(here.recv(1_000_000)) == length
    finally:
        buffer.close()


@both_ways
def test_a_length_of_zero_is_the_end_of_the_connection(pair: tuple[Socket, Socket], buffer: PlainReceiveBuffer) -> None:
    here, there = pair
    here.send(b"last")
    here.close()
    lengths = buffer.receive(there)
    assert lengths[:2] == [4, 0]
    assert not any(lengths[1:])
    assert buffer.receive(there)[0] == 0  # and again


def test_packets_before_an_error_are_not_lost() -> None:
    """As with recvmmsg(2): the packets before the error are given first, and the next call raises it."""

    class Failing:
        calls = 0

        def recv_into(self, *arguments: object) -> int:
            self.calls += 1
            if self.calls > 2:
                raise OSError(errno.ENOMEM, "no memory")
            return 10 * self.calls

    buffer = PlainReceiveBuffer(8, 1_000)
    sock = cast(Socket, Failing())
    assert buffer.receive(sock) == [10, 20]
    with pytest.raises(OSError, match="no memory"):
        buffer.receive(sock)
    buffer.close()


@both_ways
@pytest.mark.parametrize("most", [None, 1, 3])
def test_packets_of_a_peer_that_closed_with_unread_input_are_received(
    pair: tuple[Socket, Socket], buffer: PlainReceiveBuffer, most: int | None
) -> None:
    """The kernel reports ECONNRESET first; what the peer had sent comes after it."""
    here, there = pair
    there.send(b"never read")
    for number in range(10):
        here.send(b"%d" % number)
    here.close()
    got = []
    while True:
        lengths = buffer.receive(there, most)
        got += [buffer.packet(slot, length) for slot, length in enumerate(lengths) if length]
        if not all(lengths):
            break
    assert got == [b"%d" % number for number in range(10)]


def filled(pair: tuple[Socket, Socket], buffer: PlainReceiveBuffer) -> tuple[list[bytes], list[int]]:
    """Eight packets that have been received, and their lengths."""
    here, there = pair
    packets = [bytes([65 + number]) * (number + 1) for number in range(8)]
    for packet in packets:
        here.send(packet)
    return packets, buffer.receive(there)


@both_ways
@pytest.mark.parametrize("slots", [[0], [3], [0, 1, 2, 3], [1, 2], [0, 2, 3], [3, 5, 7], [7], list(range(8))])
def test_packets_are_sent_from_their_slots(
    pair: tuple[Socket, Socket], buffer: PlainReceiveBuffer, slots: list[int]
) -> None:
    here, there = pair
    packets, lengths = filled(pair, buffer)
    for chosen in (slots, [0, 1], slots):  # a call leaves nothing behind for the next
        assert buffer.send(there, chosen, lengths) == len(chosen)
        assert [here.recv(100) for _ in chosen] == [packets[slot] for slot in chosen]


@both_ways
@pytest.mark.parametrize("slots", [[0], [0, 1, 2], [1, 3], [1, 3, 4], [6, 7]])
def test_send_wrapped(pair: tuple[Socket, Socket], buffer: PlainReceiveBuffer, slots: list[int]) -> None:
    here, there = pair
    packets, lengths = filled(pair, buffer)
    for wrapper in (b"CMSG from\0!/cred/1/2/3\0", b"w", b"longer" * 20):
        assert buffer.send_wrapped(there, wrapper, slots, lengths) == len(slots)
        assert [here.recv(1_000) for _ in slots] == [wrapper + packets[slot] for slot in slots]
    assert buffer.send(there, slots, lengths) == len(slots)
    assert [here.recv(1_000) for _ in slots] == [packets[slot] for slot in slots]


@both_ways
def test_send_stops_where_the_kernel_would_block(pair: tuple[Socket, Socket], buffer: PlainReceiveBuffer) -> None:
    here, there = pair
    for number in range(8):
        here.send(b"%d" % number * 1_000)
    lengths = buffer.receive(there)
    went = 0
    for _ in range(10_000):
        sent = buffer.send(there, range(8), lengths)
        went += sent
        if sent < 8:
            break
    assert buffer.send(there, [0], lengths) == 0
    assert buffer.send_wrapped(there, b"w", [0], lengths) == 0
    got = 0
    while select.select([here], [], [], 0)[0]:
        assert here.recv(2_000) == b"%d" % (got % 8) * 1_000
        got += 1
    assert got == went


@both_ways
def test_send_to_a_peer_that_has_gone_raises(pair: tuple[Socket, Socket], buffer: PlainReceiveBuffer) -> None:
    here, there = pair
    here.send(b"x")
    lengths = buffer.receive(there)
    here.close()
    sends: list[Callable[[], int]] = [
        lambda: buffer.send(there, [0], lengths),
        lambda: buffer.send_wrapped(there, b"w", [0], lengths),
        lambda: PacketWriter().send(there, [b"x", b"y"]),
    ]
    for send in sends:
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send()


@pytest.mark.parametrize("make", [ReceiveBuffer, PlainReceiveBuffer])
@pytest.mark.parametrize("slots", [1, 4])
def test_heads_are_the_first_bytes_of_the_first_slots(
    pair: tuple[Socket, Socket], make: type[PlainReceiveBuffer], slots: int
) -> None:
    ours, theirs = pair
    buffer = make(slots, 100)
    ours.send(b"a longer packet from before")
    buffer.receive(theirs)
    packets = [b"first packet", b"short", b"third packet"][:slots]
    for packet in packets:
        ours.send(packet)
    assert buffer.receive(theirs) == [len(packet) for packet in packets]
    heads = buffer.heads(len(packets), 7)
    assert [head[: len(packet)] for head, packet in zip(heads, packets, strict=True)] == [
        packet[:7] for packet in packets
    ]
    assert all(len(head) == 7 for head in heads)
    buffer.close()


def test_a_c_library_without_the_calls_gets_a_plain_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (receive_buffer, vectors):
        monkeypatch.setattr(module, "CALLS", None)
    assert type(make_receive_buffer(1)) is PlainReceiveBuffer
    with pytest.raises(OSError, match="recvmmsg"):
        ReceiveBuffer(1)


# -- Packets that lie anywhere in memory, sent many with one call; both ways


@both_ways
def test_packets_are_sent_in_order(pair: tuple[Socket, Socket]) -> None:
    here, there = pair
    writer = PacketWriter()
    packets = [b"%d" % number for number in range(200)]  # more than one call takes
    assert writer.send(here, packets) == 200
    assert [there.recv(10) for _ in packets] == packets
    assert writer.send(here, [b"one"]) == 1
    assert writer.send(here, []) == 0
    assert there.recv(10) == b"one"


def test_packets_take_a_call_each_only_with_flags_of_their_own(pair: tuple[Socket, Socket]) -> None:
    calls: list[int] = []

    class Counted(Socket):
        def send(self, data: Any, flags: int = 0) -> int:
            calls.append(flags)
            return super().send(data, flags)

    writer, packets = PacketWriter(), [b"%d" % number for number in range(100)]
    with closing(Counted(fileno=pair[0].detach())) as sock:
        assert writer.send(sock, packets) == 100
        assert calls == []
        flags = ONE_PACKET_FLAGS | socket.MSG_CONFIRM
        assert writer.send(sock, packets, flags) == 100
        assert calls == [flags] * 100


@both_ways
def test_a_writer_stops_where_the_kernel_would_block(pair: tuple[Socket, Socket]) -> None:
    here, there = pair
    writer = PacketWriter()
    packets = [b"%d" % number + bytes(5_000) for number in range(1_000)]
    went = writer.send(here, packets)
    assert 0 < went < 1_000
    assert writer.send(here, packets[went:]) == 0
    for number in range(went):
        assert there.recv(10_000) == packets[number]


@both_ways
def test_send_raises_what_concerns_the_first_packet_alone(pair: tuple[Socket, Socket]) -> None:
    here, there = pair
    writer = PacketWriter()
    too_long = bytes(5_000_000)
    assert writer.send(here, [b"a", b"b", too_long, b"c"]) == 2
    with pytest.raises(OSError, match="too long"):
        writer.send(here, [too_long, b"c"])
    assert (there.recv(10), there.recv(10)) == (b"a", b"b")


def test_send_copies_no_more_than_it_sends(pair: tuple[Socket, Socket]) -> None:
    """Else, for a receiver that takes one long packet at a time, the hub would copy the whole queue each time."""
    writer = PacketWriter()
    packets = [bytes(400_000)] * 60
    tracemalloc.start()
    try:
        writer.send(pair[0], packets)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 400_000
