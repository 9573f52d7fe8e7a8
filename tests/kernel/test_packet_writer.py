"""Packets that lie anywhere in memory, sent many with one call; both engines."""

from __future__ import annotations

import socket
import tracemalloc
from typing import TypeAlias

import pytest

from sbuslib.kernel.packet_writer import PacketWriter

Socket: TypeAlias = socket.SocketType


def test_packets_are_sent_in_order(pair: tuple[Socket, Socket]) -> None:
    here, there = pair
    writer = PacketWriter()
    packets = [b"%d" % number for number in range(200)]  # more than one call takes
    assert writer.send(here, packets) == 200
    assert [there.recv(10) for _ in packets] == packets
    assert writer.send(here, [b"one"]) == 1
    assert writer.send(here, []) == 0
    assert there.recv(10) == b"one"


def test_send_stops_where_the_kernel_would_block(pair: tuple[Socket, Socket]) -> None:
    here, there = pair
    writer = PacketWriter()
    packets = [b"%d" % number + bytes(5_000) for number in range(1_000)]
    went = writer.send(here, packets)
    assert 0 < went < 1_000
    assert writer.send(here, packets[went:]) == 0
    for number in range(went):
        assert there.recv(10_000) == packets[number]


@pytest.mark.parametrize("count", [1, 64, 65])
def test_packets_are_laid_out_once_for_many_receivers(pair: tuple[Socket, Socket], count: int) -> None:
    here, there = pair
    writer = PacketWriter()
    packets, others = [b"%d" % number for number in range(count)], [b"other"] * 3
    assert [writer.send_to_many(here, packets) for _ in range(2)] == [count] * 2
    assert writer.send(here, others) == 3  # lies where those lay
    assert writer.send_to_many(here, packets) == count
    assert writer.send_to_many(here, others) == 3
    assert [there.recv(10) for _ in range(3 * count + 6)] == [*packets, *packets, *others, *packets, *others]


def test_send_to_many_where_some_receivers_are_slow_or_gone(pair: tuple[Socket, Socket]) -> None:
    here, there = pair
    writer = PacketWriter()
    packets = [b"%d" % number + bytes(3_000) for number in range(60)]
    went = 0
    while sent := writer.send_to_many(here, packets):
        went += sent
    assert went > 60
    for number in range(went):
        assert there.recv(10_000) == packets[number % 60]
    too_long = [bytes(5_000_000), b"x"]
    with pytest.raises(OSError, match="too long"):
        writer.send_to_many(here, too_long)
    there.close()
    with pytest.raises(BrokenPipeError):
        writer.send_to_many(here, packets)


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
