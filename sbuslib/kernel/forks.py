"""Resources of one process: after a fork, the child gives them up.

A fork copies descriptors. So parent and child would read from the same connection, and each would lose what the other
one reads. The owner of a connection calls :func:`abandon_in_child` once. Its other calls then need not ask for the
process id.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

_PDEATHSIG: Final = 1
"""``PR_SET_PDEATHSIG`` of prctl(2)."""

_owners: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def abandon_in_child(owner: T, abandon: Callable[[T], None]) -> None:
    """Call ``abandon(owner)`` in the child of each fork, for as long as ``owner`` lives.

    ``abandon`` gives up resources of the parent, without disturbing the parent. It must not wait.
    """
    _owners[owner] = abandon


def disconnect_copy(sock: socket.SocketType) -> None:
    """Turn the child's copy of the parent's socket into one whose other end has gone.

    The descriptor stays open and keeps its number, since an event loop may be watching it. Callers that wait for it
    wake.
    """
    if sock.fileno() < 0:
        return
    try:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:  # no descriptor is left
        sock.close()
        return
    with here, there:
        here.setblocking(False)
        os.dup2(here.fileno(), sock.fileno(), inheritable=False)


def end_with_parent(parent: int) -> None:
    """Let the kernel send SIGTERM to this process when ``parent`` ends for any cause; at once if it has."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        signal.raise_signal(signal.SIGTERM)


def _abandon_all() -> None:
    for owner, abandon in list(_owners.items()):
        abandon(owner)
    _owners.clear()


os.register_at_fork(after_in_child=_abandon_all)
