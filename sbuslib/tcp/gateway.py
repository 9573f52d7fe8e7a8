"""``Gateway``: joins a bus to the buses of other machines, over a peer. What may cross: :mod:`sbuslib.border`.

If a gateway has several connections to the other bus, it uses the one whose other end has the first id.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from time import monotonic
from types import TracebackType
from typing import Any, Final

import gevent
from gevent.event import Event

from ..border.crossing import Crossing
from ..border.keys import CONTROL, Border, fits_a_packet, user_of
from ..border.neighbours import (
    ASK,
    HERE,
    REMOTES_MOST,
    TWO_PATHS,
    Counts,
    Doubled,
    Expected,
    Here,
    Members,
    announcement_of,
    decode_here,
    digest,
    encode_here,
)
from ..client import Client
from ..core.service import ServiceGreenlets
from ..errors import DisconnectedError, StateError, UsageError
from ..hub import Hub
from ..wire.packets import Message
from ..wire.text import plainly
from .buses import Bus, separator_of
from .framing import Publish
from .link import Link
from .names import Names
from .peer import Peer
from .statistics import GatewayStatistics

__all__ = ["Gateway"]

logger = logging.getLogger("sbuslib")

_BATCH = 256  # messages that cross together, after one announcement
_PATIENCE: Final = 1.0
"""Seconds that a gateway waits for a peer whose queue is half full; it waits again only after the queue was empty."""
_EXPECTED_SECONDS: Final = 10.0
"""Seconds that a gateway waits to see on the bus what another gateway said it would publish."""
_GREETING = re.compile(rb"([0-9A-Za-z._-]{1,64}) ([0-9A-Za-z._-]{1,64}) ([0-9A-Za-z._-]{1,64})")
"""What a gateway tells the gateways of other buses: its bus, its group, its id."""


class Gateway:
    """Carries messages between a bus and the gateways of other buses, which are peers of its peer.

    ::

        with Peer("127.0.0.1:9014") as peer, Gateway(hub, peer, export=[b"room/"], import_=[b"alarm/"]):
            ...

    A message crosses under ``//sbus/<name>/<key>``. It crosses once: no gateway sends on what a gateway has brought to
    the bus. Two gateways between the same buses, set up alike, are each other's spares. Secret and reserved keys never
    cross.

    **Greenlets:** three. One receives from the bus and publishes to the peers; it waits for slow peers, each for a
    limited time. One publishes on the bus what peers sent; it may wait for the hub. One tells the other gateways of the
    bus about this one.

    :param bus: a hub of this process that is started, of which the gateway becomes a client, or a
        :class:`~sbuslib.Client` that nothing else uses.
    :param peer: a peer that is started. It may serve other purposes too.
    :param export: patterns of the keys that leave this bus.
    :param import_: patterns of the keys that come to this bus.
    :param name: the common name of the buses that are joined: the same at each gateway.

    Raises :exc:`~sbuslib.errors.UsageError` and :exc:`~sbuslib.errors.KeyFormatError` for patterns and names that
    cannot be right, and for a gateway that would let nothing cross.
    """

    def __init__(
        self,
        bus: Hub | Client,
        peer: Peer,
        *,
        export: Iterable[bytes] = (),
        import_: Iterable[bytes] = (),
        name: str = "bus",
    ) -> None:
        if not isinstance(bus, (Hub, Client)):
            raise UsageError(f"a gateway needs a Hub or a Client, not {type(bus).__name__}")
        separator, certain = separator_of(bus)
        self._given = bus
        self._separator = separator
        self._peer = peer
        self._limits = peer.limits
        exported, imported = Border(export, separator, certain), Border(import_, separator, certain)
        if not exported.patterns and not imported.patterns:
            raise UsageError("a gateway needs patterns to export or to import")
        self._refused: Counter[str] = Counter()
        self._names = Names(name)
        self._crossing = Crossing(self._names, exported, imported, self._fits, self._refused, self._limits.cached_names)
        self._greeting = f"//sbus-gateway/{name}"
        self._id = secrets.token_hex(8)
        setup = repr((name, sorted(exported.patterns), sorted(imported.patterns)))
        self._group = blake2b(setup.encode(), digest_size=8).hexdigest()
        self._members = Members(self._id, self._group, 3 * self._limits.heartbeat_seconds)
        self._doubled = Doubled()
        self._asked = False  # whether somebody wants to know what this gateway does
        self._expected = Expected(self._limits.imports, _EXPECTED_SECONDS)
        self._incoming: deque[Publish] = deque()
        self._incoming_bytes = 0
        self._arrived = Event()
        self._changed = Event()
        self._remotes: dict[
            Link, tuple[str, str, str]
        ] = {}  # bus, group and id of the gateway at each link's other end
        self._leave_out: frozenset[Link] = frozenset()
        self._same_bus: frozenset[Link] = frozenset()
        self._said: deque[str] = deque(maxlen=64)  # the words of our own messages, until they come back from the bus
        self._sender: tuple[bytes | None] | None = None  # our own sender key on the bus, once the bus has told it
        self._bus: Bus | None = None
        self._name = name
        self._greenlets: list[gevent.Greenlet[..., Any]] = []
        self._service = ServiceGreenlets(f"gateway of {name!r}", self.stop)
        self._exported = self._imported = self._echoes = self._lost = 0
        self.ended = Event()
        """Set when the gateway has stopped: by :meth:`stop`, because the bus went away, or by an error."""

    def __enter__(self) -> Gateway:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is None:
            self.check()

    # -- lifecycle ----------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether messages cross."""
        return self._bus is not None

    def start(self) -> None:
        """Let messages cross. Raises :exc:`~sbuslib.errors.StateError` when started already, or the peer is not."""
        if self._bus is not None:
            raise StateError("the gateway is started already")
        if not self._peer.started:
            raise StateError("start the peer of the gateway first")
        patterns = [*self._crossing.exported.patterns, CONTROL]
        bus = self._bus = Bus(self._given, patterns)
        self.ended.clear()
        self._say_here(bus)
        self._peer.watch_links(self._link_gone)
        self._peer.attach(self, *self._substrings())
        self._peer.retain(self._greeting, f"{bus.identity} {self._group} {self._id}".encode())
        self._service = ServiceGreenlets(f"gateway of {self._name!r}", self.stop)
        self._greenlets = [
            self._service.spawn(self._run, work, bus) for work in (self._export_all, self._import_all, self._stay_known)
        ]

    def check(self) -> None:
        """Raise :exc:`~sbuslib.errors.ServiceError` when an unforeseen error has ended the gateway."""
        self._service.check()

    def _fits(self, name: str) -> bool:
        return len(name.encode()) <= self._limits.name_bytes

    def _substrings(self) -> list[str]:
        names = self._names
        wanted = [names.substring_for(pattern) for pattern in self._crossing.imported.patterns]
        if self._peer.mesh.concerns(names.prefix + "x"):
            wanted += [names.copies + text[len(names.prefix) :] for text in list(wanted)]
        return [*wanted, self._greeting]

    def stop(self) -> None:
        """Stop messages from crossing. Messages from peers that are not yet on the bus are counted as lost."""
        bus, self._bus = self._bus, None
        if bus is None:
            return
        try:
            bus.publish([(CONTROL, encode_here(Here(self._id, self._group, leaving=True)))])
            bus.close()
        except (OSError, StateError) as error:
            logger.debug("gateway: leaving the bus: %s", plainly(error))
        self._peer.detach(self)
        self._peer.release(self._greeting)
        self._peer.watch_links(self._link_gone, False)
        gevent.killall([each for each in self._greenlets if each is not gevent.getcurrent()], block=False)
        self._lost += len(self._incoming)
        self._incoming.clear()
        self._incoming_bytes = 0
        self._remotes.clear()
        self.ended.set()

    close = stop

    def _run(self, work: Any, bus: Bus) -> None:
        """Run one of the greenlets. The first that finds the bus gone stops the gateway."""
        try:
            work(bus)
        except (OSError, StateError) as error:
            if self._bus is bus:
                if not isinstance(error, DisconnectedError):
                    logger.error("gateway: %s", plainly(error))
                self.stop()

    # -- out ----------------------------------------------------------------------------------------

    def _export_all(self, bus: Bus) -> None:
        while True:
            going: list[tuple[str, bytes]] = []
            for message in bus.receive():
                if message.key == CONTROL:
                    self._send(going)
                    going = []
                    self._hear(message, bus)
                elif self._expected and self._expected.take(message.sender, digest(message.key, message.payload)):
                    self._echoes += 1
                else:
                    name = self._crossing.name_for(message.key, message.payload)
                    if name is None:
                        continue
                    if len(message.payload) > self._limits.data_bytes:
                        self._refused["payload too long"] += 1
                        continue
                    going.append((name, message.payload))
            self._send(going)
            gevent.sleep(0)  # other greenlets run, also while the bus always has more

    def _send(self, going: list[tuple[str, bytes]]) -> None:
        if going:
            self._exported += len(going)
            self._peer.publish_many(going, patience=_PATIENCE, leave_out=self._leave_out)

    # -- in -----------------------------------------------------------------------------------------

    def take(self, messages: Sequence[Publish], source: Link) -> None:
        """Take messages from a peer. Called by :class:`~sbuslib.tcp.link.Link`."""
        greetings = [message for message in messages if message.name == self._greeting]
        if greetings:
            self._meet(greetings[-1].data, source)
            messages = [message for message in messages if message.name != self._greeting]
        if source in self._same_bus:
            self._refused["from this very bus"] += len(messages)
            return
        incoming, limits = self._incoming, self._limits
        for message in messages:
            size = len(message.name) + len(message.data)
            if len(incoming) >= limits.imports or self._incoming_bytes + size > limits.inbox_bytes:
                self._lost += 1
            else:
                self._incoming_bytes += size
                incoming.append(message)
        self._arrived.set()

    def _import_all(self, bus: Bus) -> None:
        incoming = self._incoming
        while True:
            while not incoming:
                self._arrived.clear()
                self._arrived.wait()
            coming: list[tuple[bytes, bytes]] = []
            while incoming and len(coming) < _BATCH:
                message = incoming.popleft()
                self._incoming_bytes -= len(message.name) + len(message.data)
                key = self._crossing.key_for(message.name)
                if key is None:
                    continue
                if fits_a_packet(key, message.data):
                    coming.append((key, message.data))
                else:
                    self._refused["message too long"] += 1
            if coming:
                bus.publish([*self._announcement(coming), *coming])
                self._imported += len(coming)
            gevent.sleep(0)

    def _announcement(self, coming: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """What to announce on the bus before these messages, so that no gateway sends them on."""
        if self._members.others or self._sender is None:
            said = announcement_of(coming)
            self._doubled.bring(said, monotonic())
            return [(CONTROL, said)]
        now = monotonic()
        (sender,) = self._sender
        user = user_of(sender, sender, self._separator)
        for key, payload in coming:
            if self._crossing.may_leave(key):
                self._expected.announce(sender, digest(key, payload), now, user)
        return []

    # -- the other gateways -------------------------------------------------------------------------

    def _hear(self, message: Message, bus: Bus) -> None:
        """Take a message from a gateway of this bus, which may be this one."""
        now = monotonic()
        own = self._sender[0] if self._sender is not None else None
        user = user_of(message.sender, own, self._separator)
        if self._expected.hear(message.sender, message.payload, now, user):
            if message.sender != own:
                self._doubled.hear(message.payload, now)
            return
        if message.payload == ASK:
            self._asked = True
            self._changed.set()
        here = decode_here(message.payload)
        if here is None:
            if message.payload.startswith(HERE):
                self._refused["unknown word of a gateway"] += 1
            return
        if not self._members.has_room_for(here):
            self._refused["too many gateways"] += 1
            return
        if here.gateway == self._id:
            if here.word not in self._said:
                self._refused["forged word of a gateway"] += 1
                return
            self._said.remove(here.word)
            self._sender = (message.sender,)
        if not here.leaving and self._members.is_new(here.gateway):
            self._changed.set()  # so that the new gateway hears of this one
        if self._members.hear(here, now):
            self._settle(bus)

    def _say_here(self, bus: Bus) -> None:
        remotes = sorted({f"{where}.{group}" for where, group, _ in self._remotes.values()})[:REMOTES_MOST]
        told = f"gateway {self._name}: {'connected' if remotes else 'away'}"
        told += f", {self._exported:,} out, {self._imported:,} in, {len(self._incoming):,} kept, {self._lost:,} lost"
        counts = Counts(self._exported, self._imported, len(self._incoming), {"outage": self._lost})
        here = Here(
            *(self._id, self._group, tuple(remotes)),
            word=secrets.token_hex(8),
            told=told[:300],
            counts=counts,
            doubled=self._doubled.is_so,
        )
        self._said.append(here.word)
        bus.publish([(CONTROL, encode_here(here))])

    def _stay_known(self, bus: Bus) -> None:
        """Tell the other gateways of this bus, if there are any, that this one is here and what has changed."""
        pause = self._limits.heartbeat_seconds
        while True:
            before = monotonic()
            self._changed.wait(pause)
            self._changed.clear()
            now = monotonic()
            self._expected.expire(now)
            if self._doubled.look():
                logger.warning("gateway %s: %s", self._name, TWO_PATHS)
            if self._members.expire(before, now):
                self._settle(bus)
            if self._members.others or self._asked:
                self._asked = False
                self._say_here(bus)

    def _meet(self, data: bytes, link: Link) -> None:
        """Take the greeting of the gateway at the other end of ``link``."""
        found = _GREETING.fullmatch(data)
        if found is None or self._bus is None:
            return
        words = found[1].decode(), found[2].decode(), found[3].decode()
        if self._remotes.get(link) != words:
            self._remotes[link] = words
            self._settle(self._bus)
            self._changed.set()

    def _link_gone(self, link: Link) -> None:
        if self._remotes.pop(link, None) is not None and self._bus is not None:
            self._settle(self._bus)
            self._changed.set()

    def _settle(self, bus: Bus) -> None:
        """Find connections over which this gateway does not send: a spare does, or they lead to its own bus."""
        ends: dict[str, list[tuple[str, Link]]] = {}
        for link, (where, group, gateway) in self._remotes.items():
            ends.setdefault(f"{where}.{group}", []).append((gateway, link))
        leave_out: set[Link] = set()
        for remote, several in ends.items():
            several.sort(key=lambda end: end[0])
            first = 1 if self._members.is_ours(remote) else 0
            leave_out.update(link for _, link in several[first:])
        self._same_bus = frozenset(link for link, (where, _, _) in self._remotes.items() if where == bus.identity)
        self._leave_out = frozenset(leave_out) | self._same_bus

    def statistics(self) -> GatewayStatistics:
        """Counts since the gateway was made. Frozen, and true for this instant only."""
        return GatewayStatistics(
            exported=self._exported,
            imported=self._imported,
            echoes=self._echoes,
            spares=self._members.spares,
            lost=self._lost,
            refused=dict(self._refused),
        )
