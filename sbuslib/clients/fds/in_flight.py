"""Descriptors that were handed out and not read yet, of all descriptor stores of this process.

The kernel counts them as the sender's user's, not as the reader's: one process that may have 1,024 files open can pass
no descriptor any more while 1,024 are in flight for its user, wherever they are. And nobody can take one back, even by
closing the connection: the reader has it in its queue until it reads, or ends. So few are in flight at a time, and
those of a connection that was ended count until they are read, or until this process ends.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final, NamedTuple

from ...kernel.sockets import unread_bytes
from ...kernel.threads import unpatched
from ...wire.offers import MOST_TOKENS

STRANGERS_MOST: Final = 16
"""Descriptors in flight to all strangers together: a 64th of the 1,024 that the kernel mostly lets a user have under
way, so that many processes may hand out."""
STRANGER_SHARE: Final = 4
"""One stranger may have a quarter of those that are left, and one in any case: so four users that never read leave some
for six more. The first user may have as many as one request asks for."""
TRUSTED_MOST: Final = 64
"""To our own user and root, whose processes may hang, but could do worse."""


class _Answer(NamedTuple):
    """Descriptors in flight over one connection."""

    user: int
    is_trusted: bool
    descriptors: int


class InFlight:
    """Descriptors in flight, by connection. For any threads: :meth:`room` and :meth:`sent` are called with the lock."""

    def __init__(self) -> None:
        self.lock = unpatched("_thread", "allocate_lock")()
        """Guards all that follows."""
        self._answers: dict[socket.SocketType, _Answer] = {}  # answers not known to have been read
        self._ended: set[socket.SocketType] = set()  # of these, the ones whose connection was ended here

    def room(self, user: int, is_trusted: bool) -> int:
        """Return how many more descriptors may be in flight to this user."""
        found = self._free(user, is_trusted)
        if found < MOST_TOKENS or self._ended:
            for sock in list(self._answers):
                self._look(sock)
            found = self._free(user, is_trusted)
        return found

    def _free(self, user: int, is_trusted: bool) -> int:
        answers = self._answers.values()
        if is_trusted:
            return TRUSTED_MOST - sum(one.descriptors for one in answers if one.is_trusted)
        left = STRANGERS_MOST - sum(one.descriptors for one in answers if not one.is_trusted)
        share = max(1, left // STRANGER_SHARE) - sum(one.descriptors for one in answers if one.user == user)
        return max(0, min(left, share))

    def _look(self, sock: socket.SocketType) -> bool:
        """Return whether nothing is in flight over a connection, which then no longer counts."""
        if sock in self._answers:
            if unread_bytes(sock):
                return False
            del self._answers[sock]
            if sock in self._ended:
                self._ended.discard(sock)
                sock.close()
        return True

    def sent(self, sock: socket.SocketType, user: int, is_trusted: bool, count: int) -> None:
        """Count descriptors as in flight over a connection that had none."""
        self._answers[sock] = _Answer(user, is_trusted, count)

    def has_read(self, sock: socket.SocketType) -> bool:
        """Return whether the other end of a connection has read all that was sent."""
        with self.lock:
            return self._look(sock)

    def leave(self, sock: socket.SocketType) -> None:
        """End a connection. It is closed once all is read: only an open one shows that."""
        with self.lock:
            if self._look(sock):
                sock.close()
            else:
                self._ended.add(sock)
                with suppress(OSError):  # the other end has gone
                    sock.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Close the copies in the child of a fork: the parent's threads count."""
        self.lock = unpatched("_thread", "allocate_lock")()
        for sock in self._ended:
            sock.close()
        self._ended.clear()
        self._answers.clear()


in_flight: Final = InFlight()
"""Of this process."""

os.register_at_fork(after_in_child=in_flight.abandon)
