"""Descriptors that come with packets: refused by the kernel, or taken and closed in another thread."""

from __future__ import annotations

import _socket
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

import pytest
from descriptors import MOST, Closers, ends, lingering, refusing, send_with
from support import both_ways, eventually, python

from sbuslib.kernel.descriptors import (
    WITH_DESCRIPTORS,
    GuardedSocket,
    control_in,
    descriptors_in,
    refuse_descriptors,
)
from sbuslib.kernel.receive_buffer import PlainReceiveBuffer, make_receive_buffer
from sbuslib.kernel.sockets import Listener, accept, connect
from sbuslib.wire.addresses import DescriptorAddress, PathAddress

Socket: TypeAlias = socket.SocketType
BUFFER = 425_984


@pytest.fixture
def buffer(syscalls: str) -> Iterator[PlainReceiveBuffer]:
    buffer = make_receive_buffer(8, 1_000)
    yield buffer
    buffer.close()


@pytest.fixture
def guarded(pair: tuple[Socket, Socket]) -> Iterator[tuple[Socket, GuardedSocket]]:
    """A peer that may send descriptors, and the socket at which they come."""
    here, there = pair
    sock = GuardedSocket(fileno=os.dup(there.fileno()))
    there.close()
    yield here, sock
    sock.close()


# -- refused by the kernel -----------------------------------------------------------------------------------


@refusing
def test_a_connection_that_was_passed_is_guarded(pair: tuple[Socket, Socket]) -> None:
    sock = connect(DescriptorAddress(pair[0].fileno()), BUFFER)
    assert type(sock) is GuardedSocket
    with pytest.raises(PermissionError):
        send_with(pair[1], b"x", [0])
    sock.close()


def test_an_old_kernel_cannot_refuse(address: str, old_kernel: None) -> None:
    listener = Listener(PathAddress(address))
    client = connect(PathAddress(address), BUFFER)
    served = accept(listener.socket, BUFFER)
    assert type(listener.socket) is _socket.socket
    assert type(client) is type(served) is GuardedSocket
    assert not refuse_descriptors(served)
    for sock in (client, served):
        assert not sock.getblocking()
        assert not os.get_inheritable(sock.fileno())
        sock.close()
    listener.close()


# -- taken ---------------------------------------------------------------------------------------------------


@both_ways
def test_a_guarded_socket_receives_like_any_other(
    guarded: tuple[Socket, GuardedSocket], buffer: PlainReceiveBuffer
) -> None:
    peer, sock = guarded
    for _ in range(3):
        assert buffer.receive(sock) == []
        for length in (1, 999, 1_001, 7):
            peer.send(b"a" * length)
        lengths = buffer.receive(sock)
        assert lengths == [1, 999, 1_001, 7]
        assert buffer.packet(3, 7) == b"a" * 7
    for _ in range(10):
        peer.send(b"b")
    assert buffer.receive(sock, 1) == [1]
    assert buffer.receive(sock, 2) == [1, 1]
    sock.send(b"unread, so that the peer's end resets the connection")
    peer.close()
    received = buffer.receive(sock)
    while received[-1]:
        received += buffer.receive(sock)
    assert received[:7] == [1] * 7
    assert not any(received[7:])


@both_ways
@pytest.mark.parametrize("most", [None, 1, 4])
def test_a_packet_with_descriptors_is_the_last_of_a_batch(
    guarded: tuple[Socket, GuardedSocket], buffer: PlainReceiveBuffer, closers: Closers, most: int | None
) -> None:
    peer, sock = guarded
    peer.send(b"before")
    send_with(peer, b"with", [0])
    send_with(peer, b"with many", [0] * MOST)
    peer.send(b"after")
    lengths: list[int] = []
    while not lengths or lengths[-1] != WITH_DESCRIPTORS:
        lengths += buffer.receive(sock, most)
    assert lengths == [6, WITH_DESCRIPTORS]
    while buffer.receive(sock, most):
        pass
    eventually(lambda: len(closers.closed) == 1 + MOST)
    assert closers.elsewhere


