"""Clients of the plain protocol, as a C program is one: nothing is put together, and nothing comes so."""

from __future__ import annotations

import contextlib
import select
import socket

from sbuslib.kernel.packet_writer import PacketWriter
from sbuslib.kernel.sockets import connect, wait
from sbuslib.wire.addresses import parse_address

SEND_BUFFER = 425_984


def reader(address: str, pattern: bytes) -> socket.SocketType:
    """A socket that subscribed, in mode ``block``: its publisher has its speed, and nothing is lost."""
    sock = connect(parse_address(address), SEND_BUFFER)
    sock.send(b"CMSG blocking/soft/block")
    sock.send(b"SUB " + pattern)
    return sock


def send(sock: socket.SocketType, writer: PacketWriter, packets: list[bytes]) -> None:
    """Send packets, many with each system call, waiting for room."""
    while packets:
        with contextlib.suppress(BlockingIOError):
            packets = packets[writer.send(sock, packets) :]
        if packets:
            wait(sock, select.POLLOUT, None)


def publish(address: str, key: bytes, payload: bytes) -> None:
    """Publish the same message for ever."""
    sock = connect(parse_address(address), SEND_BUFFER)
    writer = PacketWriter()
    packets = [b"MSG %b\0%b" % (key, payload)] * PacketWriter.SIZE
    while True:
        send(sock, writer, packets)
