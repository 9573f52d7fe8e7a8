"""``Gateway``: joins a bus to the buses of other machines, by way of a peer. What may cross is in :mod:`.crossing`."""

from __future__ import annotations

import logging
import secrets
import socket
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from time import monotonic
from types import TracebackType
from typing import Any, Protocol

import gevent
import msgspec
from gevent.event import Event

from ..client import Client
from ..errors import DisconnectedError, NameFormatError, StateError, UsageError
from ..hub import Hub
from ..matcher import SEPARATOR
from ..wire.packets import Message
from .crossing import (
    CONTROL,
    DIGEST_BYTES,
    Border,
    Expected,
    Here,
    Members,
    Names,
    digest,
)
from .framing import Publish
from .link import Link
from .peer import Peer
from .statistics import GatewayStatistics

__all__ = ["Gateway"]

logger = logging.getLogger("sbuslib")

_BATCH = 256  # messages that cross at once, and are announced with one message
_IMPORT = b"import "
_HERE = b"here "


class _Bus(Protocol):
    """As much of a bus as a gateway needs, the same of a hub in this process and of one that is connected to."""

    identity: str

    def receive(self) -> list[Message]: ...

    def publish(self, messages: list[tuple[bytes, bytes]]) -> None: ...

    def close(self) -> None: ...


class _HubBus:
    def __init__(self, hub: Hub, patterns: Sequence[bytes]) -> None:
        self._hub = hub
        self.identity = hub.tree.path[-1].decode()  # of a tree of hubs, its root stands for the bus
        self._inbox = hub.subscribe(*patterns)

    def receive(self) -> list[Message]:
        inbox = self._inbox
        messages = [inbox.get()]
        while len(inbox) and len(messages) < _BATCH:
            messages.append(inbox.get())
        return messages

    def publish(self, messages: list[tuple[bytes, bytes]]) -> None:
        for key, payload in messages:
            self._hub.publish(key, payload)

    def close(self) -> None:
        self._inbox.close()


class _ClientBus:
    def __init__(self, client: Client, patterns: Sequence[bytes]) -> None:
        self._client = client
        self._patterns = patterns
        features = client.features
        if features is not None:
            self.identity = (features.path or (features.hub_id,))[-1].decode()
        else:  # a daemon that tells no id: its address on this machine stands for it
            place = f"{socket.gethostname()} {client.address}"
            self.identity = blake2b(place.encode(), digest_size=8).hexdigest()
        try:
            client.senders(True)
        except StateError:
            logger.debug("gateway: the hub at %s tells no senders", client.address)
        client.subscribe(*patterns)

    def receive(self) -> list[Message]:
        return self._client.receive_many(_BATCH)

    def publish(self, messages: list[tuple[bytes, bytes]]) -> None:
        self._client.publish_many(messages)

    def close(self) -> None:
        if not self._client.closed:
            self._client.unsubscribe(*self._patterns)


