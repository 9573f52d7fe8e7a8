"""A client's connection: makes it, keeps it, and sends and receives packets over it.

Several greenlets or threads may use one client at once. The one that has the *lead* reads for all of them, and puts
what comes into the session: see :mod:`~sbuslib.clients.lead`.
"""

from __future__ import annotations

import errno
import select
import socket
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from itertools import repeat, starmap
from typing import ClassVar, Final, Self

from ..errors import DisconnectedError, PeerError
from ..kernel.dialer import BROKEN, NO_MEMORY
from ..kernel.serving import PATIENCE, Serving, serving
from ..wire.packets import Message
from .base import ClientBase, Event
from .batch import plain
from .held_sockets import HeldSockets
from .lead import BlockingLead, BlockingWaiter, time_left
from .reconnect import CONNECT_PAUSE, CONNECT_PAUSE_MOST, MEMORY_PAUSE, Backoff

__all__ = ["Channel"]

_NO_SIGNAL: Final = int(socket.MSG_NOSIGNAL)  # '|' of plain numbers is far quicker


class Channel(ClientBase):
    """What the gevent and the blocking client share. Their verbs are in :class:`~.endpoint.Endpoint`."""

    _OWNER = "the thread that made it"
    _WAITS_IN_GEVENT: ClassVar[bool]
    _socket: socket.SocketType
    _serving: Serving | None = None  # the hub, if it is one of this process and may keep this client waiting

    def _open(self) -> None:
        """Connect for the first time."""
        self._ended = False
        self._owner = self._find_caller()
        deadline = self._deadline(self.timeout)
        while True:
            try:
                self._open_once(deadline)
                return
            except OSError as error:
                self._sleep(self._wait_for_hub(error, time_left(deadline)))

    def _open_once(self, deadline: float | None) -> None:
        self._socket = self._connect(deadline)
        try:
            self._begin(deadline)
        except TimeoutError as error:
            hint = self._dialer.hint(self._socket)
            self._release_socket()
            raise TimeoutError(f"{error}{hint}") from None
        except BaseException:
            self._release_socket()
            raise

    # -- how to wait: each kind of client defines it ------------------------------------------------

    @abstractmethod
    def _make_waiter(self) -> BlockingWaiter: ...

    @abstractmethod
    def _make_lock(self) -> AbstractContextManager[object]: ...

    @abstractmethod
    def _wait(self, sock: socket.SocketType, events: int, timeout: float | None) -> bool:
        """Wait for ``select.POLLIN`` or ``select.POLLOUT``; ``False`` after ``timeout`` seconds."""

    @abstractmethod
    def _sleep(self, seconds: float) -> None: ...

    def _abandon(self) -> None:
        super()._abandon()
        # The locks may be held by threads that the child does not have.
        self._make_locks()

    def _make_locks(self) -> None:
        self._lead = BlockingLead(self._make_lock(), self._make_waiter)
        self._sockets = HeldSockets(self._lead.lock)
        self._writer_lock = self._make_lock()

    # -- connecting ---------------------------------------------------------------------------------

    def _connect(self, deadline: float | None) -> socket.SocketType:
        """Connect; wait while the listen backlog of the hub is full."""
        backoff = Backoff(CONNECT_PAUSE, CONNECT_PAUSE_MOST)
        while True:
            try:
                return self._dialer.dial()
            except BlockingIOError as error:
                left = time_left(deadline)
                if left == 0:
                    raise TimeoutError(error.strerror) from None
                self._sleep(min(backoff.next(), left if left is not None else CONNECT_PAUSE_MOST))

    def _begin(self, deadline: float | None) -> None:
        """Ask for our credentials and the hub's features, and restore what an earlier connection had."""
        session = self._session
        try:
            self._find_serving()
            self._send_all(session.hello(), deadline)
            while not session.knows_itself():
                if self._read(deadline):
                    raise self._disconnected()
            opening = session.opening()
            if opening:
                self._send_all(opening, deadline)
                session.batches = True
            with self._lead.lock:
                # From here on other callers send their changes themselves.
                packets = self._restore()
            self._send_all(packets, deadline)
        except BaseException:
            self._up = False
            raise

    def _find_serving(self) -> None:
        """Look whether the hub is one of this process. Raises :exc:`~sbuslib.errors.StateError` if it cannot serve."""
        self._serving = found = serving(self._socket)
        if found is None:
            return
        if not self._WAITS_IN_GEVENT:
            found.check_here(self.address)
        elif found.is_here():
            self._serving = None  # the event loop runs while this client waits
        found.check_alive(self.address)

    def _wait_for(self, sock: socket.SocketType, events: int, deadline: float | None) -> bool:
        """As :meth:`_wait`. If the hub is one of this process, tell that it cannot serve, or does not."""
        found, left = self._serving, time_left(deadline)
        if found is None or left == 0:
            return self._wait(sock, events, left)
        if not self._WAITS_IN_GEVENT:
            found.check_here(self.address)
        rounds = found.rounds()
        if self._wait(sock, events, PATIENCE if left is None else min(left, PATIENCE)):
            return True
        found.check_alive(self.address)
        found.warn(self.address, sock, rounds)
        return self._wait(sock, events, time_left(deadline))

    def _connect_again(self, deadline: float | None) -> None:
        """Reconnect, trying until the deadline."""
        self._release_socket()
        while True:
            if pause := self._reconnecting.pause():
                left = time_left(deadline)
                self._sleep(pause if left is None else min(pause, left))
            if self._closed:
                raise self._disconnected()
            try:
                self._socket = self._connect(self._deadline(self.timeout))
                self._begin(self._deadline(self.timeout))
                return
            except (OSError, TimeoutError) as error:
                self._reconnecting.failed(error)
                self._release_socket()
                if time_left(deadline) == 0:
                    raise TimeoutError(f"{self.address}: the hub is away") from None

    def _release_socket(self) -> None:
        """End the connection."""
        self._session.batches = False  # the hub of the next socket was not asked for batches yet
        self._shut_down()
        self._sockets.close(self._socket)

    def _shut_down(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    # -- reading ------------------------------------------------------------------------------------

    def _read(self, deadline: float | None) -> bool:
        """Wait for packets, and put them into the session. ``True``: the connection ended."""
        while (ended := self._receive()) is None:
            # The caller has the lead, and while a caller has it the socket is not closed.
            if not self._wait_for(self._socket, select.POLLIN, deadline):
                raise TimeoutError(f"{self.address}: nothing came in time")
        return ended

    def _hear_out(self) -> None:
        """After a failed send: read what the hub has sent, which may be why it kicked this client."""
        with suppress(DisconnectedError, TimeoutError):
            self._until(lambda: False, self._deadline(0), "")

    def _check_open(self) -> None:
        if self._ended:
            raise self._disconnected()

    def _until(
        self,
        ready: Callable[[], bool],
        deadline: float | None,
        what: str,
        read: Callable[[float | None], bool] | None = None,
    ) -> None:
        """Read, or let another caller read, until ``ready()`` holds. ``read`` does it in place of :meth:`_read`.

        Raises :exc:`TimeoutError`, saying ``what``, at the deadline.
        """
        while True:
            self._check_caller()
            try:
                if not self._lead.take(ready, self._check_open, deadline):
                    return
                event = self._read_for_all(deadline, read or self._read)
            except TimeoutError:
                raise TimeoutError(what) from None
            self._after_reading(event)

    def _read_for_all(self, deadline: float | None, read: Callable[[float | None], bool]) -> Event:
        """With the lead: read once, or connect again. Gives the lead back."""
        try:
            if not self._up and self._reconnect:
                self._connect_again(deadline)
                return "connected"
            if not read(deadline):
                return None
            was_up, self._up = self._up, False
            self._ended = self._closed or not self._reconnect
            return "disconnected" if was_up else None
        except PeerError:
            self._up = False
            self._ended = True
            raise
        finally:
            self._end_lead()

    def _end_lead(self) -> None:
        with self._lead.lock:
            if self._closed:
                self._ended = True
                self._release_socket()
            self._lead.give_back()

    @abstractmethod
    def _after_reading(self, event: Event) -> None:
        """The lead was given back after reading: send what the session asks for, and call callbacks."""

    def _next(self, most: int | None, deadline: float | None, what: str) -> list[Message]:
        """Wait for at least one message, and return up to ``most``. Each message goes to one caller."""
        inbox = self._session.inbox
        while True:
            self._until(lambda: bool(inbox), deadline, what)
            with self._lead.lock:
                count = len(inbox) if most is None else min(most, len(inbox))
                if count:
                    # One by one, since another thread may be adding messages; in C, since there may be thousands.
                    return list(starmap(inbox.popleft, repeat((), count)))

    # -- sending ------------------------------------------------------------------------------------

    def _send(self, packet: bytes | memoryview, flags: int = 0) -> None:
        """Send one packet, waiting for room. Raises as :meth:`.endpoint.Endpoint.publish` does."""
        self._check_caller()
        flags |= _NO_SIGNAL
        deadline: float | None = None
        started = False
        while True:
            epoch = self.epoch
            try:
                self._socket.send(packet, flags)
                return
            except OSError as error:
                if error.errno not in (errno.EAGAIN, *NO_MEMORY):
                    self._broken(error, epoch)
                    continue
                if flags & socket.MSG_DONTWAIT:
                    raise BlockingIOError(errno.EAGAIN, error.strerror) from error
                if not started:
                    deadline, started = self._deadline(self.timeout), True
                self._wait_for_room(error, deadline)

    def _wait_for_room(self, error: OSError | None, deadline: float | None) -> None:
        """The kernel takes no more: wait until it does. ``error`` says why. Raises :exc:`TimeoutError`."""
        if error is None or error.errno not in NO_MEMORY:
            sock = self._socket
            with self._sockets.holding(sock):
                if self._wait_for(sock, select.POLLOUT, deadline):
                    return
        else:  # poll would say at once that the socket can be written
            left = time_left(deadline)
            if left != 0:
                self._sleep(MEMORY_PAUSE if left is None else min(MEMORY_PAUSE, left))
                return
        raise TimeoutError(f"{self.address}: the hub takes no more for now")

    def _broken(self, error: OSError, epoch: int) -> None:
        """A send failed: return once there is a new connection, or raise."""
        if error.errno not in BROKEN:
            raise error
        if self._closed or not self._reconnect:
            self._hear_out()
            raise self._disconnected() from error
        self._until(
            lambda: self._up and self.epoch > epoch, self._deadline(self.timeout), f"{self.address}: the hub is away"
        )

    def _send_all(self, packets: list[bytes], deadline: float | None) -> None:
        """Send packets on the connection at hand, without reconnecting."""
        done = 0
        while done < len(packets):
            failure: OSError | None = None
            try:
                with self._writer_lock:
                    done += self._packet_writer.send(self._socket, packets[done:])
            except OSError as error:
                if error.errno in BROKEN:
                    self._hear_out()
                    raise self._disconnected() from error
                if error.errno not in NO_MEMORY:
                    raise
                failure = error
            if done < len(packets):
                self._wait_for_room(failure, deadline)

    def _say(self, change: Callable[[], list[bytes]], deadline: float | None) -> int:
        """Change the session, and send the packets that tell the hub. Returns the epoch in which they were sent.

        If the connection breaks meanwhile, they are not sent again: the next connection restores the session's state.
        """
        self._check_caller()
        while True:
            with self._lead.lock:
                if self._up:
                    epoch = self.epoch
                    packets = change()
                    break
            self._until(lambda: self._up, deadline, f"{self.address}: the hub is away")
        try:
            self._send_all(packets, deadline)
        except DisconnectedError:
            if self._closed or not self._reconnect:
                raise
        return epoch

    def _ask(self, question: Callable[[], list[bytes]], answered: Callable[[], bool]) -> None:
        """Ask the hub, and wait for the answer. If the connection breaks, ask again."""
        deadline = self._deadline(self.timeout)
        what = f"{self.address}: the hub did not answer in time"
        while True:
            epoch = self._say(question, deadline)
            self._until(lambda epoch=epoch: answered() or self.epoch != epoch, deadline, what)  # type: ignore[misc]
            if answered():
                return

    def _send_in_order(self, packets: list[bytes]) -> None:
        """Send packets, over reconnections. To a hub that takes no batches, their messages go one by one."""
        self._check_caller()
        deadline, is_plain = self._deadline(self.timeout), False
        while packets:
            failure: OSError | None = None
            epoch, sock = self.epoch, self._socket
            if not self._session.batches and not is_plain:
                packets, is_plain = plain(packets), True
            try:
                with self._writer_lock:
                    sent = self._packet_writer.send(sock, packets)
            except OSError as error:
                if error.errno not in NO_MEMORY:
                    self._broken(error, epoch)
                    deadline = self._deadline(self.timeout)
                    continue
                failure, sent = error, 0
            if sent:
                packets = packets[sent:]
                deadline = self._deadline(self.timeout)  # which each packet has for itself
            if packets:
                self._wait_for_room(failure, deadline)

    # -- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection. What was published before is still delivered.

        In the child of a fork, the parent's connection stays open.
        """
        if not self._is_copy:
            self._check_caller()
        with self._lead.lock:
            if self._closed:
                return
            self._closed = True
            if self._lead.taken:
                self._shut_down()  # wakes the caller that has the lead, which then closes the socket
            else:
                self._ended = True
                self._release_socket()
            self._lead.wake_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
