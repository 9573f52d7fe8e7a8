"""A client's connection: makes it, keeps it, and sends and receives packets over it.

Written once for all kinds of client, as coroutines, on top of how each kind :mod:`waits <.runtime>`.

Several callers may use one client at once. The one that has the *lead* reads for all of them, and puts packets into
the session: see :mod:`~sbuslib.clients.leadership`.

The session is plain state, which operations change at once, whether there is a connection or not. The connection
follows it: packets for the hub are in one queue, in order. A new connection begins with all that the session holds; the
next caller sends the packets of one that gave up.

A fork copies a client. If the child used the copy, parent and child would each lose packets that the other one reads.
So in the child every verb raises :exc:`~sbuslib.errors.StateError`, and nothing that the child does, for example
closing the client, affects the parent.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Literal, Protocol, TypeAlias

from ..errors import DisconnectedError, PeerError, StateError
from ..kernel.descriptors import WITH_DESCRIPTORS
from ..kernel.dialer import BROKEN, NO_MEMORY, Dialer
from ..kernel.forks import abandon_in_child, disconnect_copy
from ..kernel.own_hub import Serving, serving
from ..kernel.receive_buffer import PlainReceiveBuffer, make_receive_buffer
from ..kernel.vectors import ONE_PACKET_FLAGS
from ..limits import ClientLimits, check_seconds
from ..wire import control
from .batch import plain
from .connection_states import NEXT, Change, State
from .hub_requests import HubQuestion
from .leadership import LeaderFollowers, earliest, time_left
from .readiness import Readiness
from .reconnect import CONNECT_PAUSE, CONNECT_PAUSE_MOST, MEMORY_PAUSE, Backoff, Reconnecting
from .runtime import Runtime
from .session import Session
from .writing import ClientWriter

logger = logging.getLogger("sbuslib.clients")

_NOBODY = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
"""The socket of a client that has no hub yet: it is closed."""
_NOBODY.close()

Event: TypeAlias = Literal["connected", "disconnected"]
"""Connection event seen during one read: connected again, or lost."""


class Closing(Protocol):
    """Something that ends with a client."""

    def close(self) -> None: ...


class ClientConnection:
    """The connection of one client, whose ``session`` it follows.

    :param call_back: called with connection events; an awaitable that it returns is awaited.
    """

    def __init__(
        self,
        runtime: Runtime,
        dialer: Dialer,
        session: Session,
        limits: ClientLimits,
        timeout: float | None,
        *,
        reconnect: bool | None,
        call_back: Callable[[Event], object],
        on_notice: Callable[[control.Notice], object] | None,
    ) -> None:
        self.timeout = timeout
        """Seconds that connecting, sending and questions to the hub may take; ``None``: for ever."""
        self.epoch = 0
        """The number of the connection: 0 before the first, one more for each."""
        self.state = State.CONNECTING  # see the table
        self.runtime = runtime  # how its callers wait
        self.session = session
        """Requests to the hub, and its answers."""
        self.limits = limits  # the bounds of this client
        self.socket: socket.SocketType = _NOBODY
        """The socket on which messages are published, non-blocking: of a hub that has greeted this client."""
        self._dialed: socket.SocketType | None = None  # that of the attempt under way, which a hub has not greeted yet
        self.begun: dict[object, Callable[[], Awaitable[None]]] = {}
        """Background work, and the functions that stop it."""

        self._owned: list[Closing] = []  # closed with the client
        self._dialer = dialer  # finds the hub
        self._reconnect = reconnect  # None: from the first thing on that serves or watches
        self._call_back = call_back
        self._on_notice = on_notice
        self._buffer: PlainReceiveBuffer | None = None  # made by the first receive
        self._is_receiving = False  # whether the buffer may have packets that are not sorted
        self._greeted_by: float | None = None  # when the attempt under way has failed
        self._reconnecting = Reconnecting(limits.reconnect_pause, limits.reconnect_pause_most)
        self._serving: Serving | None = None  # the hub, if it is one of this process
        self._readiness: Readiness | None = None  # what the application polls; None until it asks for that
        self._owner: object = None  # the event loop to which the client belongs; None: any caller may use it
        self._process = os.getpid()
        self._is_copy = False  # whether this is the child of a fork

        self._make_locks()
        abandon_in_child(self, ClientConnection.abandon)

    def _make_locks(self) -> None:
        """Make what callers wait with."""
        runtime = self.runtime
        # which caller reads
        self.leadership = LeaderFollowers(runtime.make_lock(), runtime.make_waiter, runtime.find_waiting)
        self.writer = ClientWriter(runtime.make_lock())

    # -- its state ----------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The address of the hub."""
        return self._dialer.address

    @property
    def is_up(self) -> bool:
        """Whether there is a connection, and the hub knows the session's state."""
        return self.state is State.UP

    @property
    def is_closed(self) -> bool:
        """Whether the client was closed."""
        return self.state is State.CLOSED

    @property
    def may_reconnect(self) -> bool:
        """Whether a connection that ended is made anew: because the client is set to, or to restore all but a refused
        subscription.
        """
        is_over = self.state in (State.OVER, State.CLOSED)
        return not is_over and (bool(self._reconnect) or self.session.refused)

    def stay(self) -> None:
        """Something serves or watches from now on: it is to outlive a restart of the hub, unless it was said not to."""
        if self._reconnect is None:
            self._reconnect = True

    def here(self) -> socket.SocketType:
        """The connection's socket. Raises :exc:`~sbuslib.errors.DisconnectedError` without one."""
        sock = self._newest
        if sock.fileno() < 0:
            raise self.disconnected()
        return sock

    @property
    def _newest(self) -> socket.SocketType:
        return self.socket if self._dialed is None else self._dialed

    def disconnected(self) -> DisconnectedError:
        """The error for a connection that ended."""
        return DisconnectedError("the client is closed") if self.is_closed else self.session.disconnected(self.address)

    def _go(self, change: Change) -> None:
        self.state = NEXT[self.state][change]

    def _lose(self) -> None:
        """The connection ended."""
        self._go(Change.LOST if self.may_reconnect else Change.GIVEN_UP)

    def _check_open(self) -> None:
        if self.state in (State.OVER, State.CLOSED):
            raise self.disconnected()

    # -- its owner ----------------------------------------------------------------------------------

    def check_caller(self) -> None:
        """Raise :exc:`~sbuslib.errors.StateError` if the caller may not use this client."""
        self.check_owner()
        if not self.runtime.is_begun and not self.is_closed:
            raise StateError(f"{self.address}: not connected yet: use 'async with' the client, or await it")

    def check_owner(self) -> None:
        """As :meth:`check_caller`, also before the client is used."""
        if self._is_copy:
            owner = f"process {self._process}, and this process is its fork"
        elif self._owner is not None and self.runtime.find_caller() is not self._owner:
            owner = self.runtime.OWNER
        else:
            return
        raise StateError(f"{self.address}: this client belongs to {owner}: make another one here")

    def disown(self) -> None:
        """The event loop to which the client belongs runs no more: any caller may close it."""
        self._owner = None

    def abandon(self) -> None:
        """In the child of a fork: leave the connection, and the packets that came over it, to the parent."""
        self._is_copy = True
        disconnect_copy(self._newest)
        self.session.abandon()
        self._owned.clear()
        self._make_locks()  # those of the parent may be held by threads that the child does not have

    @staticmethod
    def deadline(timeout: float | None) -> float | None:
        """Return when so many seconds are over, by ``time.monotonic``; ``None`` for never.

        Raises :exc:`~sbuslib.errors.UsageError` for anything but a number from 0 on.
        """
        seconds = check_seconds(timeout, "timeout")
        return None if seconds is None else monotonic() + seconds

    def limit(self, until: float | None = None) -> float | None:
        """Return when a verb that begins now has to be done: after :attr:`timeout`, and at ``until`` at the latest."""
        return earliest(self.deadline(self.timeout), until)

    # -- connecting ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect for the first time."""
        self.check_owner()
        self._owner = self.runtime.find_caller()

        # Other callers wait for this one meanwhile, as for any that has the lead.
        deadline = self.deadline(self.timeout)
        alive = Lock()
        try:
            with alive:
                self.leadership.start(alive)  # others that use the client already wait for the connection
                while True:
                    try:
                        await self._attempt(deadline)
                        return
                    except OSError as error:
                        await self.runtime.sleep(self._pause(error, time_left(deadline)))
        except BaseException:
            self._release_socket()  # nobody goes on with the attempt
            raise
        finally:
            self._end_lead(has_read=True)

    def _pause(self, error: OSError, left: float | None) -> float:
        """There is no hub yet: how long to wait before the next attempt. Raises ``error`` where nobody waits for it.

        ``left`` is the time that is left of the timeout.
        """
        if self.is_closed:
            raise self.disconnected()
        if not self._reconnect or left == 0:
            raise self._dialer.advised(error) from None
        logger.info("client of %s: waiting for a hub: %s", self.address, error)
        pause = self._reconnecting.pause()
        return pause if left is None else min(pause, left)

    async def _attempt(self, deadline: float | None) -> None:
        """Connect and greet the hub, within :attr:`timeout`. A caller whose time is over leaves that to the next."""
        if self._dialed is None:
            await self._dial(deadline)
        try:
            await self._greet(earliest(deadline, self._greeted_by))
        except TimeoutError as error:
            hint = self._dialer.hint(self._newest)
            if time_left(self._greeted_by) == 0:
                self._release_socket()
            raise TimeoutError(f"{error}{hint}") from None
        except BaseException as error:
            if isinstance(error, Exception) or self.session.knows_itself():  # else the caller was interrupted
                self._release_socket()
            raise

    async def _dial(self, deadline: float | None) -> None:
        """Connect, and note the first packets."""
        if self.state is State.DOWN:
            self._go(Change.DIALED)
        self._greeted_by = self.deadline(self.timeout)

        try:
            sock = await self._connect(earliest(deadline, self._greeted_by))
        except BaseException:
            self._go(Change.LOST)
            raise

        with self.writer.lock:
            self._dialed = sock
            self.writer.unsaid.clear()
            self.writer.unsaid += self.session.hello()
        if self._readiness is not None:
            self._readiness.watch(sock)
        self._serving = None if self.runtime.IN_GEVENT else serving(sock)

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
                await self.runtime.sleep(min(backoff.next(), left if left is not None else CONNECT_PAUSE_MOST))

    async def _greet(self, deadline: float | None) -> None:
        """Ask for our credentials and the hub's features, and restore what an earlier connection had."""
        # 1. What the hub is. A caller that gives up here leaves the rest to the next.
        session, unsaid = self.session, self.writer.unsaid
        if self._serving is not None:
            self._serving.check_here(self.address)
        await self._say_all(deadline, leads=True)
        while not session.knows_itself():
            if await self._read(deadline):
                raise self.disconnected()

        # 2. What this client is. Said again, it changes nothing.
        if opening := session.opening():
            unsaid += opening
            await self._say_all(deadline, leads=True)
            session.batches = True
        with self.leadership.lock:
            # Changes of other callers from here on are sent after this.
            unsaid += session.restore()
            self.socket, self._dialed = self._newest, None
            self.epoch += 1
            self._go(Change.IN_USE)
            self._reconnecting.was_useful = False
        with suppress(TimeoutError):  # the next caller sends the rest
            await self._say_all(deadline, leads=True)

    async def _wait_for(self, fd: int, events: int, deadline: float | None) -> bool:
        """Wait. Raises :exc:`~sbuslib.errors.StateError` in the thread that the hub needs to serve."""
        left = time_left(deadline)
        if self._serving is not None and left != 0:
            self._serving.check_here(self.address)
        return await self.runtime.wait(fd, events, left)

    async def _wait_beside(self, events: int, deadline: float | None) -> bool:
        """Wait for the connection beside the caller that reads.

        With a descriptor of its own: if the socket is closed meanwhile, its number may be that of another one.
        """
        with self.leadership.lock:
            if (fd := self._newest.fileno()) < 0:
                return True
            fd = os.dup(fd)
        try:
            return await self._wait_for(fd, events, deadline)
        finally:
            os.close(fd)

    async def _connect_again(self, deadline: float | None) -> bool:
        """With the lead: go on with the attempt under way, or try once, after a pause, which others end. Returns
        whether that succeeded.
        """
        if self._dialed is None:
            self._release_socket()
            pause = self._reconnecting.pause()
            if pause and await self.leadership.rest(earliest(pause, time_left(deadline)) or 0.0):
                return False

        # Once: the caller may have a deadline, and another caller may want the leadership.
        self._check_open()
        try:
            await self._attempt(deadline)
        except OSError as error:
            if self._dialed is not None:
                raise TimeoutError(f"{self.address}: the hub does not answer") from None
            self._reconnecting.failed(error)
            if not self._reconnect:  # it was only to have all but what the hub refused
                self._go(Change.GIVEN_UP)
                raise self.disconnected() from error
            if time_left(deadline) == 0:
                raise TimeoutError(f"{self.address}: the hub is away") from None
            return False
        return True

    def _release_socket(self) -> None:
        """End the connection."""
        self._sort_last()
        with self.leadership.lock:
            self._go(Change.LOST)  # from here on nobody says anything on it
        self.session.batches = False  # the hub of the next socket was not asked for batches yet
        sock = self._newest
        if (fd := sock.fileno()) >= 0:
            self.runtime.let_go(fd)
        self._shut_down()
        with self.leadership.lock:
            if self._readiness is not None:
                self._readiness.leave(sock)
            sock.close()
            self._dialed = None

    def _shut_down(self) -> None:
        with suppress(OSError):
            self._newest.shutdown(socket.SHUT_RDWR)
        self.runtime.interrupt()

    # -- reading ------------------------------------------------------------------------------------

    def _receive(self) -> bool | None:
        """Put the packets that are here into the session; whether the connection ended, ``None`` without any.

        Raises :exc:`~sbuslib.errors.PeerError` for what no hub sends, and :exc:`OSError`.
        """
        if (buffer := self._buffer) is None:
            buffer = self._buffer = make_receive_buffer(self.limits.batch)
        if self.session.rest is not None:  # an exception of a signal handler came in between
            return self._sort(buffer)
        lengths = buffer.received() if self._is_receiving else []
        try:
            if not lengths:
                self._is_receiving = True
                lengths = buffer.receive(self._newest)
        except OSError as error:
            if error.errno not in BROKEN:
                raise
            return True
        if not lengths:
            return None

        if lengths[-1] == WITH_DESCRIPTORS:
            self._forget_received(buffer)
            raise PeerError("the hub sent file descriptors")
        if self.state is State.UP and lengths[0]:
            self._reconnecting.was_useful = True
        self.session.note(buffer.offsets, lengths)
        return self._sort(buffer)

    def _sort(self, buffer: PlainReceiveBuffer) -> bool:
        """Sort what was received. Each step may be done again after an exception, and finds nothing left to do."""
        try:
            ended = self.session.take_rest(buffer.data)
        except PeerError:
            self._forget_received(buffer)
            raise
        self._forget_received(buffer)
        return ended

    def _forget_received(self, buffer: PlainReceiveBuffer) -> None:
        buffer.forget_received()
        self._is_receiving = False
        self.session.rest = None

    def _sort_last(self) -> None:
        """The connection ends: sort what came over it and was not sorted, since an exception came in between."""
        if (buffer := self._buffer) is not None and self._is_receiving:
            if self.session.rest is None:
                self.session.note(buffer.offsets, buffer.received())
            with suppress(PeerError):
                self._sort(buffer)

    async def _read(self, deadline: float | None) -> bool:
        """Wait for packets, and put them into the session. ``True``: the connection ended."""
        if (ended := self._receive()) is None:
            if self._serving is not None and time_left(deadline) != 0:
                self._serving.check_here(self.address)
            # The caller has the lead, and while a caller has it the socket is not closed.
            ended = await self.runtime.read(self.here().fileno(), self._receive, deadline)
            if ended is None:
                raise TimeoutError(f"{self.address}: nothing came in time")
        return ended

    async def _hear_out(self, *, leads: bool) -> None:
        """After a failed send: read what the hub has sent, which may be why it kicked this client."""
        with suppress(DisconnectedError, TimeoutError):
            while leads:
                if await self._read(self.deadline(0)):
                    return
            await self.until(lambda: False, self.deadline(0), "")

    async def until(self, ready: Callable[[], bool], deadline: float | None, what: str) -> None:
        """Read, or let another caller read, until ``ready()`` holds.

        Raises :exc:`TimeoutError`, saying ``what``, at the deadline.
        """
        while True:
            self.check_caller()
            alive, leads, event = Lock(), True, None
            try:
                with alive:
                    leads = await self.leadership.lead(alive, ready, self._check_open, deadline)
                    if not leads:
                        return
                    event = await self._read_for_all(deadline)
            except TimeoutError:
                raise TimeoutError(what) from None
            finally:
                self._end_lead(has_read=leads)

            # Without the lead: what this calls may use the client.
            if event is not None and not self.is_closed:
                answer = self._call_back(event)
                if isinstance(answer, Awaitable):
                    await answer
            if self._reconnect and self.state is State.UP and self.session.has_to_renew:
                self.change_now(self.session.renew)
            self._hand_out_notices()
            if ready():
                return

    def _hand_out_notices(self) -> None:
        notices = self.session.notices
        while notices:
            notice = notices.popleft()
            logger.info("client of %s: %s", self.address, notice)
            if self._on_notice is not None:
                self._on_notice(notice)

    async def _read_for_all(self, deadline: float | None) -> Event | None:
        """With the lead: read once, or connect again."""
        try:
            if self.state is not State.UP and self.may_reconnect:
                return "connected" if await self._connect_again(deadline) else None
            if not await self._read_beside_sending(deadline):
                return None
            was_up = self.state is State.UP
            self._lose()
            return "disconnected" if was_up else None
        except PeerError as error:
            # No hub: nothing more is read, and nothing may seem to be sent.
            self.session.kicked = str(error)
            self._lose()
            self._shut_down()
            raise

    async def _read_beside_sending(self, deadline: float | None) -> bool:
        """As :meth:`_read`; meanwhile send the packets of callers that gave up, as the kernel has room for them."""
        while self.writer.unsaid:
            with suppress(OSError):
                self.writer.say_some(self.here)
            if self.writer.unsaid:
                with suppress(TimeoutError):
                    return await self._read(earliest(deadline, self.deadline(MEMORY_PAUSE)))
                if time_left(deadline) == 0:
                    break
        return await self._read(deadline)

    def _end_lead(self, *, has_read: bool) -> None:
        """A caller waits no more. If the client was closed while it had the lead, it closes the socket."""
        try:
            if self.is_closed:
                with self.leadership.lock:
                    if not self.leadership.taken:
                        self._release_socket()
            self._show_unread()
            self.leadership.pass_on(has_read=has_read)
        except BaseException:  # of a signal handler: others do not wait for its thread
            self.leadership.pass_on()
            raise

    def _show_unread(self) -> None:
        """If the application polls: show it that there is something to receive that is not in the socket."""
        if self._readiness is not None:
            with self.leadership.lock:
                self._readiness.show(self.state in (State.OVER, State.CLOSED) or self.session.has_unread)

    # -- sending ------------------------------------------------------------------------------------

    async def _wait_for_room(self, error: OSError | None, deadline: float | None) -> None:
        """The kernel takes no more: wait until it does. ``error`` says why. Raises :exc:`TimeoutError`."""
        if error is None or error.errno not in NO_MEMORY:
            if await self._wait_beside(select.POLLOUT, deadline):
                return
        else:  # poll would say at once that the socket can be written
            left = time_left(deadline)
            if left != 0:
                await self.runtime.sleep(MEMORY_PAUSE if left is None else min(MEMORY_PAUSE, left))
                return
        raise TimeoutError(f"{self.address}: the hub takes no more for now")

    async def _broken(self, error: OSError, epoch: int, flags: int, deadline: float | None) -> None:
        """A send failed: return once there is a new connection, or raise. With ``MSG_DONTWAIT``, try once at most."""
        if error.errno not in BROKEN and not isinstance(error, DisconnectedError):
            raise error
        if not self.may_reconnect:
            await self._hear_out(leads=False)
        if not self.may_reconnect:
            raise self.disconnected() from error

        is_quick = bool(flags & socket.MSG_DONTWAIT)
        try:
            await self.until(
                lambda: self.state is State.UP and self.epoch > epoch,
                self.deadline(0) if is_quick else deadline,
                f"{self.address}: the hub is away",
            )
        except TimeoutError as away:
            if is_quick:
                raise BlockingIOError(errno.EAGAIN, str(away)) from None
            raise

    async def _say_all(self, deadline: float | None, *, leads: bool = False) -> None:
        """Send the hub all packets that wait for it, without reconnecting."""
        while self.writer.unsaid:
            failure: OSError | None = None
            try:
                self.writer.say_some(self.here)
            except OSError as error:
                if error.errno in BROKEN or isinstance(error, DisconnectedError):
                    await self._hear_out(leads=leads)
                    raise self.disconnected() from error
                if error.errno not in NO_MEMORY:
                    raise
                failure = error

            # Packets that the kernel did not take wait until it has room, or memory.
            if self.writer.unsaid:
                await self._wait_for_room(failure, deadline)

    async def send(self, packets: list[bytes], flags: int = 0, *, until: float | None = None) -> None:
        """Send packets, over reconnections. To a hub that takes no batches, their messages go one by one.

        Each packet has :attr:`timeout` for itself, and all have until ``until``. ``flags`` are those of send(2): with
        ``MSG_DONTWAIT``, raises :exc:`BlockingIOError` in place of waiting.
        """
        self.check_caller()
        deadline, is_plain = self.limit(until), False
        while packets:
            failure: OSError | None = None
            epoch, sock = self.epoch, self.socket
            if not self.session.batches and not is_plain:
                packets, is_plain = plain(packets), True
            try:
                sent = self.writer.send(sock, packets, ONE_PACKET_FLAGS | flags)
            except OSError as error:
                if error.errno not in NO_MEMORY:
                    await self._broken(error, epoch, flags, deadline)
                    continue
                failure, sent = error, 0

            if sent:
                packets = packets[sent:]
                deadline = self.limit(until)
            if packets:
                if flags & socket.MSG_DONTWAIT:
                    raise BlockingIOError(errno.EAGAIN, "the hub takes no more for now")
                await self._wait_for_room(failure, deadline)

    def note(self, change: Callable[[], list[bytes]]) -> bool:
        """Change the session. Returns whether there is a hub, to which packets have to be sent; else the next one gets
        them.
        """
        with self.leadership.lock:
            packets = change()
            if is_up := self.state is State.UP:
                self.writer.note(packets)
            return is_up

    async def change(self, change: Callable[[], list[bytes]], deadline: float | None) -> bool:
        """Change the session at once, and send that to the hub. Returns whether there is one. Raises
        :exc:`TimeoutError`.

        Without a hub raises :exc:`~sbuslib.errors.DisconnectedError` unless another one is looked for.
        """
        self.check_caller()
        is_there = self.note(change)
        if is_there:
            await self._send_waiting(deadline)
        elif not self.may_reconnect:
            raise self.disconnected()
        return is_there

    def change_now(self, change: Callable[[], list[bytes]]) -> None:
        """Change the session at once, and send the hub as much as takes no time; the next caller sends the rest.

        For callers who have nobody to report to: what they began has failed, or has ended.
        """
        self.check_caller()
        if self.note(change):
            with suppress(OSError):
                self.writer.say_some(self.here)

    async def _send_waiting(self, deadline: float | None) -> None:
        """As :meth:`_say_all`. If the connection breaks meanwhile, the next one restores the session's state."""
        try:
            await self._say_all(deadline)
        except DisconnectedError:
            if not self.may_reconnect:
                raise

    async def reach(self, deadline: float | None) -> None:
        """Wait until there is a hub, so that it is known what it can do. Raises as :meth:`ask`."""
        self.check_caller()
        while not self.is_up:
            await self.until(lambda: self.is_up, deadline, f"{self.address}: the hub is away")

    def require(self, feature: bytes, lack: str) -> None:
        """Raise :exc:`~sbuslib.errors.StateError`, saying the ``lack``, if the hub has not an extension.

        To be called where it is known what the hub can do: by an ``ask`` of :meth:`ask`, or after :meth:`reach`.
        """
        if not self.session.can(feature):
            raise StateError(f"{self.address}: {lack}")

    async def ask(self, ask: Callable[[], HubQuestion], deadline: float | None, *, lasts: bool = True) -> bytes:
        """Ask the hub, and wait for the answer. Asks again on a new connection.

        ``ask`` is called on each connection, once it is known what its hub can do, and may raise an error. Raises
        :exc:`TimeoutError`. Unless the question ``lasts`` beyond the connection, raises
        :exc:`~sbuslib.errors.DisconnectedError` when that has ended.
        """
        self.check_caller()
        question, epoch = HubQuestion(b""), 0

        def is_over() -> bool:
            return question.answer is not None or self.epoch != epoch or not (lasts or self.is_up)

        while question.answer is None:
            with self.leadership.lock:
                if is_up := self.is_up:
                    epoch, question = self.epoch, ask()
                    self.session.expect(question)
                    self.writer.unsaid.append(question.packet)
            if not is_up:
                if not lasts:
                    raise self.disconnected()
                await self.reach(deadline)
                continue
            try:
                await self._send_waiting(deadline)
                await self.until(is_over, deadline, f"{self.address}: the hub did not answer in time")
            except BaseException:
                with self.leadership.lock:
                    if self.writer.withdraw(question.packet):
                        self.session.expect_no_more(question)
                raise
        return question.answer

    # -- the end ------------------------------------------------------------------------------------

    def close_with(self, owned: Closing) -> None:
        """Close this, too, when the client is closed."""
        self._owned.append(owned)

    def close(self) -> None:
        """Close the connection. Earlier messages are still delivered.

        In the child of a fork, the parent's connection stays open.
        """
        if not self._is_copy:
            self.check_owner()
        with self.leadership.lock:
            if self.is_closed:
                return
            self._go(Change.CLOSED)
            if self.leadership.taken:
                self._shut_down()  # wakes the caller that has the lead, which then closes the socket
            else:
                self._release_socket()
            self.leadership.wake_all()
            self._show_unread()
        for owned in self._owned:
            owned.close()

    def fileno(self) -> int:
        """A descriptor to poll: readable while messages wait in the connection or inside of the client."""
        self.check_caller()
        if self.is_closed:
            raise self.disconnected()
        if self._readiness is None:
            with self.leadership.lock:
                readiness = Readiness()
                if self._newest.fileno() >= 0:
                    readiness.watch(self._newest)
                self._readiness = readiness
        self._show_unread()
        return self._readiness.fileno()
