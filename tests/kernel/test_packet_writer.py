"""Packets that lie anywhere in memory, sent many with one call; both ways."""

from __future__ import annotations

import socket
import tracemalloc
from typing import TypeAlias

import pytest
from support import both_ways

from sbuslib.kernel.packet_writer import PacketWriter

Socket: TypeAlias = socket.SocketType


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


@both_ways
def test_send_stops_where_the_kernel_would_block(pair: tuple[Socket, Socket]) -> None:
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
