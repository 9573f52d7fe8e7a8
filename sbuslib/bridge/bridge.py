"""``AioBridge``: joins a bus to a broker. Independent of the kind of broker.

**Concurrency.** One event loop of asyncio, with a client of the hub on one side and the broker's client on the other.
Neither side waits for the other: between them is a queue with a bound, see :mod:`.sending`. For programs that use
gevent or threads, :class:`~.threaded.Bridge` runs this in a thread of its own.

**In.** A message of the broker is published on the bus before it is acknowledged to the broker.

**Echoes and spares** are the business of :mod:`sbuslib.federation.membership`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import blake2b
from time import monotonic, time, time_ns
from typing import Any, Final, Self

from ..aio import Client
from ..errors import SbusError, UsageError
from ..federation.import_export import DropReason, ImportExportFilter, bus_of
from ..federation.membership import COUNT_MOST, HEARTBEAT_SECONDS, SETTLE_SECONDS, BridgeStatistics, Membership
from ..federation.subject_mapping import SubjectMapping
from ..keys.covering import overlap
from ..keys.own_keys import CONTROL, LOST
from ..limits import check_seconds
from ..matcher import matches
from ..secrets import process_of
from ..wire.packets import Message
from ..wire.text import plainly, printable
from .broker import BrokerOptions, Incoming, Origin, make_broker
from .numbers import Arrivals
from .sending import Sending

logger = logging.getLogger("sbuslib")

_BATCH: Final = 1_024
"""Messages that are taken from the bus at once."""
_KEYS: Final = 65_536
"""Keys whose subject is cached, and subjects whose key is."""
_SENDERS: Final = 4_096
"""Senders whose claims are cached."""
_PART_SECONDS: Final = 1.0
"""Seconds in which a bridge that ends tries to publish its losses."""
_LOSSES_SECONDS: Final = 10.0
"""Shortest interval between two reports of losses."""
_TOO_LONG: Final = DropReason.NAME_TOO_LONG, DropReason.PAYLOAD_TOO_LONG, DropReason.MESSAGE_TOO_LONG
"""Reasons for drops that count as losses: the filters pass the message, but the other side cannot hold it."""
_UNFIT: Final = re.compile(r"[^0-9A-Za-z._-]")


class AioBridge:
    """Joins a bus to a broker: ``async with AioBridge(address, url, ...) as bridge: await bridge.run()``.

    :param address: of the hub, as for a client.
    :param url: ``nats://host:4222``, or several with commas between, ``mqtt://host``, ``redis://host``; with TLS
        ``tls://``, ``mqtts://``, ``rediss://``.
    :param export: patterns of the keys that are exported. Keys that start with ``!`` never are.
    :param import_: patterns of the keys that are imported.
    :param trust: patterns of publishers, as ``HOST/UID/PID``, whose messages are imported; ``None``: all. It is a
        claim, no more: see :mod:`.broker`.
    :param options: how to use the broker.
    :param keep_bytes: how much memory is used to keep messages while the broker is away or slow.

    Raises, when it is entered, :exc:`~sbuslib.errors.UsageError` and :exc:`~sbuslib.errors.KeyFormatError` for what
    cannot be right, and as a client does. A missing broker is waited for.
    """

    def __init__(
        self,
        address: str | os.PathLike[str] | None,
        url: str,
        *,
        export: Iterable[bytes] = (),
        import_: Iterable[bytes] = (),
        trust: Iterable[bytes] | None = None,
        options: BrokerOptions | None = None,
        keep_bytes: int = 64 * 1_024 * 1_024,
    ) -> None:
        self._url = url
        self._export, self._import = tuple(export), tuple(import_)
        if not self._export and not self._import:
            raise UsageError("a bridge needs patterns to export or to import")
        self._trust = None if trust is None else tuple(trust)  # patterns of publishers; None: all
        self._options = options if options is not None else BrokerOptions()  # how to use the broker
        self._keep_bytes = keep_bytes
        #: Of the bus. A monitor: an export is no proof that a key has a service, so requests must not count it as one.
        self._client = Client(address, senders=True, echo=False, monitor=True)
        self._id = f"{time_ns():016x}{secrets.token_hex(4)}"  # an older bridge sorts first: newcomers are the spares
        self._host = _UNFIT.sub("-", socket.gethostname())[:64]
        self._claim = lru_cache(_SENDERS)(self._claim_of)  # sender of a message, in the form for other hosts
        self._taking = asyncio.Lock()  # held while messages of the broker are put on the bus
        self._tasks: list[asyncio.Task[None]] = []  # receiving, sending, heartbeats, and the broker, in this order
        self._changed = asyncio.Event()  # set when a heartbeat is due at once
        self._has_left = False  # the bus, so that it takes nothing out any more
        self._closing = False
        self._reported, self._refused = Counter[str](), Counter[str]()
        self._reported_at = time()  # when losses were reported last
        self._imported = 0  # messages

    # -- its life -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            self._client.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open(self) -> None:
        self._options.check()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        client, options = await self._client, self._options
        separator = client.hub.separator
        self._bus, lasting = bus_of(client.hub.features, socket.gethostname(), client.address)
        make_filter = partial(
            ImportExportFilter, separator=separator, certain=client.hub.features is not None, strict=True
        )
        exported, imported = make_filter(self._export, imports=False), make_filter(self._import, imports=True)
        broker = self._broker = make_broker(self._url, options, separator, self._warn)
        if not broker.has_origins:
            _check_apart(exported.patterns, imported.patterns, separator)
        self._sending = Sending(broker, self._id, self._keep_bytes, self._refused)
        self._arrivals = Arrivals()

        # Bridges with the same configuration are each other's spares.
        place = self._public_url()
        setup = repr((place, sorted(self._export), sorted(self._import), options.prefix, options.stream))
        group = blake2b(setup.encode(), digest_size=8).hexdigest()
        self._membership = Membership(
            self._id, group, f"bridge to {place}", client.credentials, separator, self._refused
        )
        self._mapping = SubjectMapping(
            broker.name_format, exported, imported, broker.fits, self._refused, _KEYS, self._membership
        )
        await client.subscribe(CONTROL)
        await self._send_heartbeat()
        await asyncio.sleep(SETTLE_SECONDS)
        if self._export:
            self._exported = await client.subscribe(*exported.patterns)
        client.timeout = None  # a slow hub is waited for
        name = options.name or f"{self._host}-{lasting}"
        run = partial(broker.run, self._take, imported.patterns, self._bus, name)
        works = self._receive, self._sending.run, self._send_heartbeats, run
        self._tasks = [asyncio.create_task(self._watch(work)) for work in works]

    async def _watch(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do one of the works. An error ends the bridge."""
        try:
            await work()
        except Exception as error:
            if not self._ended.done():
                self._ended.set_exception(error)
                self._ended.exception()  # or asyncio would log that it was never retrieved

    async def run(self) -> None:
        """Wait until the bridge ends.

        Raises its error: :exc:`~sbuslib.errors.DisconnectedError` if the bus has gone.
        """
        await asyncio.shield(self._ended)

    @property
    def is_ready(self) -> bool:
        """Whether the broker was connected and all subscriptions are in force."""
        return self._broker.ready.is_set()

    async def ready(self) -> None:
        """Wait until the broker is connected and all subscriptions are in force. Raises as :meth:`run`."""
        waiting = asyncio.create_task(self._broker.ready.wait())
        try:
            await asyncio.wait((waiting, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._ended.done():
            self._ended.result()

    async def close(self, timeout: float = 5.0) -> None:
        """End the bridge.

        Messages that the bus has sent are still exported, for ``timeout`` seconds; the rest is lost.
        """
        timeout = check_seconds(timeout, "timeout")
        if self._closing:
            return
        self._closing = True
        try:
            async with asyncio.timeout(timeout):
                await self._leave()
                await self._taking.acquire()  # a batch in progress is acknowledged, and no further one begins
        except (SbusError, OSError) as error:
            logger.debug("bridge: leaving the bus: %s", plainly(error))

        # Nothing more comes from either side: the losses are final, and are published while there is a connection.
        await _end(self._tasks)
        self._sending.give_up()
        with suppress(SbusError, OSError):  # the bus has gone, or takes too long
            async with asyncio.timeout(_PART_SECONDS):
                await self._report_losses()

        self._client.close()
        try:
            await self._broker.close()
        finally:
            if not self._ended.done():
                self._ended.set_result(None)

    async def _leave(self) -> None:
        """Leave the bus, and export all messages received from it, also when it has gone."""
        receiving, _, heartbeats, _ = self._tasks
        heartbeats.cancel()  # first: one after the farewell would announce this bridge again
        if not self._ended.done():
            await self._leave_bus(receiving)
        self._has_left = True
        await self._sending.empty()
        await self._broker.drain()

    async def _leave_bus(self, receiving: asyncio.Task[None]) -> None:
        await self._client.publish(*self._membership.farewell())
        if self._export:
            await self._exported.unsubscribe()
            await self._client.sync()
            receiving.cancel()
            self._put(await self._client.receive_many(timeout=0))

    # -- out ----------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        while True:
            self._put(await self._client.receive_many(most=_BATCH))
            await asyncio.sleep(0)  # the broker has its turn, also while the bus always has more

    def _put(self, messages: Sequence[Message]) -> None:
        mapping = self._mapping
        for message in messages:
            if message.key == CONTROL:
                self._hear(message)
            elif mapping.is_echo(message) or not self._leads:
                continue
            elif (subject := mapping.name_for(message)) is not None:
                self._sending.put(subject, message, self._claim(message.sender))

    @property
    def _leads(self) -> bool:
        """Whether this bridge exports, and not a spare."""
        return self._membership.leads and not self._has_left

    def _claim_of(self, sender: bytes | None) -> str:
        """The bus, and the publisher there: host, user and process, by the kernel's word."""
        uid, pid = process_of(sender, self._client.credentials, self._client.hub.separator)
        return f"{self._bus} {self._host}/{uid}/{pid}"

    # -- in -----------------------------------------------------------------------------------------

    async def _take(self, messages: Sequence[Incoming], acknowledge: Callable[[], Awaitable[object]]) -> None:
        async with self._taking:
            coming: list[tuple[bytes, bytes]] = []
            for message in messages:
                key = self._mapping.key_for(message.subject, message.payload)
                if key is not None and self._may_come(key, message):
                    coming.append((key, message.payload))

            if coming:
                self._imported += len(coming)
                await self._client.publish_many(self._membership.announced(coming))
                if self._broker.keeps:
                    await self._client.sync("tree")
            await acknowledge()

    def _may_come(self, key: bytes, message: Incoming) -> bool:
        origin = Origin.decode(message.origin) if message.origin is not None else None
        if origin is not None and origin.bus == self._bus:
            self._refused[DropReason.RETURNED] += 1
            return False
        if self._trust is not None:
            claim = origin.claim if origin is not None else b""
            if not any(matches(pattern, claim) for pattern in self._trust):
                self._refused[DropReason.UNTRUSTED] += 1
                return False
        if origin is not None and not self._arrivals.is_new(key, origin):
            self._refused[DropReason.REPEATED] += 1
            return False
        return self._leads or self._broker.shares

    # -- heartbeats and reports ---------------------------------------------------------------------

    def _hear(self, message: Message) -> None:
        """Take a control message of another bridge or gateway of this bus."""
        self._membership.hear(message, monotonic())
        if self._membership.is_asked:
            self._changed.set()

    async def _send_heartbeat(self) -> None:
        await self._client.publish(*self._membership.heartbeat(self.statistics(), monotonic()))

    async def _send_heartbeats(self) -> None:
        """Send heartbeats while there are other gateways or bridges."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            if self._membership.is_due(monotonic()):
                await self._send_heartbeat()
            if time() - self._reported_at > _LOSSES_SECONDS:
                await self._report_losses()

    def _warn(self, text: str) -> None:
        logger.warning("bridge %s: %s", self._public_url(), printable(text.encode()))

    async def _report_losses(self) -> None:
        """Log new losses, and publish them on the bus."""
        lost = self._losses() - self._reported
        if not lost:
            return
        since, self._reported_at = self._reported_at, time()
        self._reported += lost
        self._warn("lost " + ", ".join(f"{count:,} ({cause})" for cause, count in sorted(lost.items())))
        notices = [(LOST, f"{cause} {count} {since:.6f}".encode()) for cause, count in lost.items()]
        await self._client.publish_many(notices)

    def _public_url(self) -> str:
        """The URL without user and password."""
        scheme, _, servers = self._url.partition("://")
        places = [printable(server.rpartition("@")[2].encode()) for server in servers.split(",")]
        return f"{scheme}://{','.join(places)}"

    def _losses(self) -> Counter[str]:
        on_bus = sum(self._client.lost.values())
        too_long = sum(self._refused[reason] for reason in _TOO_LONG)
        return self._sending.lost + Counter(unread=self._broker.lost, bus=on_bus, too_long=too_long)

    def statistics(self) -> BridgeStatistics:
        """Counts since the bridge was made. Frozen, and true for this instant only."""
        lost = {cause: min(count, COUNT_MOST) for cause, count in self._losses().items()}  # brokers may say anything
        return BridgeStatistics(
            exported=self._sending.exported,
            imported=self._imported,
            kept=len(self._sending.kept),
            lost=lost,  # type: ignore[arg-type]
            connected=self._broker.connected.is_set(),
            spares=self._membership.spares,
            refused=dict(self._refused),
        )


def _check_apart(exported: Iterable[bytes], imported: Sequence[bytes], separator: bytes) -> None:
    for pattern in exported:
        for other in imported:
            if overlap(pattern, other, separator):
                raise UsageError(
                    f"{printable(pattern)} and {printable(other)} overlap: a bridge cannot tell its own "
                    "messages from others at this broker, so no key may be both exported and imported"
                )


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """End tasks that use a client library, which may swallow that they are cancelled."""
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=0.1)
