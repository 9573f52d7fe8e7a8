"""A client's connection: makes it, keeps it, and sends and receives packets over it.

Written once for all kinds of client, as coroutines. What waits is defined by each kind: for asyncio it awaits, for
greenlets and threads it blocks and so never suspends, and :func:`run` carries the coroutine out.

Several callers may use one client at once. The one that has the *lead* reads for all of them, and puts what comes into
the session: see :mod:`~sbuslib.clients.lead`.

The session is plain state, which verbs change at once, whether there is a connection or not. The connection follows it:
what the hub has still to be told is in one queue, in order. A new connection begins with all that the session holds;
what a caller gave up to tell, the next one tells.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from threading import Lock
from typing import Any, ClassVar, TypeVar

from ..doors.asking import Asker
from ..doors.door import Door
from ..errors import DisconnectedError, PeerError
from ..kernel.dialer import BROKEN, NO_MEMORY
from ..kernel.own_hub import Serving, serving
from ..kernel.packet_writer import PacketWriter
from ..kernel.vectors import ONE_PACKET_FLAGS
from .base import ClientBase, Event
from .batch import plain
from .lead import Lead, Waiter, time_left
from .questions import HubQuestion
from .readiness import Readiness
from .reconnect import CONNECT_PAUSE, CONNECT_PAUSE_MOST, MEMORY_PAUSE, Backoff

__all__ = ["Channel", "run"]

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Carry out a coroutine of a client that blocks its caller: it never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("a client that blocks has nothing to await")


class Channel(ClientBase):
    """What all clients share below their verbs."""

    _WAITS_IN_GEVENT: ClassVar[bool] = False
    _SHARES_TURNS: ClassVar[bool] = True
    """Whether callers that share a client take turns in one thread."""
    _AWAITS: ClassVar[bool] = False
    """Whether functions of the application may be coroutine functions."""
    _WORKERS: ClassVar[int] = 1
    """How many questions a server answers at a time, unless told."""
    _socket: socket.SocketType
    _serving: Serving | None = None  # the hub, if it is one of this process
    _ended = False  # whether there is nothing more to wait for
    _beginning = False  # whether a new connection is brought to the session's state
    _readiness: Readiness | None = None  # what the application polls; None until it asks for that

    # -- how to wait: each kind of client defines it ------------------------------------------------

    @abstractmethod
    def _make_waiter(self) -> Waiter: ...

    def _make_lock(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _find_waiting(self) -> object:
        """The caller, if it is one that waits for one thing at a time, but for signal handlers."""
        return None

    @abstractmethod
    async def _wait(self, fd: int, events: int, timeout: float | None) -> bool:
        """Wait for ``select.POLLIN`` or ``select.POLLOUT``; ``False`` after ``timeout`` seconds."""

    async def _wait_readable(self, fd: int, timeout: float) -> bool:
        return await self._wait(fd, select.POLLIN, timeout)

    @abstractmethod
    async def _sleep(self, seconds: float) -> None: ...

    async def _in_time(self, function: Callable[[Any], Any], argument: Any, until: float | None) -> Any:
        """Call a function of the application. Where that can be, it is ended at ``until``, by ``time.monotonic``."""
        return function(argument)

    @abstractmethod
    def _start(self, work: Coroutine[Any, Any, None]) -> Any:
        """Run a coroutine in the background: in a greenlet, a thread or a task, which this returns."""

    @abstractmethod
    async def _join(self, running: Any) -> None:
        """Wait for what :meth:`_start` has started, unless that is the caller."""

    def _abandon(self) -> None:
        super()._abandon()
        # The locks may be held by threads that the child does not have.
        self._make_locks()

    def _make_locks(self) -> None:
        self._lead = Lead(self._make_lock(), self._make_waiter, self._find_waiting)
        self._writer_lock = self._make_lock()  # while packets are sent; taken inside of the lead's lock, if both are
        self._unsaid: deque[bytes] = deque()  # what the hub of this connection has still to be told or asked, in order
        self._door = Door(self._door_folder, self._limits)  # where this client hands out
        self._asker = Asker(self._wait_readable, self._sleep, self._door_folder)  # asks at the doors of others
        self._begun: set[Any] = set()  # what works in the background

    def _stay(self) -> None:
        """Something serves or watches from now on: it is to outlive a restart of the hub, unless it was said not to."""
        if self._reconnect is None:
            self._reconnect = True

    # -- connecting ---------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Connect for the first time."""
        self._owner = self._find_caller()
        deadline = self._deadline(self.timeout)
        alive = Lock()
        try:
            with alive:
                self._lead.start(alive)  # others that use the client already wait for the connection
                while True:
                    try:
                        await self._open_once(deadline)
                        return
                    except OSError as error:
                        await self._sleep(self._wait_for_hub(error, time_left(deadline)))
        finally:
            self._end_lead(has_read=True)

    async def _open_once(self, deadline: float | None) -> None:
        sock = await self._connect(deadline)
        with self._writer_lock:
            self._socket = sock
            self._unsaid.clear()
        if self._readiness is not None:
            self._readiness.watch(sock)

        try:
            await self._begin(deadline)
        except TimeoutError as error:
            hint = self._dialer.hint(self._socket)
            self._release_socket()
            raise TimeoutError(f"{error}{hint}") from None
        except BaseException:
            self._release_socket()
            raise

    async def _connect(self, deadline: float | None) -> socket.SocketType:
        """Connect; wait while the listen backlog of the hub is full."""
        backoff = Backoff(CONNECT_PAUSE, CONNECT_PAUSE_MOST)
        while True:
            try:
                return self._dialer.dial()
            except BlockingIOError as error:
                left = time_left(deadline)
                if left == 0:
                    raise TimeoutError(error.strerror) from None
                await self._sleep(min(backoff.next(), left if left is not None else CONNECT_PAUSE_MOST))

    async def _begin(self, deadline: float | None) -> None:
        """Ask for our credentials and the hub's features, and restore what an earlier connection had."""
        session, self._beginning = self._session, True
        try:
            self._serving = None if self._WAITS_IN_GEVENT else serving(self._socket)
            if self._serving is not None:
                self._serving.check_here(self.address)
            self._unsaid += session.hello()
            await self._say_all(deadline)
            while not session.knows_itself():
                if await self._read(deadline):
                    raise self._disconnected()
            if opening := session.opening():
                self._unsaid += opening
                await self._say_all(deadline)
                session.batches = True
            with self._lead.lock:
                # What other callers change from here on is said after this.
                self._unsaid += self._restore()
            await self._say_all(deadline)
        except BaseException:
            self._up = False
            raise
        finally:
            self._beginning = False

    async def _wait_for(self, fd: int, events: int, deadline: float | None) -> bool:
        """As :meth:`_wait`. Raises :exc:`~sbuslib.errors.StateError` in the thread that the hub needs to serve."""
        left = time_left(deadline)
        if self._serving is not None and left != 0:
            self._serving.check_here(self.address)
        return await self._wait(fd, events, left)

    async def _wait_beside(self, events: int, deadline: float | None) -> bool:
        """Wait for the connection beside the caller that reads.

        With a descriptor of its own: if the socket is closed meanwhile, its number may be that of another one.
        """
        with self._lead.lock:
            if self._socket.fileno() < 0:
                return True
            fd = os.dup(self._socket.fileno())
        try:
            return await self._wait_for(fd, events, deadline)
        finally:
            os.close(fd)

    async def _connect_again(self, deadline: float | None) -> bool:
        """With the lead: try once to reconnect, after a pause, which others end. Returns whether that succeeded."""
        self._release_socket()
        if pause := self._reconnecting.pause():
            left = time_left(deadline)
            if await self._lead.rest(pause if left is None else min(pause, left)):
                return False
        if self._closed:
            raise self._disconnected()
        try:
            await self._open_once(self._deadline(self.timeout))
        except OSError as error:
            self._reconnecting.failed(error)
            if not self._reconnect:  # it was only to have all but what the hub refused
                self._ended = True
                raise self._disconnected() from error
            if time_left(deadline) == 0:
                raise TimeoutError(f"{self.address}: the hub is away") from None
            return False
        return True

    def _release_socket(self) -> None:
        """End the connection."""
        with self._lead.lock:
            self._up = False  # from here on nobody says anything on it
        self._session.batches = False  # the hub of the next socket was not asked for batches yet
        self._shut_down()
        if self._socket is not None:
            with self._lead.lock:
                if self._readiness is not None:
                    self._readiness.leave(self._socket)
                self._socket.close()

    def _shut_down(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _here(self) -> socket.SocketType:
        if self._socket is None or self._socket.fileno() < 0:
            raise self._disconnected()
        return self._socket

    # -- reading ------------------------------------------------------------------------------------

    async def _read(self, deadline: float | None) -> bool:
        """Wait for packets, and put them into the session. ``True``: the connection ended."""
        while (ended := self._receive()) is None:
            # The caller has the lead, and while a caller has it the socket is not closed.
            if not await self._wait_for(self._socket.fileno(), select.POLLIN, deadline):
                raise TimeoutError(f"{self.address}: nothing came in time")
        return ended

    async def _hear_out(self) -> None:
        """After a failed send: read what the hub has sent, which may be why it kicked this client."""
        with suppress(DisconnectedError, TimeoutError):
            while self._beginning:  # with the lead
                if await self._read(self._deadline(0)):
                    return
            await self._until(lambda: False, self._deadline(0), "")

    def _check_open(self) -> None:
        if self._ended:
            raise self._disconnected()

    async def _until(
        self,
        ready: Callable[[], bool],
        deadline: float | None,
        what: str,
    ) -> None:
        """Read, or let another caller read, until ``ready()`` holds.

        Raises :exc:`TimeoutError`, saying ``what``, at the deadline.
        """
        while True:
            self._check_caller()
            alive, leads = Lock(), True
            try:
                with alive:
                    leads = await self._lead.take(alive, ready, self._check_open, deadline)
                    if not leads:
                        return
                    event = await self._read_for_all(deadline)
            except TimeoutError:
                raise TimeoutError(what) from None
            finally:
                self._end_lead(has_read=leads)

            # Without the lead: what this calls may use the client.
            answer = self._call_back(event)
            if isinstance(answer, Awaitable):
                await answer
            if self._reconnect and self._up and self._session.has_to_renew:
                await self._change(self._session.renew)
            self._hand_out_notices()

    @property
    def _may_reconnect(self) -> bool:
        """Whether a connection that ended is made anew: because the client was told to, or to have all but what the
        hub refused."""
        return not self._closed and (bool(self._reconnect) or self._session.refused)

    async def _read_for_all(self, deadline: float | None) -> Event:
        """With the lead: read once, or connect again."""
        try:
            if not self._up and self._may_reconnect:
                return "connected" if await self._connect_again(deadline) else None
            if self._unsaid:  # by callers that gave up
                with suppress(OSError):
                    self._say_some()
            if not await self._read(deadline):
                return None
            was_up, self._up = self._up, False
            self._ended = not self._may_reconnect
            return "disconnected" if was_up else None
        except PeerError as error:
            # No hub: nothing more is read, and nothing may seem to be sent.
            self._session.kicked = str(error)
            self._up = False
            self._ended = not self._may_reconnect
            self._shut_down()
            raise

    def _end_lead(self, *, has_read: bool) -> None:
        """A caller waits no more. If the client was closed while it had the lead, it closes the socket."""
        try:
            if self._closed:
                with self._lead.lock:
                    if not self._lead.taken:
                        self._ended = True
                        self._release_socket()
            self._show_unread()
            self._lead.pass_on(has_read=has_read)
        except BaseException:  # of a signal handler: others do not wait for its thread
            self._lead.pass_on()
            raise

    def _show_unread(self) -> None:
        """If the application polls: whether there is something to receive that the socket does not tell of."""
        if self._readiness is not None:
            with self._lead.lock:
                self._readiness.show(self._closed or self._ended or self._session.has_unread)

    # -- sending ------------------------------------------------------------------------------------

    async def _wait_for_room(self, error: OSError | None, deadline: float | None) -> None:
        """The kernel takes no more: wait until it does. ``error`` says why. Raises :exc:`TimeoutError`."""
        if error is None or error.errno not in NO_MEMORY:
            if await self._wait_beside(select.POLLOUT, deadline):
                return
        else:  # poll would say at once that the socket can be written
            left = time_left(deadline)
            if left != 0:
                await self._sleep(MEMORY_PAUSE if left is None else min(MEMORY_PAUSE, left))
                return
        raise TimeoutError(f"{self.address}: the hub takes no more for now")

    async def _broken(self, error: OSError, epoch: int) -> None:
        """A send failed: return once there is a new connection, or raise."""
        if error.errno not in BROKEN and not isinstance(error, DisconnectedError):
            raise error
        if not self._may_reconnect:
            await self._hear_out()
        if not self._may_reconnect:
            raise self._disconnected() from error
        await self._until(
            lambda: self._up and self.epoch > epoch, self._deadline(self.timeout), f"{self.address}: the hub is away"
        )

    def _say_some(self) -> None:
        """Tell and ask the hub what it has still to be told and asked, as far as the kernel takes it now."""
        unsaid = self._unsaid
        with self._writer_lock:
            while unsaid:
                some = [unsaid[place] for place in range(min(len(unsaid), PacketWriter.SIZE))]
                try:
                    sent = self._packet_writer.send(self._here(), some)
                except OSError as error:
                    if error.errno == errno.EMSGSIZE:  # it never goes
                        unsaid.popleft()
                    raise
                for _ in range(sent):
                    unsaid.popleft()
                if sent < len(some):
                    return

    async def _say_all(self, deadline: float | None) -> None:
        """Tell and ask the hub all that it has still to be told and asked, without reconnecting."""
        while self._unsaid:
            failure: OSError | None = None
            try:
                self._say_some()
            except OSError as error:
                if error.errno in BROKEN or isinstance(error, DisconnectedError):
                    await self._hear_out()
                    raise self._disconnected() from error
                if error.errno not in NO_MEMORY:
                    raise
                failure = error

            # What the kernel did not take waits until it has room, or memory.
            if self._unsaid:
                await self._wait_for_room(failure, deadline)

    async def _send(self, packets: list[bytes], flags: int = 0) -> None:
        """Send packets, over reconnections. To a hub that takes no batches, their messages go one by one.

        ``flags`` are those of send(2): with ``MSG_DONTWAIT``, raises :exc:`BlockingIOError` in place of waiting.
        """
        self._check_caller()
        deadline, is_plain = self._deadline(self.timeout), False
        while packets:
            failure: OSError | None = None
            epoch, sock = self.epoch, self._socket
            if not self._session.batches and not is_plain:
                packets, is_plain = plain(packets), True
            try:
                with self._writer_lock:
                    sent = self._packet_writer.send(sock, packets, ONE_PACKET_FLAGS | flags)
            except OSError as error:
                if error.errno not in NO_MEMORY:
                    await self._broken(error, epoch)
                    deadline = self._deadline(self.timeout)
                    continue
                failure, sent = error, 0
            if sent:
                packets = packets[sent:]
                deadline = self._deadline(self.timeout)  # which each packet has for itself
            if packets:
                if flags & socket.MSG_DONTWAIT:
                    raise BlockingIOError(errno.EAGAIN, "the hub takes no more for now")
                await self._wait_for_room(failure, deadline)

    def _note(self, change: Callable[[], list[bytes]]) -> bool:
        """Change the session. If the hub is there, which is returned, it has to be told; else the next one is."""
        with self._lead.lock:
            packets = change()
            if self._up:
                with self._writer_lock:
                    for packet in packets:
                        taken_back = packet[2:] if packet.startswith(b"UNSUB ") else b"UN" + packet
                        if self._unsaid and taken_back in self._unsaid:
                            self._unsaid.remove(taken_back)
                        else:
                            self._unsaid.append(packet)
            return self._up

    async def _change(self, change: Callable[[], list[bytes]]) -> bool:
        """Change the session at once, and tell the hub if it is there, which is returned. Raises as :meth:`_tell`.

        Without a hub raises :exc:`~sbuslib.errors.DisconnectedError` unless another one is looked for.
        """
        self._check_caller()
        is_there = self._note(change)
        if is_there:
            await self._tell(self._deadline(self.timeout))
        elif not self._may_reconnect:
            raise self._disconnected()
        return is_there

    async def _tell(self, deadline: float | None) -> None:
        """As :meth:`_say_all`. If the connection breaks meanwhile, the next one restores the session's state."""
        try:
            await self._say_all(deadline)
        except DisconnectedError:
            if not self._may_reconnect:
                raise

    async def _ask(self, ask: Callable[[], HubQuestion], timeout: float | None = None, *, lasts: bool = True) -> bytes:
        """Ask the hub, and wait for the answer, without ``timeout`` as long as for any. Asks again on a new connection.

        Raises :exc:`TimeoutError`. Unless the question ``lasts`` beyond the connection, raises
        :exc:`~sbuslib.errors.DisconnectedError` when that has ended.
        """
        self._check_caller()
        deadline = self._deadline(self.timeout if timeout is None else timeout)
        question, epoch = HubQuestion(b""), 0

        def is_over() -> bool:
            return question.answer is not None or self.epoch != epoch or not (lasts or self._up)

        while question.answer is None:
            with self._lead.lock:
                if is_up := self._up:
                    epoch, question = self.epoch, ask()
                    self._session.expect(question)
                    self._unsaid.append(question.packet)
            if not is_up:
                if not lasts:
                    raise self._disconnected()
                await self._until(lambda: self._up, deadline, f"{self.address}: the hub is away")
                continue
            try:
                await self._tell(deadline)
                await self._until(is_over, deadline, f"{self.address}: the hub did not answer in time")
            except BaseException:
                self._ask_no_more(question)
                raise
        return question.answer

    def _ask_no_more(self, question: HubQuestion) -> None:
        """Nobody waits for the answer: if it was not sent yet, it is not."""
        with self._lead.lock, self._writer_lock:
            if question.packet in self._unsaid:
                self._unsaid.remove(question.packet)
                self._session.expect_no_more(question)

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
            self._show_unread()
        self._asker.close()
        self._door.close()

    @property
    def socket(self) -> socket.SocketType:
        """The connection's socket, non-blocking, to set options on; a reconnection makes another."""
        return self._here()

    def fileno(self) -> int:
        """A descriptor to poll: readable while messages wait in the connection or inside of this client.

        Then receive with ``timeout=0`` until :exc:`TimeoutError`, from the client and from its subscriptions. It stays
        the same over reconnections. Raises :exc:`~sbuslib.errors.DisconnectedError` once the client is closed.
        """
        self._check_caller()
        if self._closed:
            raise self._disconnected()
        if self._readiness is None:
            with self._lead.lock:
                readiness = Readiness()
                if self._socket is not None and self._socket.fileno() >= 0:
                    readiness.watch(self._socket)
                self._readiness = readiness
        self._show_unread()
        return self._readiness.fileno()
