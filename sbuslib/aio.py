"""The client for asyncio: the verbs of the other clients, awaited. Callbacks and flags are left to them."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import suppress
from itertools import chain, islice, repeat, starmap
from time import monotonic
from types import TracebackType

from . import control
from .backoff import Backoff
from .batches import BATCH, Bundle, pack
from .dialer import BROKEN, NO_MEMORY, Dialer
from .errors import DisconnectedError, PeerError, StateError, UsageError
from .limits import PACKET_BYTES, ClientLimits
from .outbox import Hard, Order, Soft
from .packets import Message, check_key
from .seqpacket import ONE_PACKET_FLAGS, Gather, make_area
from .session import Pace, Session, Subscribing, mode_keys
from .statistics import HubStatistics, decode_statistics

__all__ = ["Client"]


class Client:
    """A client of a hub for asyncio. Any number of tasks of one event loop may share it.

    ::

        async with Client("/tmp/bus") as client:      # or: client = await Client("/tmp/bus")
            await client.subscribe(b"room/")
            async for message in client: ...

    The parameters and errors are those of :class:`~sbuslib.endpoint.Endpoint`; ``on_reconnect`` is called,
    and awaited when it returns an awaitable. A task that is cancelled in any of the methods leaves the client usable.
    """

    def __init__(
        self,
        address: str | os.PathLike[str] | None = None,
        *,
        timeout: float | None = 10.0,
        reconnect: bool = False,
        hub_user: int | str | None = None,
        on_reconnect: Callable[[Client], Awaitable[object] | None] | None = None,
        on_notice: Callable[[control.Notice], object] | None = None,
        limits: ClientLimits | None = None,
    ) -> None:
        self.timeout = timeout
        self.limits = limits if limits is not None else ClientLimits()
        self.epoch = 0
        """Which connection this is: 0 before the first, then one more for each."""
        self._dialer = Dialer(address, hub_user, self.limits)
        self._reconnect = reconnect
        self._on_reconnect = on_reconnect
        self._on_notice = on_notice
        self._session = Session()
        self._headers = self._session.headers
        self._area = make_area(self.limits.batch)
        self._gather = Gather()
        self._socket: socket.SocketType | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # that the connection is used from
        self._leading = False
        self._closed = False
        self._changed = asyncio.Event()
        self._followers = 0  # tasks that wait while another leads
        self._reader: asyncio.Future[bool] | None = None  # of the task that leads
        self._watched = False  # whether the event loop tells when there is something to read
        self._writers: list[asyncio.Future[None]] = []
        self._up = False  # whether the connection stands and has been brought to the session's state
        self._proven = False  # whether anything came over it since
        self._backoff = Backoff(self.limits.reconnect_pause, self.limits.reconnect_pause_most)

    # -- connecting ---------------------------------------------------------------------------------

    def __await__(self) -> Generator[object, None, Client]:
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _open(self) -> Client:
        if self._socket is not None or self._closed:
            raise StateError("a client connects once")
        await self._connect()
        return self

    async def _connect(self) -> None:
        backoff = Backoff(self.limits.connect_pause, self.limits.connect_pause_most)
        session = self._session
        self._loop = asyncio.get_running_loop()
        async with asyncio.timeout(self.timeout):
            while True:
                try:
                    self._socket = self._dialer.dial()
                    break
                except BlockingIOError:
                    await asyncio.sleep(backoff.next())
            try:
                await self._send_all(session.hello())
                while not session.knows_itself():
                    if await self._read():
                        raise self._disconnected()
                opening = session.opening()
                if opening:
                    await self._send_all(opening)
                    session.batches = True
                # From here on other tasks say for themselves what they want.
                packets = session.restore()
                self.epoch += 1
                self._up = True
                self._proven = False
                await self._send_all(packets)
                if self.epoch == 1 and session.can(control.NOTICES_ON):
                    # Errors can then say why the hub let this client go, and one that comes back does not ask
                    # again for what it was let go for.
                    await self._send_all(session.choose(b"notices", control.NOTICES_ON))
            except BaseException:
                self._release()
                raise

    async def _connect_again(self) -> None:
        """Reconnect: at once where the last connection was good for something, else after a pause."""
        self._release()
        while True:
            if self._proven:
                self._proven = False
                self._backoff.reset()
            else:
                await asyncio.sleep(self._backoff.next())
            if self._closed:
                raise self._disconnected()
            try:
                await self._connect()
                return
            except (OSError, TimeoutError):
                continue

    def _hear_out(self) -> None:
        """Sending failed: read what the hub still said, which may be why it let this client go."""
        with suppress(OSError, PeerError):
            while self._socket is not None and (lengths := self._area.receive(self._socket)):
                if self._session.take(self._area.data, self._area.offsets, lengths):
                    return

    def _disconnected(self) -> DisconnectedError:
        if self._closed:
            return DisconnectedError("the client is closed")
        why = f" ({self._session.kicked})" if self._session.kicked is not None else ""
        return DisconnectedError(f"{self.address}: the hub closed the connection{why}")

    def _here(self) -> socket.SocketType:
        if self._socket is None:
            raise self._disconnected()
        return self._socket

    def _release(self) -> None:
        """End the connection. Whoever waits for its socket is woken."""
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

    async def _readable(self) -> bool:
        """Until packets came and were sorted, for the one task that leads; ``True`` when the connection ended."""
        loop = asyncio.get_running_loop()
        self._reader = loop.create_future()
        # To say so each time that a task waits, and to take it back, would cost more than to receive.
        if not self._watched:
            loop.add_reader(self._here().fileno(), self._on_readable)
            self._watched = True
        try:
            return await self._reader
        finally:
            self._reader = None

    def _on_readable(self) -> None:
        """Receive for the task that leads, so that the event loop does not tell again what it will do in its turn."""
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

    async def _writable(self) -> None:
        """Until the socket can be written, for any number of tasks, or the connection ended."""
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

    async def _read(self) -> bool:
        """Wait for packets and sort them into the session; ``True`` when the connection ended."""
        ended = self._receive()
        return ended if ended is not None else await self._readable()

    def _receive(self) -> bool | None:
        """Sort the packets that are here into the session; whether the connection ended, ``None`` without any."""
        if self._socket is None:
            return True
        try:
            lengths = self._area.receive(self._socket)
        except OSError as error:
            if error.errno in BROKEN:
                return True
            raise
        if not lengths:
            return None
        self._proven = self._proven or (self._up and lengths[0] > 0)
        return self._session.take(self._area.data, self._area.offsets, lengths)

    async def _until(self, ready: Callable[[], bool], timeout: float | None, what: str) -> None:
        """Read, or let another task read, until ``ready()`` holds."""
        try:
            if timeout is None or ready():
                await self._until_ready(ready)
                return
            async with asyncio.timeout(timeout):
                await self._until_ready(ready)
        except TimeoutError:
            raise TimeoutError(what) from None

    async def _until_ready(self, ready: Callable[[], bool]) -> None:
        while not ready():
            if self._closed or not (self._up or self._reconnect):
                raise self._disconnected()
            if self._leading:
                self._followers += 1
                try:
                    await self._changed.wait()
                finally:
                    self._followers -= 1
            elif await self._lead() and self._on_reconnect is not None:
                result = self._on_reconnect(self)
                if result is not None:
                    await result
            if self._reconnect and self._up and self._session.has_to_renew:
                await self._say(self._session.renew)
            self._session.renamed.clear()  # nothing here goes by patterns
            while self._session.notices:
                notice = self._session.notices.popleft()
                if self._on_notice is not None:
                    self._on_notice(notice)

    async def _lead(self) -> bool:
        """Read once for everybody who waits; ``True`` when that made a new connection."""
        self._leading = True
        try:
            if not self._up:
                await self._connect_again()
                return True
            if await self._read():
                self._release()
            return False
        except PeerError:
            self._release()
            raise
        finally:
            self._leading = False
            if self._followers:
                self._changed.set()
                self._changed = asyncio.Event()

    async def _send_all(self, packets: list[bytes], flags: int = ONE_PACKET_FLAGS) -> None:
        """Send packets on the connection at hand, waiting for room. Takes those sent out of ``packets``.

        To a hub that takes no batches, their messages go one by one.
        """
        while packets:
            if not self._session.batches and any(packet.startswith(BATCH) for packet in packets):
                opened = [Bundle.parse(one).plain if one.startswith(BATCH) else [one] for one in packets]
                packets[:] = chain.from_iterable(opened)
            try:
                sent = self._gather.send(self._here(), packets, flags)
            except OSError as error:
                if error.errno in NO_MEMORY:
                    await asyncio.sleep(self.limits.connect_pause_most)
                    continue
                if error.errno in BROKEN:
                    self._hear_out()
                    raise self._disconnected() from error
                raise
            del packets[:sent]
            if packets:
                await self._writable()

    async def _send(self, packets: list[bytes], flags: int = ONE_PACKET_FLAGS) -> None:
        """As :meth:`_send_all`, over reconnections."""
        what = f"{self.address}: the hub takes no more for now"
        while True:
            epoch = self.epoch
            try:
                async with asyncio.timeout(self.timeout):
                    await self._send_all(packets, flags)
                return
            except TimeoutError:
                raise TimeoutError(what) from None
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
            async with asyncio.timeout(self.timeout):
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

    # -- the verbs ----------------------------------------------------------------------------------

    async def publish(self, key: bytes, payload: bytes = b"", *, flags: int = 0) -> None:
        """Publish one message; waits while the hub has no room for it."""
        sock = self._socket
        if type(payload) is bytes and not flags and sock is not None:
            # As in the other clients: mostly there is room, and then nothing is to be waited for.
            try:
                packet = self._headers[key] + payload
                if len(packet) <= PACKET_BYTES:
                    sock.send(packet, ONE_PACKET_FLAGS)
                    return
            except (KeyError, TypeError, OSError):
                pass
        await self._send([self._session.encode(key, payload)], flags | ONE_PACKET_FLAGS)

    async def publish_many(self, messages: Iterable[tuple[bytes, bytes]]) -> int:
        """Publish pairs of key and payload in order, many at once; how many there were."""
        count = 0
        pace = Pace(self.limits, messages)
        pairs = iter(messages)
        while True:
            some: list[tuple[bytes, bytes]] = []
            began = monotonic()
            try:
                some.extend(islice(pairs, pace.most if self._session.batches else self.limits.batch))
                pace.drew(monotonic() - began)
            finally:
                if some:
                    await self._publish_some(some)
            if not some:
                return count
            count += len(some)

    async def _publish_some(self, pairs: list[tuple[bytes, bytes]]) -> None:
        packets: list[bytes] = []
        done = 0
        if self._session.batches:
            # What is at fault is found below, after what comes before it.
            with suppress(TypeError, ValueError):
                for packet, count in pack(pairs, self._session.check_publishable, self.limits.batch_bytes):
                    packets.append(packet)
                    done += count
        try:
            for key, payload in islice(pairs, done, None):
                packets.append(self._session.encode(key, payload))
        finally:
            await self._send(packets)

    async def subscribe(self, *patterns: bytes) -> None:
        """Subscribe, and return once the hub has it in force."""
        if not patterns:
            raise UsageError("subscribe to at least one pattern; b'' is everything")
        for pattern in patterns:
            check_key(pattern, "pattern")
        asked = Subscribing(list(patterns))
        await self._say(lambda: self._session.subscribe(asked))
        try:
            await self.sync()
        except DisconnectedError:
            if asked.refused is None:
                raise
        finally:
            self._session.confirm(asked)
        if asked.refused is not None:
            raise DisconnectedError(f"{self.address}: the hub refused the subscription: {asked.refused}")

    async def unsubscribe(self, *patterns: bytes) -> None:
        """Take one subscription to each pattern back."""
        for pattern in patterns:
            check_key(pattern, "pattern")
        await self._say(lambda: self._session.unsubscribe(patterns))

    async def sync(self, scope: str = "local") -> str:
        """Wait until all that this client said is in force; how far: ``local``, ``tree`` or ``partial``."""
        if scope not in ("local", "tree"):
            raise UsageError(f"a scope is 'local' or 'tree', not {scope!r}")
        session = self._session
        if not session.can(control.SYNC):
            await self.whoami()
            return "local"
        tokens: list[bytes] = []

        def question() -> list[bytes]:
            token, packet = session.sync(scope.encode())
            tokens.append(token)
            return [packet]

        try:
            await self._ask(question, lambda: session.scope_of(tokens[-1]) is not None)
            return (session.scope_of(tokens[-1]) or b"").decode()
        finally:
            for token in tokens:
                session.forget_sync(token)

    async def whoami(self) -> bytes:
        """Ask the hub for this client's credential key, ``!/cred/<gid>/<uid>/<pid>``."""
        session = self._session
        tickets: list[int] = []

        def question() -> list[bytes]:
            ticket, packet = session.whoami()
            tickets.append(ticket)
            return [packet]

        await self._ask(question, lambda: session.knows_itself(tickets[-1]))
        return session.credentials

    async def echo(self, on: bool = True) -> None:
        """Whether messages of our own that match our own patterns come back. They do by default."""
        await self._say(lambda: self._session.choose(b"echo", control.ECHO_ON if on else control.ECHO_OFF))

    async def senders(self, on: bool = True) -> None:
        """Whether messages carry who sent them. Raises :exc:`~sbuslib.errors.StateError` if the hub cannot tell."""
        if on and not self._session.can(control.SENDERS_ON):
            raise StateError(f"{self.address}: this hub cannot tell senders")
        await self._say(lambda: self._session.choose(b"senders", control.SENDERS_ON if on else control.SENDERS_OFF))

    async def notices(self, on: bool = True) -> None:
        """Whether the hub tells of messages lost for us and why it lets us go; it does from the start where it can."""
        if on and not self._session.can(control.NOTICES_ON):
            raise StateError(f"{self.address}: this hub cannot give notices")
        await self._say(lambda: self._session.choose(b"notices", control.NOTICES_ON if on else control.NOTICES_OFF))

    @property
    def lost(self) -> dict[str, int]:
        """Messages for this client that the hub lost, by cause, as far as it told."""
        return dict(self._session.lost)

    async def flood_control(
        self, *, soft: Soft | None = None, hard: Hard | None = None, order: Order | None = None
    ) -> None:
        """Choose what the hub does with messages that this client does not read in time."""
        for key in mode_keys(soft, hard, order):
            await self._say(functools.partial(self._session.choose, key.rpartition(b"/")[0], key))

    async def statistics(self) -> HubStatistics:
        """The hub's statistics. Raises :exc:`~sbuslib.errors.StateError` when it does not give them to us."""
        if not self._session.can(control.STATISTICS):
            raise StateError(f"{self.address}: this hub cannot give statistics")
        await self._ask(self._session.ask_statistics, lambda: self._session.statistics is not None)
        return decode_statistics(self._session.statistics, self.address)

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message. Raises :exc:`TimeoutError` after ``timeout`` seconds."""
        inbox = self._session.inbox
        if not inbox:
            await self._until(lambda: bool(inbox), timeout, f"no message within {timeout} s")
        return inbox.popleft()

    async def receive_many(self, most: int | None = None, timeout: float | None = None) -> list[Message]:
        """At least one message, and all others that are here, up to ``most``."""
        inbox: deque[Message] = self._session.inbox
        await self._until(lambda: bool(inbox), timeout, f"no message within {timeout} s")
        count = len(inbox) if most is None else min(most, len(inbox))
        return list(starmap(inbox.popleft, repeat((), count)))

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages as they come, until :meth:`close`."""
        inbox = self._session.inbox
        while True:
            try:
                await self._until(lambda: bool(inbox), None, "")
            except DisconnectedError:
                if self._closed:
                    return
                raise
            while inbox:
                yield inbox.popleft()

    @property
    def address(self) -> str:
        """The address of the hub."""
        return self._dialer.address

    @property
    def credentials(self) -> bytes:
        """The credential key that the hub told last."""
        return self._session.credentials

    @property
    def features(self) -> control.Features | None:
        """What the hub offers; ``None`` for one that knows no features, such as the C daemon."""
        return self._session.features

    @property
    def socket(self) -> socket.SocketType:
        """The connection's socket. Raises :exc:`~sbuslib.errors.DisconnectedError` without one."""
        return self._here()

    def fileno(self) -> int:
        """The descriptor of the connection's socket."""
        return self._here().fileno()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def close(self) -> None:
        """Close the connection. What was published before is still delivered.

        From a task, or when no event loop runs in this thread, such as after :func:`asyncio.run`.
        """
        if self._closed:
            return
        self._closed = True
        nobody_left = self._loop is None or self._loop.is_closed()
        if self._socket is not None:
            if self._leading and not nobody_left:
                self._socket.shutdown(socket.SHUT_RDWR)  # the task that leads sees the end, and lets go
            else:
                self._release()
        if not nobody_left:
            self._changed.set()