class Gateway:
    """Carries messages between a bus and the gateways of other buses, which are peers of its peer.

    ::

        with Peer("127.0.0.1:9014") as peer, Gateway(hub, peer, export=[b"room/"], import_=[b"alarm/"]):
            ...

    A message crosses under ``//sbus/<name>/<key>``. It goes one way once: what a gateway has brought to a bus, no
    gateway takes from it again; two gateways between the same buses, set up alike, are each other's spares; secret
    and reserved keys stay where they are.

    **Greenlets:** three. One receives from the bus and hands to the peer, where it waits for slow peers, each for a
    limited time; one publishes on the bus what peers sent, where it may wait for the hub; one announces the gateway to
    the others of its bus.

    :param bus: a hub of this process that is started, or a :class:`~sbuslib.Client` that nothing else uses.
    :param peer: a peer that is started. It may serve other purposes too.
    :param export: patterns of the keys that go out.
    :param import_: patterns of the keys that come in.
    :param name: what the buses that are joined are called together: the same at each gateway.

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
        separator = bus.context.router.namespace.separator if isinstance(bus, Hub) else SEPARATOR
        self._given = bus
        self._peer = peer
        self._limits = peer.limits
        self._export = Border(export, separator)
        self._import = Border(import_, separator)
        if not self._export.patterns and not self._import.patterns:
            raise UsageError("a gateway needs patterns to export or to import")
        self._names = Names(name)
        self._greeting = f"//sbus-gateway/{name}"
        self._id = secrets.token_hex(8)
        setup = repr((name, sorted(self._export.patterns), sorted(self._import.patterns)))
        self._group = blake2b(setup.encode(), digest_size=8).hexdigest()
        self._members = Members(self._id, self._group, 3 * self._limits.heartbeat_seconds)
        self._expected = Expected(self._limits.imports, self._limits.expected_seconds)
        self._known_names: dict[bytes, str | None] = {}
        self._known_keys: dict[str, bytes | None] = {}
        self._incoming: deque[Publish] = deque()
        self._arrived = Event()
        self._changed = Event()
        self._remotes: dict[Link, tuple[str, str, str]] = {}  # bus, group and id of the gateway at the other end
        self._leave_out: frozenset[Link] = frozenset()
        self._same_bus: frozenset[Link] = frozenset()
        self._sender: tuple[bytes | None] | None = None  # as whom the bus knows us, once it has said so
        self._bus: _Bus | None = None
        self._greenlets: list[gevent.Greenlet[..., Any]] = []
        self._exported = self._imported = self._echoes = self._lost = 0
        self._refused: Counter[str] = Counter()
        self.ended = Event()
        """Set when the gateway has stopped, by :meth:`stop` or because the bus went away."""

    def __enter__(self) -> Gateway:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

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
        patterns = [*self._export.patterns, CONTROL]
        bus: _Bus = (
            _HubBus(self._given, patterns) if isinstance(self._given, Hub) else _ClientBus(self._given, patterns)
        )
        self._bus = bus
        self.ended.clear()
        self._say_here(bus)
        self._peer.watch_links(self._link_gone)
        self._peer.attach(self, *self._substrings())
        self._peer.retain(self._greeting, f"{bus.identity} {self._group} {self._id}".encode())
        self._greenlets = [
            gevent.spawn(self._run, work, bus) for work in (self._export_all, self._import_all, self._stay_known)
        ]

    def _substrings(self) -> list[str]:
        wanted = [self._names.substring_for(pattern) for pattern in self._import.patterns]
        if self._peer.mesh.concerns(self._names.prefix + "x"):
            wanted += [self._names.copies + text[len(self._names.prefix) :] for text in list(wanted)]
        return [*wanted, self._greeting]

    def stop(self) -> None:
        """Let nothing cross any more. What peers sent and the bus has not got is counted as lost."""
        bus, self._bus = self._bus, None
        if bus is None:
            return
        try:
            bus.publish([(CONTROL, _HERE + msgspec.json.encode(Here(self._id, self._group, leaving=True)))])
            bus.close()
        except (OSError, StateError) as error:
            logger.debug("gateway: leaving the bus: %s", error)
        self._peer.detach(self)
        self._peer.release(self._greeting)
        self._peer.watch_links(self._link_gone, False)
        gevent.killall([each for each in self._greenlets if each is not gevent.getcurrent()], block=False)
        self._lost += len(self._incoming)
        self._incoming.clear()
        self._remotes.clear()
        self.ended.set()

    close = stop

    def _run(self, work: Any, bus: _Bus) -> None:
        """One of the greenlets: whichever finds the bus gone stops the gateway."""
        try:
            work(bus)
        except (OSError, StateError) as error:
            if self._bus is bus:
                if not isinstance(error, DisconnectedError):
                    logger.error("gateway: %s", error)
                self.stop()

    # -- out ----------------------------------------------------------------------------------------

    def _export_all(self, bus: _Bus) -> None:
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
                    name = self._name_for(message.key)
                    if name is None:
                        continue
                    if len(message.payload) > self._limits.data_bytes:
                        self._refused["payload too long"] += 1
                        continue
                    going.append((name, message.payload))
            self._send(going)
            gevent.sleep(0)  # a bus that always has more must not keep the others waiting

    def _send(self, going: list[tuple[str, bytes]]) -> None:
        if going:
            self._exported += len(going)
            self._peer.publish_many(going, patience=self._limits.export_patience, leave_out=self._leave_out)

    def _name_for(self, key: bytes) -> str | None:
        """The name under which ``key`` goes out; ``None`` when it does not."""
        name = self._known_names.get(key)
        if name is not None:
            return name
        reason = self._export.refusal(key)
        if reason is None:
            name = self._names.name_of(key)
            if len(name.encode()) > self._limits.name_bytes:
                reason, name = "name too long", None
        if reason is not None:
            self._refused[reason] += 1
        elif len(key) <= self._limits.cached_name_bytes:
            if len(self._known_names) >= self._limits.cached_names:
                self._known_names.clear()
            self._known_names[key] = name
        return name

    # -- in -----------------------------------------------------------------------------------------

    def take(self, messages: Sequence[Publish], source: Link) -> None:
        """Messages have come from a peer: for :class:`~sbuslib.tcp.link.Link`."""
        greetings = [message for message in messages if message.name == self._greeting]
        if greetings:
            self._meet(greetings[-1].data, source)
            messages = [message for message in messages if message.name != self._greeting]
        if source in self._same_bus:
            self._refused["from this very bus"] += len(messages)
            return
        room = self._limits.imports - len(self._incoming)
        if len(messages) > room:
            self._lost += len(messages) - max(0, room)
            messages = messages[: max(0, room)]
        self._incoming.extend(messages)
        self._arrived.set()

    def _import_all(self, bus: _Bus) -> None:
        incoming = self._incoming
        while True:
            while not incoming:
                self._arrived.clear()
                self._arrived.wait()
            coming: list[tuple[bytes, bytes]] = []
            while incoming and len(coming) < _BATCH:
                message = incoming.popleft()
                key = self._key_for(message.name)
                if key is not None:
                    coming.append((key, message.data))
            if coming:
                self._imported += len(coming)
                bus.publish([*self._announcement(coming), *coming])
            gevent.sleep(0)

    def _announcement(self, coming: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """What to say on the bus before these messages, so that no gateway takes them from it again."""
        if self._members.others or self._sender is None:
            return [(CONTROL, _IMPORT + b"".join([digest(key, payload) for key, payload in coming]))]
        now = monotonic()
        for key, payload in coming:
            if key in self._known_names or self._export.refusal(key) is None:
                self._expected.announce(self._sender[0], digest(key, payload), now)
        return []

    def _key_for(self, name: str) -> bytes | None:
        """The key under which a message comes in; ``None`` when it does not."""
        key = self._known_keys.get(name)
        if key is not None:
            return key
        try:
            key = self._names.key_of(name)
        except NameFormatError as error:
            self._refused[str(error)] += 1
            return None
        reason = self._import.refusal(key)
        if reason is not None:
            self._refused[reason] += 1
            return None
        if len(name) <= self._limits.cached_name_bytes:
            if len(self._known_keys) >= self._limits.cached_names:
                self._known_keys.clear()
            self._known_keys[name] = key
        return key

    # -- the other gateways -------------------------------------------------------------------------

    def _hear(self, message: Message, bus: _Bus) -> None:
        """A gateway of this bus, perhaps this one, has spoken."""
        now = monotonic()
        said = message.payload
        if said.startswith(_IMPORT):
            for start in range(len(_IMPORT), len(said) - DIGEST_BYTES + 1, DIGEST_BYTES):
                self._expected.announce(message.sender, said[start : start + DIGEST_BYTES], now)
            return
        if not said.startswith(_HERE):
            return
        try:
            here = msgspec.json.decode(said[len(_HERE) :], type=Here)
        except msgspec.MsgspecError:
            self._refused["unknown word of a gateway"] += 1
            return
        if here.gateway == self._id:
            self._sender = (message.sender,)
        if self._members.hear(here, now):
            self._changed.set()  # so that the new one hears of us
        self._settle(bus)

    def _say_here(self, bus: _Bus) -> None:
        remotes = tuple(sorted({f"{where}.{group}" for where, group, _ in self._remotes.values()}))
        bus.publish([(CONTROL, _HERE + msgspec.json.encode(Here(self._id, self._group, remotes)))])

    def _stay_known(self, bus: _Bus) -> None:
        """Say on the bus, to other gateways if there are any, that we are here and what has changed."""
        pause = self._limits.heartbeat_seconds
        while True:
            before = monotonic()
            self._changed.wait(pause)
            self._changed.clear()
            now = monotonic()
            self._expected.expire(now)
            if now - before > 2 * pause:
                self._members.excuse(now)
            elif self._members.expire(now):
                self._settle(bus)
            if self._members.others:
                self._say_here(bus)

    def _meet(self, data: bytes, link: Link) -> None:
        """The gateway at the other end of ``link`` says who it is."""
        words = data.decode("utf-8", "replace").split(" ")
        if len(words) == 3 and self._bus is not None:
            self._remotes[link] = words[0], words[1], words[2]
            self._settle(self._bus)
            self._changed.set()

    def _link_gone(self, link: Link) -> None:
        if self._remotes.pop(link, None) is not None and self._bus is not None:
            self._settle(self._bus)
            self._changed.set()

    def _settle(self, bus: _Bus) -> None:
        """Find out over which connections it is not for us to send."""
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
