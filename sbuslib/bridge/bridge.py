"""``AioBridge``: joins a bus to an engine. This is all that does not depend on which engine it is.

**Concurrency.** One event loop of asyncio, with a client of the hub on one side and the engine's client on the other.
The hub is never waited for by the engine, nor the engine by the hub: between them is a queue with a bound. For programs
that use gevent or threads, :class:`~.threaded.Bridge` runs this in a thread of its own.

**Out.** What the hub sends is put into the queue. The engine gets it from there in batches, and a batch leaves the
queue when the engine has confirmed it. If that is uncertain, the batch is sent again, as the other bridges drop repeats
by their number; where messages have no origin, it is counted as lost and not sent again.

**In.** What the engine sends is published on the bus before the engine hears that it was taken.

**Circles and spares** are settled among the bridges and gateways of a bus, see :mod:`sbuslib.border`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice, repeat, starmap
from time import monotonic, time_ns
from typing import Any, Final, Self

import msgspec

from ..aio import Client
from ..border import (
    ASK,
    CONTROL,
    DIGEST_BYTES,
    HERE,
    IMPORT,
    Border,
    Counts,
    Expected,
    Here,
    Members,
    decode_here,
    digest,
    fits_a_packet,
    process_of,
    user_of,
)
from ..covering import overlap
from ..errors import NameFormatError, UsageError
from ..matcher import matches
from ..wire import control
from ..wire.packets import Message
from ..wire.text import plainly, printable
from .engine import Engine, EngineOptions, Incoming, Origin, Outgoing, end
from .engines import make_engine

__all__ = ["AioBridge", "BridgeStatistics"]

logger = logging.getLogger("sbuslib")

_BATCH: Final = 1_024
"""Messages that are taken from the bus, or sent to the engine, at once: few enough to confirm in milliseconds."""
_KEYS: Final = 65_536
"""Keys that are remembered, with how many messages they had."""
_SENDERS: Final = 4_096
"""Senders whose claims are remembered."""
_EXPECTED: Final = 65_536
_EXPECTED_SECONDS: Final = 10.0
"""What others said they would publish is waited for so long."""
_HEARTBEAT: Final = 1.0
_PLACE: Final = "engine"
"""To what a bridge says that it is connected: the engine of all that are set up alike."""
_SETTLE_SECONDS: Final = 0.25
"""How long the other bridges of the bus have to hear of this one, before it subscribes to what it takes out."""
_TELL_SECONDS: Final = 10.0
"""Losses are logged no more often."""
_WARNINGS: Final = 100
"""Warnings that are remembered, so that none is logged for each attempt to connect."""
_UNFIT: Final = re.compile(r"[^0-9A-Za-z._-]")


class BridgeStatistics(msgspec.Struct, frozen=True):
    """Counts since a bridge was made. ``lost`` and ``refused`` are by cause."""

    connected: bool
    exported: int
    """Messages that the engine confirmed."""
    imported: int
    """Messages that were published on the bus."""
    kept: int
    """Messages that wait for the engine."""
    kept_bytes: int
    echoes: int
    """Messages that were not taken out, since a bridge or a gateway had brought them."""
    returned: int
    """Messages that came back, and were left out."""
    repeats: int
    """Messages that came again, and were left out."""
    spares: int
    """Other bridges of the bus that are set up alike."""
    lost: dict[str, int]
    """``outage``: the queue was full, or the bridge was closed. ``uncertain``: not confirmed, and not sent again.
    ``bus``: the hub dropped them for this client. ``engine``: missing in what came. ``unread``: dropped by the client
    of the engine."""
    refused: dict[str, int]
    """Messages that may not cross."""


class _Route:
    """The subject for a key, and how many messages under it went out."""

    __slots__ = ("count", "subject")

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.count = 0


class _Recent:
    """The newest messages of an engine that keeps messages. It sends those again of which it has not heard in time."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, str, int], None] = {}

    def add(self, key: bytes, origin: Origin) -> bool:
        """Note a message. ``False`` for one that is known."""
        one = key, origin.bridge, origin.count
        if one in self._known:
            return False
        if len(self._known) >= _KEYS:
            del self._known[next(iter(self._known))]
        self._known[one] = None
        return True


