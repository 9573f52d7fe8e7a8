"""Receiving what a hub sent, for the clients."""

from __future__ import annotations

import socket

from ..errors import PeerError
from ..kernel.areas import PlainArea
from ..kernel.descriptors import WITH_DESCRIPTORS
from ..kernel.dialer import BROKEN

__all__ = ["receive", "receive_one"]


def receive(area: PlainArea, sock: socket.SocketType) -> list[int]:
    """Receive the packets that wait into the slots of ``area``; their lengths, with a 0 where the connection ended.

    Raises :exc:`~sbuslib.errors.PeerError` for a hub that sends file descriptors, and :exc:`OSError`.
    """
    try:
        lengths = area.receive(sock)
    except OSError as error:
        if error.errno in BROKEN:
            return [0]
        raise
    if lengths and lengths[-1] == WITH_DESCRIPTORS:
        raise PeerError("the hub sent file descriptors")
    return lengths


def receive_one(area: PlainArea, sock: socket.SocketType, flags: int) -> int:
    """Receive one packet with flags of recv(2) into the first slot; its length. Raises as :func:`receive`.

    Raises :exc:`BlockingIOError` when nothing waits.
    """
    length = area.receive_first(sock, flags)
    if length == WITH_DESCRIPTORS:
        raise PeerError("the hub sent file descriptors")
    return length
