"""``Gateway``: joins a bus to the buses of other machines, over a peer. Its rules: :mod:`sbuslib.federation`."""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from time import monotonic, time_ns
from typing import Any, Final

import gevent
from gevent.event import Event

from ..client import Client
from ..clients.endpoint import Endpoint
from ..core.supervision import Supervisor
from ..core.turns import let_others_run
from ..errors import DisconnectedError, StateError, UsageError
from ..federation.import_export import DropReason, ImportExportFilter
from ..federation.membership import HEARTBEAT_SECONDS, SETTLE_SECONDS, BridgeStatistics, Membership
from ..federation.name_format import NameFormat
from ..federation.subject_mapping import SubjectMapping
from ..hub import Hub
from ..keys.own_keys import CONTROL
from ..wire.text import plainly
from .peer import Peer
from .peer_inbox import PeerInbox

logger = logging.getLogger("sbuslib")

_BATCH = 256  # messages that cross together, after one announcement
_AWAY_SECONDS: Final = 0.2
"""Seconds between two looks for a bus that has gone."""
_NAME: Final = re.compile(r"[0-9A-Za-z._-]+")
_COPY: Final = "//fwd/"
_PATIENCE: Final = 1.0
"""Seconds that a gateway waits for a peer whose queue is half full; it waits again only after the queue was empty."""


