"""``Gateway``: joins a bus to the buses of other machines, over a peer. What may cross: :mod:`sbuslib.border`.

If a gateway has several connections to the other bus, it uses the one whose other end has the first id.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from time import monotonic, time_ns
from types import TracebackType
from typing import Any, Final

import gevent
from gevent.event import Event

from ..border.crossing import Crossing
from ..border.fellows import BEAT_SECONDS, SETTLE_SECONDS, BridgeCounts, Fellows
from ..border.keys import CONTROL, Border, Excluded, bus_of, fits_a_packet
from ..border.mapping import Mapping
from ..client import Client
from ..clients.endpoint import Endpoint
from ..core.service import ServiceGreenlets
from ..errors import DisconnectedError, StateError, UsageError
from ..hub import Hub
from ..wire.packets import Message
from ..wire.text import plainly
from .framing import Publish
from .peer import Peer
from .peer_inbox import PeerInbox
from .peer_link import PeerLink
from .peer_statistics import GatewayStatistics

__all__ = ["Gateway"]

logger = logging.getLogger("sbuslib")

_BATCH = 256  # messages that cross together, after one announcement
_AWAY_SECONDS: Final = 0.2
"""Seconds between two looks for a bus that has gone."""
_NAME: Final = re.compile(r"[0-9A-Za-z._-]+")
_COPY: Final = "//fwd/"
_PATIENCE: Final = 1.0
"""Seconds that a gateway waits for a peer whose queue is half full; it waits again only after the queue was empty."""
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

    :param bus: a hub of this process that is started, a client, or an address: of the hub of which the gateway
        becomes a client.
    :param peer: a peer that is started. It may serve other purposes too.
    :param export: patterns of the keys that leave this bus.
    :param import_: patterns of the keys that come to this bus.
    :param name: the common name of the buses that are joined: the same at each gateway.

    Raises :exc:`~sbuslib.errors.UsageError` for names that cannot be right, and for a gateway that would let nothing
    cross.
    """

    _crossing: Crossing  # which keys cross, and under which names: made at each start, as the hub's separator decides
    _bus: str  # the name of this bus, by which a gateway knows that it is connected to itself

    def __init__(
        self,
        bus: Hub | Endpoint | str | os.PathLike[str] | None,
        peer: Peer,
        *,
        export: Iterable[bytes] = (),
        import_: Iterable[bytes] = (),
        name: str = "bus",
    ) -> None:
        if not _NAME.fullmatch(name):
            raise UsageError(f"the name of a bus is letters, digits, '.', '_' and '-', not {name!r}")
        if isinstance(export, (str, bytes)) or isinstance(import_, (str, bytes)):
            raise UsageError("the patterns that cross are a list")
        self._export, self._import = tuple(export), tuple(import_)
        if not self._export and not self._import:
            raise UsageError("a gateway needs patterns to export or to import")
        # Of the hub; None: where clients look first.
        self._address = bus.address if isinstance(bus, (Hub, Endpoint)) else bus
        self._peer = peer
        self._limits = peer.limits  # shared with the peer
        self._name = name
        # A key is one segment of its name: NUL, which would separate segments, is in none.
        self._mapping = Mapping(f"//sbus/{name}/", "\0", separator=b"\0")
        self._copies = f"{_COPY}sbus/{name}/"  # what names of copies start with, where peers forward
        self._greeting = f"//sbus-gateway/{name}"  # the name under which gateways tell each other who they are
        self._id = f"{time_ns():016x}{secrets.token_hex(4)}"  # an older gateway sorts first: newcomers are the spares
        setup = repr((name, sorted(self._export), sorted(self._import)))
        self._group = blake2b(setup.encode(), digest_size=8).hexdigest()  # the same for gateways that are set up alike
        self._arrivals = PeerInbox(self._limits, _keep_nothing)  # what peers sent, until it is on the bus
        self._changed = Event()  # set when there is something to tell the fellows
        self._remotes: dict[
            PeerLink, tuple[str, str, str]
        ] = {}  # bus, group and id of the gateway at each link's other end
        self._leave_out: frozenset[PeerLink] = frozenset()  # links over which a spare sends, or nobody
        self._same_bus: frozenset[PeerLink] = frozenset()  # links to gateways of this very bus
        self._client: Client | None = None  # of the bus, while the gateway is started
        self._service = ServiceGreenlets(f"gateway of {name!r}", self.stop)
        self._greenlets: list[gevent.Greenlet[..., Any]] = []  # while it is started
        self._refused: Counter[str] = Counter()  # messages that do not cross, by reason
        self._exported = self._imported = self._echoes = 0  # messages, see GatewayStatistics
        self._lost = 0  # messages that peers sent, before the gateway was started the last time
        self._fellows = self._make_fellows(b"")  # of the bus; anew with each start
        self._stopped = Event()  # set by stop(), and not when the bus goes away
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
        return self._client is not None

    def start(self) -> None:
        """Let messages cross. After the bus went away, this may be called again.

        Raises :exc:`~sbuslib.errors.StateError` when started already, or the peer is not; as a client does; and
        :exc:`~sbuslib.errors.UsageError` and :exc:`~sbuslib.errors.KeyFormatError` for wrong patterns.
        """
        if self._client is not None:
            raise StateError("the gateway is started already")
        if not self._peer.started:
            raise StateError("start the peer of the gateway first")
        self._stopped.clear()
        self._begin()

    def _begin(self) -> None:
        client = Client(self._address, senders=True, echo=False)
        try:
            self._join(client)
        except BaseException:
            self._leave()
            client.close()
            raise

    def _join(self, client: Client) -> None:
        # 1. What may cross depends on the separator of the hub.
        features, limits = client.hub.features, self._limits
        border = partial(Border, separator=client.hub.separator, certain=features is not None)
        exported, imported = border(self._export), border(self._import)
        self._crossing = Crossing(self._mapping, exported, imported, self._fits, self._refused, limits.cached_names)
        self._bus, _ = bus_of(features, socket.gethostname(), client.address)

        # 2. The other gateways of the bus hear of this one before it takes anything out.
        self._client = client
        self.ended.clear()
        self._fellows = self._make_fellows(client.hub.separator)
        client.subscribe(CONTROL)
        self._say_here(client)
        gevent.sleep(SETTLE_SECONDS)
        if self._stopped.is_set():
            raise DisconnectedError("the gateway was stopped")
        if self._export:
            client.subscribe(*exported.patterns)
        client.timeout = None  # a slow hub is waited for

        # 3. Peers hear of it.
        self._service = ServiceGreenlets(f"gateway of {self._name!r}", self.stop)
        self._greenlets = [
            self._service.spawn(self._run, work, client)
            for work in (self._export_all, self._import_all, self._stay_known)
        ]
        self._peer.watch_links(self._link_gone)
        self._peer.attach(self, *self._substrings(imported.patterns))
        self._peer.retain(self._greeting, f"{self._bus} {self._group} {self._id}".encode())

    def _make_fellows(self, separator: bytes) -> Fellows:
        return Fellows(
            self._id, self._group, separator, self._refused, partial(logger.warning, "gateway %s: %s", self._name)
        )

    def serve_forever(self) -> None:
        """Start unless started, and wait until :meth:`stop` is called from elsewhere.

        When the bus goes away, look for it until it is back. Raises as :meth:`start` and :meth:`check`.
        """
        if not self.started:
            self.start()
        while True:
            self.ended.wait()
            self.check()
            if not self._stopped.is_set():
                logger.warning("gateway %s: the bus has gone; waiting for it", self._name)
            while not self.started:
                if self._stopped.wait(_AWAY_SECONDS):
                    return
                with suppress(ConnectionError, TimeoutError):
                    self._begin()
            logger.warning("gateway %s: joined the bus again", self._name)

    def check(self) -> None:
        """Raise :exc:`~sbuslib.errors.ServiceError` when an unforeseen error has ended the gateway."""
        self._service.check()

    def _fits(self, name: str) -> bool:
        return len(name.encode()) <= self._limits.name_bytes

    def _substrings(self, patterns: Iterable[bytes]) -> list[str]:
        wanted = [self._mapping.start_of(pattern) for pattern in patterns]
        if self._peer.mesh.concerns(self._mapping.name_of(b"x")):
            wanted += [self._copies + text[len(self._mapping.name_of(b"")) :] for text in list(wanted)]
        return [*wanted, self._greeting]

    def stop(self) -> None:
        """Stop messages from crossing. Messages from peers that are not yet on the bus are counted as lost."""
        self._stopped.set()
        self._leave()

    close = stop

    def _leave(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            client.timeout = _PATIENCE
            client.publish_many([self._fellows.say_leaving()])
        except (OSError, StateError) as error:
            logger.debug("gateway: leaving the bus: %s", plainly(error))
        client.close()

        # Peers hear of it, and what they have sent is lost.
        self._peer.detach(self)
        self._peer.release(self._greeting)
        self._peer.watch_links(self._link_gone, False)
        gevent.killall([each for each in self._greenlets if each is not gevent.getcurrent()], block=False)
        self._lost += self._arrivals.lost + len(self._arrivals)
        self._arrivals = PeerInbox(self._limits, _keep_nothing)
        self._remotes.clear()
        self.ended.set()

    def _run(self, work: Callable[[Client], None], client: Client) -> None:
        """Run one of the greenlets. The first that finds the bus gone stops the gateway."""
        try:
            work(client)
        except (OSError, StateError) as error:
            if self._client is client:
                if not isinstance(error, DisconnectedError):
                    logger.error("gateway: %s", plainly(error))
                self._leave()

    # -- out ----------------------------------------------------------------------------------------

    def _export_all(self, client: Client) -> None:
        while True:
            going: list[tuple[str, bytes]] = []
            for message in client.receive_many(most=_BATCH):
                if message.key == CONTROL:
                    self._send(going)  # before another one may lead
                    going = []
                    self._hear(message, client)
                elif self._fellows.has_brought(message):
                    self._echoes += 1
                elif (name := self._crossing.name_for(message.key, message.payload)) is None:
                    continue
                elif len(message.payload) > self._limits.data_bytes:
                    self._refused[Excluded.PAYLOAD_TOO_LONG] += 1
                else:
                    going.append((name, message.payload))
            self._send(going)
            gevent.sleep(0)  # other greenlets run, also while the bus always has more

    def _send(self, going: list[tuple[str, bytes]]) -> None:
        if going:
            self._exported += len(going)
            self._peer.publish_many(going, patience=_PATIENCE, leave_out=self._leave_out)

    # -- in -----------------------------------------------------------------------------------------

    def take(self, messages: Sequence[Publish], source: PeerLink) -> None:
        """Take messages from a peer. Called by :class:`~sbuslib.tcp.peer_link.PeerLink`."""
        greetings = [message for message in messages if message.name == self._greeting]
        if greetings:
            self._meet(greetings[-1].data, source)
            messages = [message for message in messages if message.name != self._greeting]

        if source in self._same_bus:
            self._refused[Excluded.FROM_THIS_BUS] += len(messages)
            return
        self._arrivals.take(messages, source)

    def _import_all(self, client: Client) -> None:
        while True:
            coming: list[tuple[bytes, bytes]] = []
            for message in self._arrivals.receive_many(most=_BATCH):
                name = message.name
                key = self._crossing.key_for("//" + name[len(_COPY) :] if name.startswith(_COPY) else name)
                if key is None:
                    continue
                if fits_a_packet(key, message.data):
                    coming.append((key, message.data))
                else:
                    self._refused[Excluded.MESSAGE_TOO_LONG] += 1

            if coming:
                client.publish_many([*self._fellows.announcement(coming, monotonic()), *coming])
                self._imported += len(coming)
            gevent.sleep(0)

    # -- the other gateways -------------------------------------------------------------------------

    def _hear(self, message: Message, client: Client) -> None:
        """Take a word of another gateway or bridge of this bus."""
        if self._fellows.hear(message, client.credentials, monotonic()):
            self._settle()
        if self._fellows.is_asked:
            self._changed.set()

    def _say_here(self, client: Client) -> None:
        remotes = {f"{where}.{group}" for where, group, _ in self._remotes.values()}
        text = f"gateway {self._name}: {'connected' if remotes else 'away'}"
        kept, lost = len(self._arrivals), self._lost + self._arrivals.lost
        text += f", {self._exported:,} out, {self._imported:,} in, {kept:,} kept, {lost:,} lost"
        counts = BridgeCounts(self._exported, self._imported, kept, {"outage": lost}, bool(remotes))
        client.publish_many([self._fellows.say_here(remotes, text, counts, monotonic())])
        self._settle()

    def _stay_known(self, client: Client) -> None:
        """Tell the others, if there are any, that this one is here and what has changed."""
        while True:
            self._changed.wait(BEAT_SECONDS)
            self._changed.clear()
            if self._fellows.beat(monotonic()):
                self._say_here(client)
            self._settle()

    def _meet(self, data: bytes, link: PeerLink) -> None:
        """Take the greeting of the gateway at the other end of ``link``."""
        found = _GREETING.fullmatch(data)
        if found is None or self._client is None:
            return
        words = found[1].decode(), found[2].decode(), found[3].decode()
        if self._remotes.get(link) != words:
            self._remotes[link] = words
            self._settle()
            self._changed.set()

    def _link_gone(self, link: PeerLink) -> None:
        if self._remotes.pop(link, None) is not None:
            self._settle()
            self._changed.set()

    def _settle(self) -> None:
        """Find connections over which this gateway does not send: a spare does, or they lead to its own bus."""
        ends: dict[str, list[tuple[str, PeerLink]]] = {}
        for link, (where, group, gateway) in self._remotes.items():
            ends.setdefault(f"{where}.{group}", []).append((gateway, link))
        leave_out: set[PeerLink] = set()
        for remote, several in ends.items():
            several.sort(key=lambda end: end[0])
            first = 1 if self._fellows.leads_to(remote) else 0
            leave_out.update(link for _, link in several[first:])
        self._same_bus = frozenset(link for link, (where, _, _) in self._remotes.items() if where == self._bus)
        self._leave_out = frozenset(leave_out) | self._same_bus

    def statistics(self) -> GatewayStatistics:
        """Counts since the gateway was made. Frozen, and true for this instant only."""
        return GatewayStatistics(
            exported=self._exported,
            imported=self._imported,
            echoes=self._echoes,
            spares=self._fellows.spares,
            lost=self._lost + self._arrivals.lost,
            refused=dict(self._refused),
        )


def _keep_nothing(_: PeerInbox) -> None:
    """The peer of a gateway knows nothing of its queue."""