def test_descriptors_of_unread_packets_are_closed_in_another_thread(
    guarded: tuple[Socket, GuardedSocket], closers: Closers
) -> None:
    peer, sock = guarded
    with lingering() as (slow, other):
        peer.send(b"plain")
        peer.sendmsg([b""])
        send_with(peer, b"", [slow.fileno()])
        send_with(peer, b"x", [0] * MOST)
        slow.close()
        sock.close()
        with pytest.raises(BrokenPipeError):
            send_with(peer, b"too late", [0])
        eventually(lambda: len(closers.closed) == 1 + MOST)
        assert closers.elsewhere
        assert ends(other)


def test_a_forked_child_leaves_unread_packets_to_its_parent(guarded: tuple[Socket, GuardedSocket]) -> None:
    peer, sock = guarded
    peer.send(b"x")
    child = os.fork()
    if not child:
        sock.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert sock.recv(10) == b"x"
    peer.send(b"y")
    assert sock.recv(10) == b"y"


def test_credentials_with_a_packet_are_not_taken_for_descriptors(
    guarded: tuple[Socket, GuardedSocket], buffer: PlainReceiveBuffer, closers: Closers
) -> None:
    """Nor are the time and the process descriptor that the kernel adds. The latter is closed."""
    peer, sock = guarded
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    sock.setsockopt(socket.SOL_SOCKET, 29, 1)  # SO_TIMESTAMP
    more = 0
    with suppress(OSError):  # before Linux 6.5
        sock.setsockopt(socket.SOL_SOCKET, 76, 1)  # SO_PASSPIDFD
        more = 1
    peer.send(b"x")
    assert buffer.receive(sock) == [1]
    send_with(peer, b"y", [0] * MOST)
    assert buffer.receive(sock) == [WITH_DESCRIPTORS]
    eventually(lambda: len(closers.closed) == MOST + 2 * more)


def test_a_control_buffer_is_read_to_its_end() -> None:
    def one(kind: int, data: bytes) -> bytes:
        whole = struct.pack("@Nii", struct.calcsize("@Nii") + len(data), socket.SOL_SOCKET, kind) + data
        return whole + bytes(-len(whole) % struct.calcsize("N"))

    assert list(control_in(b"")) == list(control_in(bytes(64))) == list(control_in(b"123")) == []
    buffer = one(2, b"abcdefghijkl") + one(1, b"1234")
    assert list(control_in(buffer)) == [(socket.SOL_SOCKET, 2, b"abcdefghijkl"), (socket.SOL_SOCKET, 1, b"1234")]


def test_sockets_stay_plain_where_gevent_has_patched_everything(address: str) -> None:
    """The sockets are the plain ones, and the thread that closes descriptors is a native one."""
    code = f"""
import gevent.monkey; gevent.monkey.patch_all()
import _socket, os, _thread, gevent
from sbuslib.kernel import descriptors
from sbuslib.kernel.sockets import Listener, accept, connect
from sbuslib.wire.addresses import PathAddress
listener = Listener(PathAddress({address!r}))
client = connect(PathAddress({address!r}), 1000)
served = accept(listener.socket, 1000)
print(all(isinstance(sock, _socket.socket) and not hasattr(sock, "hub") for sock in (client, served, listener.socket)))
threads = []
descriptors._close = lambda descriptor: threads.append(gevent.monkey.get_original("_thread", "get_ident")())
descriptors.close_elsewhere([0], 5)
while not threads:
    gevent.sleep(0.001)
print(threads != [gevent.monkey.get_original("_thread", "get_ident")()])
for sock in (client, served, listener):
    sock.close()
"""
    assert python("-c", code).split() == ["True", "True"]


def test_a_descriptor_that_was_cut_in_half_is_none() -> None:
    rights = (1).to_bytes(4, sys.byteorder) + b"\2"
    assert descriptors_in([(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], 0) == (True, [1])