class Gateway:
    """Carries messages between a bus and the gateways of other buses, which are peers of its peer.

    ::

        with Peer("127.0.0.1:9014") as peer, Gateway(hub, peer, export=[b"room/"], import_=[b"alarm/"]):
            ...

    A message crosses under ``//sbus/<name>/<key>``. No gateway exports a message that another one imported. Secret and
    reserved keys never cross.

    **Greenlets:** three. One receives from the bus and publishes to the peers; it waits for slow peers, each for a
    limited time. One publishes messages of peers on the bus; it may wait for the hub. One sends heartbeats to the other
    gateways of the bus.

    :param bus: a hub of this process that is started, a client, or the address of a hub, whose client the
        gateway becomes.
    :param peer: a peer that is started. It may serve other purposes too.
    :param export: patterns of the keys that leave this bus.
    :param import_: patterns of the keys that come to this bus.
    :param name: the common name of the buses that are joined: the same at each gateway.

    Raises :exc:`~sbuslib.errors.UsageError` for names that cannot be right, and for a gateway without any pattern.
    """

    _mapping: SubjectMapping  # filters and names: made at each start, as they depend on the hub's separator
    _membership: Membership  # the other gateways and bridges of the bus: anew with each start

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
        # Of the hub; None: the default address of clients.
        self._address = bus.address if isinstance(bus, (Hub, Endpoint)) else bus
        self._peer = peer
        self._limits = peer.limits  # shared with the peer
        self._name = name
        # A key is one segment of its name: NUL, which would separate segments, is in none.
        self._name_format = NameFormat(f"//sbus/{name}/", "\0", separator=b"\0")
        self._copies = f"{_COPY}sbus/{name}/"  # prefix of the names of copies, where peers forward
        self._id = f"{time_ns():016x}{secrets.token_hex(4)}"  # its id in heartbeats
        self._arrivals = PeerInbox(self._limits, _keep_nothing)  # messages of peers, until they are on the bus
        self._changed = Event()  # set when a heartbeat is due at once
        self._client: Client | None = None  # of the bus, while the gateway is started
        self._service = Supervisor(f"gateway of {name!r}", self.stop)
        self._greenlets: list[gevent.Greenlet[..., Any]] = []  # while it is started
        self._refused: Counter[str] = Counter()  # messages that do not cross, by reason
        self._exported = self._imported = 0  # messages, see GatewayStatistics
        self._lost = 0  # messages that peers sent, before the gateway was started the last time
        self._stopped = Event()  # set by stop(), and not when the bus goes away
        self.ended = Event()
        """Set when the gateway has stopped: by :meth:`stop`, because the bus went away, or by an error."""

    def __enter__(self) -> Gateway:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
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
        # 1. The filters depend on the separator of the hub.
        separator = client.hub.separator
        is_certain = client.hub.features is not None
        make_filter = partial(ImportExportFilter, separator=separator, certain=is_certain, strict=False)
        exported, imported = make_filter(self._export, imports=False), make_filter(self._import, imports=True)
        name = f"gateway {self._name}"
        self._membership = Membership(self._id, self._id, name, client.credentials, separator, self._refused)
        self._mapping = SubjectMapping(
            self._name_format,
            exported,
            imported,
            self._fits,
            self._refused,
            self._limits.cached_names,
            self._membership,
        )

        # 2. The other gateways have to know this one before it exports: then they announce what they import.
        self._client = client
        self.ended.clear()
        client.subscribe(CONTROL)
        self._send_heartbeat(client)
        gevent.sleep(SETTLE_SECONDS)
        if self._stopped.is_set():
            raise DisconnectedError("the gateway was stopped")
        if self._export:
            client.subscribe(*exported.patterns)
        client.timeout = None  # a slow hub is waited for

        # 3. Subscribe at the peers.
        self._service = Supervisor(f"gateway of {self._name!r}", self.stop)
        self._greenlets = [
            self._service.spawn(self._run, work, client)
            for work in (self._export_all, self._import_all, self._send_heartbeats)
        ]
        if self._import:
            self._peer.attach(self._arrivals, *self._substrings(imported.patterns))

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
        wanted = [self._name_format.start_of(pattern) for pattern in patterns]
        if self._peer.mesh.concerns(self._name_format.name_of(b"x")):
            wanted += [self._copies + text[len(self._name_format.name_of(b"")) :] for text in list(wanted)]
        return wanted

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
            client.publish_many([self._membership.farewell()])
        except (OSError, StateError) as error:
            logger.debug("gateway: leaving the bus: %s", plainly(error))
        client.close()

        # Unsubscribe at the peers. Their messages that are not on the bus yet are lost.
        self._peer.detach(self._arrivals)
        gevent.killall([each for each in self._greenlets if each is not gevent.getcurrent()], block=False)
        self._lost += self._arrivals.lost + len(self._arrivals)
        self._arrivals = PeerInbox(self._limits, _keep_nothing)
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
                    self._membership.hear(message, monotonic())
                    if self._membership.is_asked:
                        self._changed.set()
                elif self._mapping.is_echo(message) or (name := self._mapping.name_for(message)) is None:
                    continue
                elif len(message.payload) > self._limits.data_bytes:
                    self._refused[DropReason.PAYLOAD_TOO_LONG] += 1
                else:
                    going.append((name, message.payload))

            self._exported += len(going)
            self._peer.publish_many(going, patience=_PATIENCE)
            let_others_run()  # also while the bus always has more

    # -- in -----------------------------------------------------------------------------------------

    def _import_all(self, client: Client) -> None:
        while True:
            coming: list[tuple[bytes, bytes]] = []
            for message in self._arrivals.receive_many(most=_BATCH):
                name = message.name
                plain = "//" + name[len(_COPY) :] if name.startswith(_COPY) else name
                if (key := self._mapping.key_for(plain, message.data)) is not None:
                    coming.append((key, message.data))
            if coming:
                client.publish_many(self._membership.announced(coming))
                self._imported += len(coming)
            let_others_run()

    # -- heartbeats and statistics ------------------------------------------------------------------

    def _send_heartbeat(self, client: Client) -> None:
        client.publish_many([self._membership.heartbeat(self.statistics(), monotonic())])

    def _send_heartbeats(self, client: Client) -> None:
        """Send heartbeats while there are other gateways or bridges."""
        while True:
            self._changed.wait(HEARTBEAT_SECONDS)
            self._changed.clear()
            if self._membership.is_due(monotonic()):
                self._send_heartbeat(client)

    def statistics(self) -> BridgeStatistics:
        """Return counts since the gateway was made.

        ``lost`` counts messages lost to a full queue or an outage of the bus.
        """
        return BridgeStatistics(
            exported=self._exported,
            imported=self._imported,
            kept=len(self._arrivals),
            lost={"outage": self._lost + self._arrivals.lost},
            connected=bool(self._peer.links),
            refused=dict(self._refused),
        )


def _keep_nothing(_: PeerInbox) -> None:
    """Do nothing: the peer of a gateway does not hold its queue."""
