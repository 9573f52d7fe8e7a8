"""What the child of a fork gives up, and its parent keeps."""

from __future__ import annotations

import os
import socket

from sbuslib.kernel.forks import abandon_in_child, disconnect_copy


class Owner:
    def __init__(self, sock: socket.SocketType) -> None:
        self.socket = sock


def test_the_child_has_a_socket_whose_other_end_has_gone(pair: tuple[socket.SocketType, socket.SocketType]) -> None:
    one, other = pair
    owner = Owner(one)
    abandon_in_child(owner, lambda owner: disconnect_copy(owner.socket))
    number = one.fileno()
    other.send(b"for the parent")
    child = os.fork()
    if not child:
        os._exit(0 if one.fileno() == number and one.recv(100) == b"" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert one.recv(100) == b"for the parent"


def test_an_owner_that_has_gone_is_not_called() -> None:
    here, there = os.pipe()

    def tell(owner: object) -> None:
        os.write(there, b"called")

    owner = Owner(socket.SocketType())
    abandon_in_child(owner, tell)
    del owner
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    os.close(there)
    assert os.read(here, 10) == b""
    os.close(here)


def test_a_closed_socket_stays_closed(pair: tuple[socket.SocketType, socket.SocketType]) -> None:
    one, _ = pair
    one.close()
    disconnect_copy(one)
    assert one.fileno() < 0
