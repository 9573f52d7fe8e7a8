"""Connections to a descriptor store: how many there are, whose turn it is, and how much may be in flight to them.

A turn is one packet. Our own user and root have a turn for each packet they send. Strangers, and the listening socket,
are polled for one event, and then rest as long as :mod:`.pace` requires.
"""

from __future__ import annotations

import os
import select
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic, thread_time
from typing import Any, Final

from ...kernel.peers import peer_credentials
from ...kernel.sockets import accept
from ...kernel.threads import unpatched
from .in_flight import in_flight
from .pace import accepting, hearing

USER_CONNECTIONS: Final = 32
"""Connections of one user to one descriptor store. Each client keeps one; if there are more, they take turns."""
MOST_VISITORS: Final = 256
"""Connections of all others, to all descriptor stores of this process: a quarter of the files that it mostly may
open.
"""
FEWEST_VISITORS: Final = 8
"""Connections of all others to one descriptor store, however many descriptor stores the process has."""
ACCEPTS: Final = 32
"""Connections accepted at a time, as the kernel has one queue for all users."""
PAUSE: Final = 0.01
"""Seconds without accepting, where the process can have no more descriptors."""
WAKE_COST: Final = 30e-6
"""Seconds that each wake-up of the thread takes, besides its work."""

_ONCE: Final = select.EPOLLIN | select.EPOLLONESHOT  # after one event it is not polled
_SEND_BUFFER: Final = 4_096  # an answer is a byte for each token


class StoreConnection:
    """One connection to a descriptor store."""

    __slots__ = ("is_ours", "is_trusted", "number", "sock", "user")

    def __init__(self, sock: socket.SocketType, owner: int) -> None:
        self.sock = sock
        self.number = sock.fileno()  # by which it is known
        self.user = peer_credentials(sock).uid  # as the kernel reports it
        self.is_ours = self.user == owner  # which may have memory that is not sealed
        self.is_trusted = self.user in (0, owner)  # and does not rest


class StoreConnections:
    """All connections to a descriptor store. For one thread, except :meth:`wake`. Raises :exc:`OSError` where there can
    be none.

    :param owner: the user whose descriptor store it is.
    :param hear: acts on a packet of a connection, and returns whether it was about a published offer.
    :param forget: called with each connection that is gone.
    """

    def __init__(
        self,
        listener: socket.SocketType,
        owner: int,
        hear: Callable[[StoreConnection], bool],
        forget: Callable[[StoreConnection], object],
    ) -> None:
        self.by_number: dict[int, StoreConnection] = {}
        """By descriptor, the longest silent first."""
        self._listener = listener
        self._owner = owner
        self._hear = hear
        self._forget = forget
        self._resting: dict[int, float] = {}  # until when a descriptor is not polled
        self._poll: Any = unpatched("select", "epoll")()  # of all of them, the listener, and the next

        try:
            self._wakes = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # written to by other threads
        except OSError:
            self._poll.close()
            raise

        _open.add(self)
        self._poll.register(self._wakes, select.EPOLLIN)
        self._poll.register(listener.fileno(), _ONCE)

    def wake(self) -> None:
        """End :meth:`wait` of another thread, or the next one."""
        os.eventfd_write(self._wakes, 1)

    def wait(self, until: float) -> None:
        """Wait until a connection is ready, or until a time of :func:`time.monotonic`; give all ready ones a turn."""
        until = min([until, *self._resting.values()])
        for number, _ in self._poll.poll(None if until == inf else max(0.0, until - monotonic())):
            if number == self._wakes:
                with suppress(BlockingIOError):
                    os.eventfd_read(number)
            elif number == self._listener.fileno():
                self._accept()
            elif (connection := self.by_number.get(number)) is not None:
                self._take_turn(connection)

        # Those whose rest is over may have their next turn.
        if self._resting:
            now = monotonic()
            for number in [number for number, until in self._resting.items() if until <= now]:
                del self._resting[number]
                self._poll.modify(number, _ONCE)

    def spoke(self, connection: StoreConnection) -> None:
        """Make this connection the one that was silent for the shortest time."""
        self.by_number[connection.number] = self.by_number.pop(connection.number)

    def end(self, connection: StoreConnection) -> None:
        """Close one."""
        del self.by_number[connection.number]
        self._resting.pop(connection.number, None)
        self._poll.unregister(connection.number)
        in_flight.leave(connection.sock)
        self._forget(connection)

    def close(self) -> None:
        """Close all."""
        for connection in self.by_number.values():
            in_flight.leave(connection.sock)
        self.by_number.clear()
        _open.discard(self)
        self._poll.close()
        os.close(self._wakes)

    def abandon(self) -> None:
        """Close the copies in the child of a fork."""
        for connection in self.by_number.values():
            connection.sock.close()
        self.by_number.clear()
        self.close()

    def _rest(self, number: int, until: float) -> None:
        """Poll a descriptor again at a time; at once, if that is past."""
        if until > monotonic():
            self._resting[number] = until
        else:
            self._poll.modify(number, _ONCE)

    def _accept(self) -> None:
        """Accept some connections, and rest for the cost of those of strangers."""
        began, until, strangers = thread_time(), 0.0, 0

        for _ in range(ACCEPTS):
            try:
                connection = StoreConnection(accept(self._listener, _SEND_BUFFER), self._owner)
            except BlockingIOError:
                break
            except OSError:  # no descriptor is left
                until = monotonic() + PAUSE
                break
            strangers += not connection.is_trusted
            self._make_place(connection)
            self.by_number[connection.number] = connection
            self._poll.register(connection.number, select.EPOLLIN if connection.is_trusted else _ONCE)

        if strangers:
            accepting.charge(id(self), WAKE_COST + thread_time() - began, monotonic())
        self._rest(self._listener.fileno(), max(until, accepting.until(id(self))))

    def _make_place(self, newcomer: StoreConnection) -> None:
        """While there are too many, close the longest silent one of its user, or of the user that has most.

        When the process opens another descriptor store, this one may have fewer.
        """
        most = max(FEWEST_VISITORS, MOST_VISITORS // len(_open))
        counts = Counter(one.user for one in self.by_number.values() if one.is_ours == newcomer.is_ours)
        while counts[newcomer.user] >= USER_CONNECTIONS or (not newcomer.is_ours and counts.total() >= most):
            user = newcomer.user
            if counts[user] < USER_CONNECTIONS:
                ((user, _),) = counts.most_common(1)
            self.end(next(connection for connection in self.by_number.values() if connection.user == user))
            counts[user] -= 1

    def _take_turn(self, connection: StoreConnection) -> None:
        """Act on a packet of a connection, unless its user rests. Work without a published offer is charged to the
        user.
        """
        if connection.is_trusted:
            self._hear(connection)
            return
        began, now, user = thread_time(), monotonic(), connection.user
        if hearing.until(user) > now or not self._hear(connection):
            hearing.charge(user, WAKE_COST + thread_time() - began, now)
        if self.by_number.get(connection.number) is connection:
            self._rest(connection.number, hearing.until(user))


_open: set[StoreConnections] = set()  # of all descriptor stores of this process
