"""What the asyncio client does below its verbs: connecting, and moving packets over the connection.

As in :mod:`~sbuslib.clients.channel`, the task that has the *lead* reads for all, see :mod:`~sbuslib.clients.lead`. A
client belongs to the event loop that connected it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from threading import get_ident
from typing import Self

from ..errors import DisconnectedError, PeerError, StateError
from ..kernel.dialer import BROKEN, NO_MEMORY
from ..kernel.serving import serving
from ..kernel.vectors import ONE_PACKET_FLAGS
from .aio_lead import TaskLead
from .base import ClientBase, Event
from .batch import plain
from .lead import time_left
from .reconnect import CONNECT_PAUSE, CONNECT_PAUSE_MOST, MEMORY_PAUSE, Backoff

__all__ = ["AioChannel"]


class AioChannel(ClientBase):
    """A connection of the asyncio client. See :class:`sbuslib.aio.Client`."""

    _OWNER = "the event loop that connected it"

    def _make_locks(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # to which the client belongs
        self._thread = 0  # of the event loop
        self._lead = TaskLead()
        self._reader: asyncio.Future[bool | None] | None = None  # of the task that leads
        self._watched = False  # whether the event loop tells when there is something to read
        self._writers: list[asyncio.Future[None]] = []

    def _find_caller(self) -> asyncio.AbstractEventLoop | None:
        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            return None

    # -- connecting ---------------------------------------------------------------------------------

    def __await__(self) -> Generator[object, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def _open(self) -> Self:
        self._check_caller()
        if self._socket is not None or self._closed:
            raise StateError("a client connects once")
        self._loop = self._owner = asyncio.get_running_loop()
        self._thread = get_ident()
        deadline = self._deadline(self.timeout)
        self._lead.taken = True  # other tasks that use the client already wait for the connection
        try:
            while True:
                try:
                    await self._connect(time_left(deadline))
                    return self
                except OSError as error:
                    await asyncio.sleep(self._wait_for_hub(error, time_left(deadline)))
        finally:
            self._lead.give_back()

    async def _connect(self, timeout: float | None) -> None:
        backoff = Backoff(CONNECT_PAUSE, CONNECT_PAUSE_MOST)
        hint = ""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        self._socket = self._dialer.dial()
                        break
                    except BlockingIOError:
                        await asyncio.sleep(backoff.next())
                hint = self._dialer.hint(self._socket)
                await self._begin()
        except TimeoutError:
            raise TimeoutError(f"{self.address}: the hub did not answer in time{hint}") from None

    async def _begin(self) -> None:
        """Learn who we are and what the hub offers, and restore what an earlier connection held."""
        session = self._session
        try:
            if (found := serving(self._here())) is not None:
                found.check_here(self.address)
                found.check_alive(self.address)
            await self._send_all(session.hello())
            while not session.knows_itself():
                if await self._read():
                    raise self._disconnected()
            opening = session.opening()
            if opening:
                await self._send_all(opening)
                session.batches = True
            # From here on other tasks say for themselves what they want.
            await self._send_all(self._restore())
        except BaseException:
            self._release()
            raise

    async def _connect_again(self) -> None:
        """Reconnect, for as long as it takes."""
        self._release()
        while True:
            if pause := self._reconnecting.pause():
                await asyncio.sleep(pause)
            if self._closed:
                raise self._disconnected()
            try:
                await self._connect(self.timeout)
                return
            except (OSError, TimeoutError) as error:
                self._reconnecting.failed(error)

    def _hear_out(self) -> None:
        """Sending failed: read what the hub still said, which may be why it kicked this client."""
        with suppress(OSError, PeerError):
            while self._receive() is False:
                pass

    def _here(self) -> socket.SocketType:
        if self._socket is None:
            raise self._disconnected()
        return self._socket

    def _release(self) -> None:
        """End the connection, and wake all tasks that wait for its socket."""
        self._up = False
        self._session.batches = False
        if self._socket is not None:
            assert self._loop is not None
            self._watched = False
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket.fileno())
                self._loop.remove_writer(self._socket.fileno())
                if self._reader is not None and not self._reader.done():
                    self._reader.set_result(True)
                self._wake_writers()
            self._socket.close()
            self._socket = None

    # -- reading and sending ------------------------------------------------------------------------

    async def _readable(self, deadline: float | None) -> bool:
        """Wait until packets came and were sorted; ``True`` when the connection ended. For the task with the lead."""
        loop = asyncio.get_running_loop()
        self._reader = loop.create_future()
        # The event loop keeps watching: to start and stop it for each wait would cost more than to receive.
        if not self._watched:
            loop.add_reader(self._here().fileno(), self._on_readable)
            self._watched = True
        try:
            return await self._lead.wait(self._reader, deadline)
        finally:
            self._reader = None

    def _on_readable(self) -> None:
        """Receive for the task that has the lead: until it runs, the event loop would call this again and again."""
        reader = self._reader
        if reader is None:
            if self._socket is not None:
                asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._watched = False
        elif not reader.done():
            try:
                ended = self._receive()
                if ended is not None:
                    reader.set_result(ended)
            except Exception as error:
                reader.set_exception(error)

    async def _wait_for_room(self, has_memory: bool, deadline: float | None) -> None:
        """The kernel takes no more: wait until it does. Without memory, it would say at once that it does."""
        try:
            async with asyncio.timeout(time_left(deadline)):
                await (self._writable() if has_memory else asyncio.sleep(MEMORY_PAUSE))
        except TimeoutError:
            raise TimeoutError(f"{self.address}: the hub takes no more for now") from None

    async def _writable(self) -> None:
        """Wait until the socket can be written or the connection ended. Any number of tasks may."""
        loop = asyncio.get_running_loop()
        sock = self._here()
        ready: asyncio.Future[None] = loop.create_future()
        self._writers.append(ready)
        loop.add_writer(sock.fileno(), self._wake_writers)
        try:
            await ready
        finally:
            self._writers.remove(ready)
            if not self._writers and self._socket is sock:
                loop.remove_writer(sock.fileno())

    def _wake_writers(self) -> None:
        for ready in self._writers:
            if not ready.done():
                ready.set_result(None)

    async def _read(self, deadline: float | None = None) -> bool:
        """Wait for packets and sort them into the session; ``True`` when the connection ended."""
        ended = self._receive()
        return ended if ended is not None else await self._readable(deadline)

    async def _until(self, ready: Callable[[], bool], timeout: float | None, what: str) -> None:
        """Read, or let another task read, until ``ready()`` holds. Raises :exc:`TimeoutError`, saying ``what``."""
        self._check_caller()
        deadline = self._deadline(timeout)
        while True:
            try:
                if not await self._lead.take(ready, self._check_open, deadline):
                    return
                event = await self._read_for_all(deadline)
            except TimeoutError:
                raise TimeoutError(what) from None
            result = self._call_back(event)
            if isinstance(result, Awaitable):
                await result
            if self._reconnect and self._up and self._session.has_to_renew:
                await self._say(self._session.renew)
            self._session.renamed.clear()  # this client has no callbacks
            self._hand_out_notices()

    def _check_open(self) -> None:
        if self._closed or not (self._up or self._reconnect):
            raise self._disconnected()

    async def _read_for_all(self, deadline: float | None) -> Event:
        """With the lead: read once, or connect again. Gives the lead back."""
        try:
            if not self._up:
                async with asyncio.timeout(time_left(deadline)):
                    await self._connect_again()
                return "connected"
            if not await self._read(deadline):
                return None
            self._release()
            return "disconnected"
        except PeerError:
            self._release()
            raise
        finally:
            self._lead.give_back()

    async def _send_all(self, packets: list[bytes], flags: int = ONE_PACKET_FLAGS) -> None:
        """Send packets on the connection at hand, waiting for room. Takes those sent out of ``packets``.

        To a hub that takes no batches, their messages go one by one.
        """
        deadline, is_plain = self._deadline(self.timeout), False
        while packets:
            if not self._session.batches and not is_plain:
                packets[:], is_plain = plain(packets), True
            has_memory = True
            try:
                del packets[: self._packet_writer.send(self._here(), packets, flags)]
            except OSError as error:
                if error.errno in BROKEN:
                    self._hear_out()
                    raise self._disconnected() from error
                if error.errno not in NO_MEMORY:
                    raise
                has_memory = False
            if packets:
                await self._wait_for_room(has_memory, deadline)

    async def _send(self, packets: list[bytes], flags: int = ONE_PACKET_FLAGS) -> None:
        """As :meth:`_send_all`, over reconnections."""
        self._check_caller()
        while True:
            epoch = self.epoch
            try:
                await self._send_all(packets, flags)
                return
            except DisconnectedError:
                if not self._reconnect or self._closed:
                    raise
            await self._until(
                lambda epoch=epoch: self._up and self.epoch > epoch,  # type: ignore[misc]
                self.timeout,
                f"{self.address}: the hub is away",
            )

    async def _say(self, change: Callable[[], list[bytes]]) -> int:
        """Change the session and send the packets that this takes; the epoch in which they were sent.

        Should the connection break meanwhile, the next one is brought to the session's state anyway.
        """
        await self._until(lambda: self._up, self.timeout, f"{self.address}: the hub is away")
        epoch = self.epoch
        packets = change()
        try:
            await self._send_all(packets)
        except DisconnectedError:
            if self._closed or not self._reconnect:
                raise
        return epoch

    async def _ask(self, question: Callable[[], list[bytes]], answered: Callable[[], bool]) -> None:
        """Ask the hub, and wait for the answer; ask anew when the connection breaks."""
        what = f"{self.address}: the hub did not answer in time"
        while True:
            epoch = await self._say(question)
            await self._until(
                lambda epoch=epoch: answered() or self.epoch != epoch,  # type: ignore[misc]
                self.timeout,
                what,
            )
            if answered():
                return

    # -- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection. What was published before is still delivered.

        May be called from a task of the client's event loop, and by any caller when that loop does not run, as after
        :func:`asyncio.run`; else raises :exc:`~sbuslib.errors.StateError`. In the child of a fork, the parent's
        connection stays open.
        """
        if self._closed:
            return
        if self._is_copy:
            self._closed = True
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            return
        if self._loop is not None and self._loop.is_running():
            self._check_caller()
        self._closed = True
        nobody_left = self._loop is None or self._loop.is_closed()
        if self._socket is not None:
            if self._lead.taken and not nobody_left:
                self._socket.shutdown(socket.SHUT_RDWR)  # the task that has the lead sees the end, and releases it
            else:
                self._release()
        if not nobody_left:
            self._lead.wake_all()
