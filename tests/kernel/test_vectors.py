"""The message headers that many packets are received and sent with, and sending without them."""

from __future__ import annotations

import ctypes
import errno
import socket

import pytest
from support import both_ways

from sbuslib.kernel.vectors import CALLS, COUNTS, NO_WAIT, NO_WAIT_RECEIVE, Vector, has_calls, send_each

Pair = tuple[socket.SocketType, socket.SocketType]


@both_ways
def test_the_environment_switches_the_calls_off(syscalls: str) -> None:
    assert has_calls() is (syscalls == "batched")


def test_each_packet_is_made_of_the_pieces_of_its_header(pair: Pair) -> None:
    assert CALLS is not None
    one, other = pair
    receive, send = CALLS
    outgoing, incoming = Vector(2, pieces=2), Vector(3)
    parts = [[b"a", b"bc"], [b"def", b""]]
    for number, packet in enumerate(parts):
        for piece, part in enumerate(packet):
            outgoing.bases[piece][number] = ctypes.cast(ctypes.c_char_p(part), ctypes.c_void_p).value or 0
            outgoing.sizes[piece][number] = len(part)
    assert send(one.fileno(), outgoing.addresses[0], COUNTS[2], NO_WAIT) == 2
    block = ctypes.create_string_buffer(30)
    for number in range(3):
        incoming.bases[0][number] = ctypes.addressof(block) + 10 * number
        incoming.sizes[0][number] = 10
    assert receive(other.fileno(), incoming.addresses[0], COUNTS[3], NO_WAIT_RECEIVE, None) == 2
    assert incoming.lengths[:2].tolist() == [3, 3]
    assert (block.raw[:3], block.raw[10:13]) == (b"abc", b"def")
    assert receive(other.fileno(), incoming.addresses[0], COUNTS[3], NO_WAIT_RECEIVE, None) == -1
    assert ctypes.get_errno() == errno.EAGAIN


def test_send_each_stops_at_an_error_and_raises_the_first_alone(pair: Pair) -> None:
    one, other = pair
    too_long = bytes(10_000_000)
    assert send_each(one, [b"a", too_long, b"b"]) == 1
    assert other.recv(10) == b"a"
    with pytest.raises(OSError, match="long"):
        send_each(one, [too_long])