class AioBridge:
    """Joins a bus to an engine: ``async with AioBridge(address, url, ...) as bridge: await bridge.run()``.

    :param address: of the hub, as for a client.
    :param url: ``nats://host:4222``, or several with commas between, ``mqtt://host``, ``redis://host``; with TLS
        ``tls://``, ``mqtts://``, ``rediss://``.
    :param export: patterns of the keys that leave the bus. Keys that start with ``!`` never do.
    :param import_: patterns of the keys that come to it.
    :param trust: patterns of publishers, as ``HOST/UID/PID``, whose messages may come; ``None``: anybody's. It is a
        claim, no more: see :mod:`.engine`.
    :param options: how to use the engine.
    :param keep_bytes: how much is kept while the engine is away or slow.

    Raises, when it is entered, :exc:`~sbuslib.errors.UsageError` and :exc:`~sbuslib.errors.KeyFormatError` for what
    cannot be right, and as a client does. A missing engine is waited for.
    """

    def __init__(
        self,
        address: str | os.PathLike[str] | None,
        url: str,
        *,
        export: Iterable[bytes] = (),
        import_: Iterable[bytes] = (),
        trust: Iterable[bytes] | None = None,
        options: EngineOptions | None = None,
        keep_bytes: int = 64 * 1_024 * 1_024,
    ) -> None:
        self._url = url
        self._export, self._import = tuple(export), tuple(import_)
        if not self._export and not self._import:
            raise UsageError("a bridge needs patterns to export or to import")
        self._trust = None if trust is None else tuple(trust)
        self._options = options if options is not None else EngineOptions()
        self._keep_bytes = keep_bytes
        self._client = Client(address)
        self._engine: Engine
        self._id = f"{time_ns():016x}{secrets.token_hex(4)}"  # an older bridge sorts first: newcomers are the spares
        self._epoch = 0
        self._host = _UNFIT.sub("-", socket.gethostname())[:64]
        self._routes: dict[bytes, _Route] = {}
        self._claims: dict[bytes | None, str] = {}
        self._known_keys: dict[str, bytes | None] = {}
        self._heard: dict[str, dict[bytes, list[int]]] = {}  # by bridge and key: the first number and the last
        self._heard_keys = 0
        self._recent = _Recent()
        self._kept: deque[Outgoing] = deque()
        self._kept_bytes = 0
        self._sending = 0
        self._taking = asyncio.Lock()
        self._arrived = asyncio.Event()
        self._emptied = asyncio.Event()
        self._changed = asyncio.Event()
        self._expected = Expected(_EXPECTED, _EXPECTED_SECONDS)
        self._leads = True
        self._tasks: list[asyncio.Task[None]] = []
        self._error: BaseException | None = None
        self._ready, self._ended = asyncio.Event(), asyncio.Event()
        self._lost, self._refused = Counter[str](), Counter[str]()
        self._exported = self._imported = self._echoes = self._returned = self._repeats = self._unread = 0
        self._number = 0
        self._lost_told = 0
        self._warned: set[str] = set()
        self._was_connected = False

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
        client = await self._client
        features = client.features
        separator = features.separator if features is not None else b"/"
        self._separator = separator
        place = f"{socket.gethostname()} {client.address}"
        lasting = blake2b(place.encode(), digest_size=6).hexdigest()
        self._bus = (features.path or (features.hub_id,))[-1].decode() if features is not None else lasting
        self._exports = Border(self._export, separator, features is not None)
        self._imports = Border(self._import, separator, features is not None)
        self._engine = make_engine(self._url, self._options, self._imports.patterns, separator, self._warn)
        if not self._engine.has_origins:
            for one in self._exports.patterns:
                for other in self._imports.patterns:
                    if overlap(one, other, separator):
                        raise UsageError(
                            f"{printable(one)} and {printable(other)} overlap: this engine does not tell what comes "
                            "back, so no key may be both exported and imported"
                        )
        options = self._options
        setup = repr((self._url_told(), sorted(self._export), sorted(self._import), options.prefix, options.stream))
        self._group = blake2b(setup.encode(), digest_size=8).hexdigest()
        self._members = Members(self._id, self._group, 3 * _HEARTBEAT)
        name = self._options.name or f"{self._host}-{lasting}"
        if features is not None and control.SENDERS_ON in features.words:
            await client.senders()
        await client.echo(False)
        await client.subscribe(CONTROL)
        await self._say_here()
        await asyncio.sleep(_SETTLE_SECONDS)
        if self._export:
            await client.subscribe(*self._exports.patterns)
        client.timeout = None  # a slow hub is waited for
        filters = self._engine.mapping.filters_for(self._imports.patterns)
        engine = self._engine.run(self._take, filters, self._bus, name, self._ready.set)
        works = (self._receive(), self._send(), self._stay_known(), engine)
        self._tasks = [asyncio.create_task(self._watch(work)) for work in works]

    async def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Do one of the works. An error ends the bridge."""
        try:
            await work
        except Exception as error:
            self._error = self._error or error
            self._ended.set()
            self._ready.set()

    async def run(self) -> None:
        """Wait until the bridge ends. Raises what ended it: :exc:`~sbuslib.errors.DisconnectedError` with the bus."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error

    async def ready(self) -> None:
        """Wait until the engine is connected and all subscriptions are in force. Raises as :meth:`run`."""
        await self._ready.wait()
        if self._error is not None:
            raise self._error

    async def close(self, timeout: float = 5.0) -> None:
        """End the bridge: what the bus has sent is still sent on, for ``timeout`` seconds. The rest is lost."""
        if self._client.closed:
            return
        try:
            async with asyncio.timeout(timeout):
                await self._empty()
                await self._taking.acquire()  # what is half taken is acknowledged, and nothing more is taken
        except (OSError, TimeoutError) as error:
            logger.debug("bridge: leaving the bus: %s", plainly(error))
        await end(*self._tasks)
        self._lost["uncertain"] += self._sending
        self._lost["outage"] += len(self._kept) - self._sending
        self._kept.clear()
        self._kept_bytes = self._sending = 0
        self._tell_losses()
        self._client.close()
        await self._engine.close()
        self._ended.set()

    async def _empty(self) -> None:
        """Leave the bus, and let go out what it has sent."""
        if self._error is not None:
            return
        await self._say_here(leaving=True)
        if self._export:
            await self._client.unsubscribe(*self._exports.patterns)
            await self._client.sync()
            self._tasks[0].cancel()
            with suppress(TimeoutError):
                self._put(await self._client.receive_many(timeout=0))
        while self._kept and self._engine.connected:
            self._emptied.clear()
            await self._emptied.wait()

    # -- out ----------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        while True:
            self._put(await self._client.receive_many(_BATCH))
            await asyncio.sleep(0)  # the engine has its turn, also while the bus always has more

    def _put(self, messages: Sequence[Message]) -> None:
        routes, expected, kept, most = self._routes, self._expected, self._kept, self._engine.payload_bytes
        for message in messages:
            key, payload, sender = message.key, message.payload, message.sender
            if key == CONTROL:
                self._hear(message)
                continue
            if expected and expected.take(sender, digest(key, payload)):
                self._echoes += 1
                continue
            route = routes.get(key) or self._route(key)
            if route is None or not self._leads:
                continue
            size = len(payload)
            if size > most:
                self._refused["payload too long"] += 1
                continue
            if self._kept_bytes + size + len(key) > self._keep_bytes:
                self._lost["outage"] += 1
                continue
            self._kept_bytes += size + len(key)
            route.count += 1
            self._number += 1
            claim = self._claims.get(sender) or self._claim(sender)
            origin = f"{self._id}.{self._epoch:x} {route.count} {claim}"
            kept.append(Outgoing(route.subject, payload, origin, self._number, key))
        if kept:
            self._arrived.set()

    def _route(self, key: bytes) -> _Route | None:
        why = "reserved key" if key.startswith(b"!") else self._exports.refusal(key)
        if why is None:
            subject = self._engine.mapping.subject_of(key)
            if self._engine.fits(subject):
                if len(self._routes) >= _KEYS:
                    self._routes.clear()
                    self._epoch += 1  # counting starts anew, as if this were another bridge
                route = self._routes[key] = _Route(subject)
                return route
            why = "key too long"
        self._refused[why] += 1
        return None

    def _claim(self, sender: bytes | None) -> str:
        """The bus, and who published there: the user for whom the kernel vouches."""
        uid, pid = process_of(sender, self._client.credentials, self._separator)
        if len(self._claims) >= _SENDERS:
            self._claims.clear()
        claim = self._claims[sender] = f"{self._bus} {self._host}/{uid}/{pid}"
        return claim

    async def _send(self) -> None:
        kept, engine = self._kept, self._engine
        while True:
            while not kept or not engine.connected:
                self._arrived.clear()
                if not kept:
                    self._emptied.set()
                    await self._arrived.wait()
                else:
                    await asyncio.sleep(0.05)
            batch = list(islice(kept, _BATCH))
            self._sending = len(batch)
            try:
                await engine.send(batch)
                self._exported += len(batch)
            except ConnectionError as error:
                self._sending = 0
                if engine.has_origins:
                    continue
                self._lost["uncertain"] += len(batch)
                self._warn(plainly(error))
            self._sending = 0
            self._kept_bytes -= sum(len(message.payload) + len(message.key) for message in batch)
            deque(starmap(kept.popleft, repeat((), len(batch))), 0)

    # -- in -----------------------------------------------------------------------------------------

    async def _take(self, messages: Sequence[Incoming], acknowledge: Callable[[], Awaitable[object]]) -> None:
        async with self._taking:
            coming: list[tuple[bytes, bytes]] = []
            for message in messages:
                key = self._key(message.subject)
                if key is None or not self._may_come(key, message):
                    continue
                if fits_a_packet(key, message.payload):
                    coming.append((key, message.payload))
                else:
                    self._refused["message too long"] += 1
            if coming:
                await self._publish(coming)
            await acknowledge()

    async def _publish(self, coming: list[tuple[bytes, bytes]]) -> None:
        announced = []
        if self._members.others:
            digests = [digest(key, payload) for key, payload in coming]
            announced = [(CONTROL, IMPORT + b"".join(digests))]
        self._imported += len(coming)
        await self._client.publish_many([*announced, *coming])
        if self._engine.keeps:
            await self._client.sync("tree")

    def _key(self, subject: str) -> bytes | None:
        """The key for a subject; ``None`` if it may not come, which is counted."""
        try:
            key = self._known_keys[subject]
        except KeyError:
            try:
                key = self._engine.mapping.key_of(subject)
            except NameFormatError as error:
                self._refused[str(error)] += 1
                return None
            why = "reserved key" if key.startswith(b"!") else self._imports.refusal(key)
            if why is not None:
                self._refused[why] += 1
                return None
            if len(self._known_keys) >= _KEYS:
                self._known_keys.clear()
            self._known_keys[subject] = key
        return key

    def _may_come(self, key: bytes, message: Incoming) -> bool:
        origin = Origin.decode(message.origin) if message.origin is not None else None
        if origin is not None and origin.bus == self._bus:
            self._returned += 1
            return False
        if self._trust is not None:
            claim = origin.claim if origin is not None else b""
            if not any(matches(pattern, claim) for pattern in self._trust):
                self._refused["untrusted"] += 1
                return False
        if origin is not None and not self._is_new(key, origin):
            self._repeats += 1
            return False
        return self._leads or self._engine.shares

    def _is_new(self, key: bytes, origin: Origin) -> bool:
        """Note a message by its number. ``False`` for one that came before; gaps are counted as lost."""
        keeps = self._engine.keeps
        if keeps and not self._recent.add(key, origin):
            return False
        counts = not (self._engine.shares and self._members.spares)  # else a spare has what is missing here
        of_bridge = self._heard.setdefault(origin.bridge, {})
        heard = of_bridge.get(key)
        if heard is None:
            self._heard_keys += 1
            if self._heard_keys > _KEYS:
                self._forget_heard()
                of_bridge = self._heard.setdefault(origin.bridge, {})
            of_bridge[key] = [origin.count, origin.count]
        elif origin.count > heard[1]:
            if counts and origin.count > heard[1] + 1:
                gap = origin.count - heard[1] - 1
                known = min(gap, self._engine.lost - self._unread)
                self._unread += known
                self._lost["engine"] += gap - known
            heard[1] = origin.count
        elif not keeps:
            return False
        elif counts and origin.count > heard[0]:
            self._lost["engine"] -= 1  # it was missing, and has come late
        return True

    def _forget_heard(self) -> None:
        self._heard.clear()
        self._heard_keys = 0

    # -- the other bridges and gateways of the bus ------------------------------------------------

    def _hear(self, message: Message) -> None:
        now, said = monotonic(), message.payload
        if said.startswith(IMPORT):
            user = user_of(message.sender, self._client.credentials, self._separator)
            for start in range(len(IMPORT), len(said) - DIGEST_BYTES + 1, DIGEST_BYTES):
                self._expected.announce(message.sender, said[start : start + DIGEST_BYTES], now, user)
        if said == ASK:
            self._changed.set()
        here = decode_here(said)
        if here is None:
            return
        if here.gateway == self._id or not self._members.has_room_for(here):
            self._refused["forged word or too many gateways"] += 1
            return
        is_new = self._members.is_new(here.gateway)
        if self._members.hear(here, now):
            self._settle()
        if is_new and not here.leaving:
            self._changed.set()  # so that the new one hears of this one

    async def _say_here(self, leaving: bool = False) -> None:
        counts = Counts(self._exported, self._imported, len(self._kept), dict(self._losses()))  # type: ignore[arg-type]
        told = "" if leaving else self._describe()
        here = Here(self._id, self._group, (_PLACE,), leaving, told=told, counts=counts)
        self._members.hear(here, monotonic())
        self._settle()
        await self._client.publish(CONTROL, HERE + msgspec.json.encode(here))

    def _settle(self) -> None:
        """Find out whether this bridge takes messages out, or a spare does."""
        leads = self._members.is_ours(_PLACE)
        if leads != self._leads or not self._members.spares:
            self._forget_heard()
        self._leads = leads

    async def _stay_known(self) -> None:
        last = 0.0
        while True:
            before = monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT):
                    await self._changed.wait()
            changed = self._changed.is_set()
            self._changed.clear()
            now = monotonic()
            if self._engine.connected > self._was_connected:
                self._warned.clear()
            self._was_connected = self._engine.connected
            self._expected.expire(now)
            if now - before > 2 * _HEARTBEAT:
                self._members.excuse(now)
            elif self._members.expire(now):
                self._settle()
            if self._members.others or changed:
                await self._say_here()
            if now - last > _TELL_SECONDS and self._tell_losses():
                last = now

    # -- what is told of it -------------------------------------------------------------------------

    def _warn(self, text: str) -> None:
        """Log what goes wrong, once until there is a new connection: each attempt may fail in several ways."""
        if text not in self._warned:
            if len(self._warned) >= _WARNINGS:
                self._warned.clear()
            self._warned.add(text)
            logger.warning("bridge %s: %s", self._url_told(), printable(text.encode()))

    def _tell_losses(self) -> bool:
        """Log what was lost since the bridge was made. Returns whether more was than the last time."""
        lost = self._losses()
        if lost.total() <= self._lost_told:
            return False
        self._lost_told = lost.total()
        self._warn("lost " + ", ".join(f"{count:,} ({cause})" for cause, count in sorted(lost.items())))
        return True

    def _url_told(self) -> str:
        """The URL without what is secret."""
        scheme, _, servers = self._url.partition("://")
        places = [printable(server.rpartition("@")[2].partition("?")[0].encode()) for server in servers.split(",")]
        return f"{scheme}://{','.join(places)}"

    def _losses(self) -> Counter[str]:
        told = self._lost + Counter(unread=self._engine.lost)
        told["bus"] += sum(self._client.lost.values())
        return +told

    def _describe(self) -> str:
        lost = self._losses()
        text = f"bridge to {self._url_told()}: {'connected' if self._engine.connected else 'away'}"
        text += f", {self._exported:,} out, {self._imported:,} in, {len(self._kept):,} kept, {lost.total():,} lost"
        return text[:300]

    def statistics(self) -> BridgeStatistics:
        """Counts since the bridge was made. Frozen, and true for this instant only."""
        return BridgeStatistics(
            connected=self._engine.connected,
            exported=self._exported,
            imported=self._imported,
            kept=len(self._kept),
            kept_bytes=self._kept_bytes,
            echoes=self._echoes,
            returned=self._returned,
            repeats=self._repeats,
            spares=self._members.spares,
            lost=dict(self._losses()),
            refused=dict(self._refused),
        )
