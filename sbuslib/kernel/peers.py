"""Credentials of the process at the other end of a Unix-domain socket, as the kernel has them."""

from __future__ import annotations

import socket
import struct
from typing import Final

from ..secrets import Credentials

_UCRED: Final = struct.Struct("=iII")  # struct ucred of unix(7): pid, uid, gid
_SO_PEERGROUPS: Final = 59  # which the socket module has no name for
_PEERGROUPS_BYTES: Final = 1_024  # all that getsockopt takes here: more than 256 groups are as good as none


def peer_credentials(sock: socket.SocketType) -> Credentials:
    """Credentials of the peer, noted by the kernel when it connected (for a hub, when it began to listen)."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Credentials(gid=gid, uid=uid, pid=pid)


def peer_groups(sock: socket.SocketType) -> frozenset[int]:
    """The supplementary groups of the peer when it connected; empty with kernels before 4.13."""
    try:
        groups = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _PEERGROUPS_BYTES)
    except OSError:
        return frozenset()
    return frozenset(memoryview(groups).cast("I"))
