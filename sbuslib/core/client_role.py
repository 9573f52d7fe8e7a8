"""Role of a client: subscriptions, control messages, and messages under any key that is not reserved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar, Final, Protocol

from ..errors import PacketError
from ..limits import PACKET_BYTES
from ..reasons import Reason
from ..secrets import Credentials
from ..wire import control, presence
from ..wire.modes import HARD, ORDER, SOFT
from ..wire.packets import Control, Packet, Subscribe, Unsubscribe, encode_control, parse
from .clients import Clients
from .context import Context
from .interest_watches import InterestWatches
from .outbound import Outbound
from .presence_table import PresenceTable
from .protocols import Routes, Sender
from .publisher import Publisher
from .replacement import Replacement
from .reporting import Reporter
from .settings import Reloads

_MODES: Final = {
    start + mode.encode(): (name, mode)
    for name, start, modes in (
        ("soft", control.SOFT, SOFT),
        ("hard", control.HARD, HARD),
        ("order", control.ORDER, ORDER),
    )
    for mode in modes
}
"""Which attribute of an outbox a control message sets, and to what."""

MOST_DIGITS: Final = 18
"""Most digits of the number of a client."""

TOKEN_BYTES: Final = 64
"""Longest token of a ``hub/sync`` and ``hub/wanted``. The hub sends it back, so it must not be long."""

WITHDRAWN_BYTES: Final = 16_384
"""Bytes of patterns that go into one notice of their withdrawal. All of a user's patterns fit into the answers that may
wait for a client."""

PREFIX: Final = b"prefix"
"""In the place of ``whoami``: how clients of the protocol's edition of 2017 ask for the part of their credential key
that they cannot know. They separate by a full stop."""


class Neighbours(Protocol):
    """The tree of the hub, as clients use it."""

    watches: InterestWatches
    """Watches of interest."""

    @property
    def presences(self) -> PresenceTable:
        """Presences."""
        ...

    def whoami(self, client: Outbound) -> None:
        """Answer a ``whoami``, once the first prefix is known."""

    def sync(self, client: Outbound, token: bytes, scope: bytes) -> None:
        """Answer a ``hub/sync``. Raises :exc:`~sbuslib.errors.PacketError` where too many wait."""

    def add_link(self, publisher: Publisher, said: bytes) -> None:
        """Make a client the relay of a child, which ``said`` names."""

    def note_address(self, client: Outbound, address: bytes) -> None:
        """A client that is the relay of a child says where its hub listens."""

    def forget(self, client: Outbound) -> None:
        """Forget a client that has left, and may have been a relay."""


class ClientRole:
    """The role of every client of one hub. Implements :class:`~.publisher.Role`."""

    is_link = False
    is_relay = False
    longest = PACKET_BYTES
    senders: ClassVar[Mapping[bytes, Sender]] = MappingProxyType({})  # it speaks for itself

    def __init__(
        self,
        context: Context,
        clients: Clients,
        neighbours: Neighbours,
        answers: Reporter,
        reloads: Reloads,
        replacement: Replacement,
    ) -> None:
        self._context = context
        self._clients = clients
        self._neighbours = neighbours
        self._answers = answers
        self._reloads = reloads
        self._replacement = replacement

    @property
    def parts(self) -> tuple[Context, Clients, Neighbours, Reporter, Reloads, Replacement]:
        """The parts that it was made with."""
        return self._context, self._clients, self._neighbours, self._answers, self._reloads, self._replacement

    @property
    def asks(self) -> bool:
        return self._context.authorization.is_asked

    def key_of(self, credentials: Credentials) -> bytes:
        return self._context.router.namespace.credential_key(credentials)

    def look_up(self, publisher: Publisher, header: bytes, times: int) -> Routes:
        router = self._context.router
        found = router.routes.get(header)
        if found is None:
            found = router.route(header)
        if publisher.asks:
            publisher.remember_route(header, found)
        return found

    def command(self, publisher: Publisher, packet: bytes) -> None:
        self.act_on(publisher, parse(packet))

    def act_on(self, publisher: Publisher, packet: Packet) -> None:
        """Act on a packet that is no message. Raises :exc:`~sbuslib.errors.PacketError`."""
        context, client = self._context, publisher.outbound
        if isinstance(packet, Control):
            self._control(publisher, packet)
        elif isinstance(packet, Subscribe):
            # First: the answer about a long pattern would take long.
            pattern = context.router.cut(packet.pattern, self._mark(client, packet.pattern))
            if not context.authorization.allows(client.account, client.credentials, "subscribe", pattern.raw):
                raise PacketError(Reason.SUBSCRIPTION_REFUSED, pattern.raw)
            if client.closed:
                return  # authorize= had it closed
            context.router.subscribe(pattern, client, client.credentials, client.account)
            publisher.refresh()
        else:
            assert isinstance(packet, Unsubscribe)
            name = self._mark(client, packet.pattern) + packet.pattern
            if not context.router.unsubscribe(name, client, client.account):
                context.counts.ignored += 1
            publisher.refresh()

    def _mark(self, client: Outbound, pattern: bytes) -> bytes:
        """The mark of a client's pattern: for a monitor's, except its secrets, which are meant for it all the same."""
        namespace = self._context.router.namespace
        return namespace.mark if client.is_monitor and not namespace.uses_reserved(pattern) else b""

    def _control(self, publisher: Publisher, packet: Control) -> None:
        context, client = self._context, publisher.outbound
        match packet.key:
            case control.WHOAMI:
                self._neighbours.whoami(client)
            case control.ECHO_ON | control.ECHO_OFF:
                client.set_echo(publisher if packet.key == control.ECHO_OFF else None)
            case control.SENDERS_ON | control.SENDERS_OFF:
                client.set_senders(packet.key == control.SENDERS_ON)
            case control.BATCH_ON | control.BATCH_OFF:
                client.set_batches(packet.key == control.BATCH_ON)
            case control.NOTICES_ON | control.NOTICES_OFF:
                client.set_notices(packet.key == control.NOTICES_ON)
            case control.MONITOR_ON if not context.router.count(client):  # else its patterns would have two names
                client.is_monitor = True
                self._clients.send_latest_events(client)
            # Requests.
            case control.STATISTICS | control.CLIENTS | control.PATTERNS | control.LINKS:
                client.answer(encode_control(packet.key, self._reply_to(client, packet)))
            case control.FEATURES:
                client.answer(encode_control(control.FEATURES, self._answers.features()))
            case control.SYNC | control.WANTED | control.WHY:
                token, _, about = (packet.payload or b"").partition(b"\0")
                if len(token) > TOKEN_BYTES:
                    raise PacketError(Reason.TOKEN_TOO_LONG)
                if packet.key == control.SYNC:
                    self._neighbours.sync(client, token, about)
                elif packet.key == control.WHY:
                    self._answers.explainer.ask(client, token, about)
                else:
                    state = self._neighbours.watches.state(client, about)
                    client.answer(encode_control(control.WANTED, token + b"\0" + state))
            case presence.INTEREST_WATCH:
                self._neighbours.watches.add(client, packet.payload or b"")
            case presence.INTEREST_UNWATCH if self._neighbours.watches.remove(client, packet.payload or b""):
                pass
            case presence.PRESENCE_ON:
                token, _, rest = (packet.payload or b"").partition(b"\0")
                key, _, info = rest.partition(b"\0")
                if len(token) > TOKEN_BYTES:
                    raise PacketError(Reason.TOKEN_TOO_LONG)
                refused = self._neighbours.presences.add(client, key, info, asks=bool(token)) or ""
                if token or refused:  # one that comes back with many waits for no answers
                    client.answer(encode_control(presence.PRESENCE_ON, token + b"\0" + refused.encode()))
            case presence.PRESENCE_OFF if self._neighbours.presences.remove(client, packet.payload or b""):
                pass
            case presence.PRESENCE_WATCH:
                self._neighbours.presences.watch(client, packet.payload or b"")
            case presence.PRESENCE_UNWATCH if self._neighbours.presences.unwatch(client, packet.payload or b""):
                pass
            case control.RELOAD if client.credentials.uid in context.trusted:
                self._reloads.ask(client.answer)
            case control.RELOAD:
                client.answer(encode_control(control.RELOAD, b""))
            case control.TAKE_OVER:
                self._replacement.ask(client, packet.payload or b"")

            # Packets of child hubs only.
            case control.INTEREST_ON:
                self._neighbours.add_link(publisher, packet.payload or b"")
            case control.INTEREST_ADDRESS:
                self._neighbours.note_address(client, packet.payload or b"")
            case key if key == context.router.namespace.start + PREFIX:
                client.answer(encode_control(key, context.router.namespace.prefix))
            case key if key in _MODES:
                setattr(client.outbox, *_MODES[key])
                client.changed_modes()
            case _:
                context.counts.ignored += 1

    def _reply_to(self, client: Outbound, packet: Control) -> bytes:
        """The answer for a trusted client; anybody else gets an empty one."""
        if client.credentials.uid not in self._context.trusted:
            return b""
        if packet.key == control.STATISTICS:
            return self._answers.statistics()
        start = packet.payload or b"0"
        if not start.isdigit() or len(start) > MOST_DIGITS:
            raise PacketError(Reason.NO_NUMBER)
        if packet.key == control.CLIENTS:
            return self._answers.clients(int(start))
        if packet.key == control.PATTERNS:
            return self._answers.patterns(int(start))
        return self._answers.links(int(start))

    def review(self, publisher: Publisher) -> Iterator[None]:
        context, client = self._context, publisher.outbound
        withdrawn: list[bytes] = []
        for name in context.router.plain_patterns_of(client):
            yield
            pattern = context.router.namespace.unmark(name)[1]

            # As for a new subscription.
            refused = not client.closed and not context.authorization.allows(
                client.account, client.credentials, "subscribe", pattern
            )
            if client.closed:
                return  # meanwhile, or authorize= had it closed
            if refused and context.router.times(name, client):
                context.router.withdraw(name, client, client.account)
                withdrawn.append(pattern)
            if sum(map(len, withdrawn)) > WITHDRAWN_BYTES:
                client.notify(control.Withdrawn(tuple(withdrawn)).encode())
                withdrawn.clear()

        if withdrawn:
            client.notify(control.Withdrawn(tuple(withdrawn)).encode())
        yield from self._neighbours.watches.review(client)
        yield from self._neighbours.presences.review(client)

    def drop(self, reason: Reason, times: int = 1) -> None:
        raise AssertionError("what a client may not do is a violation")

    def violated(self, publisher: Publisher, reason: Reason) -> None:
        self._clients.kick(publisher.outbound, reason)

    def ended(self, publisher: Publisher, why: str) -> None:
        self._clients.close(publisher.outbound, why)

    def forget(self, publisher: Publisher) -> None:
        self._neighbours.forget(publisher.outbound)

    def after_turn(self, publisher: Publisher) -> None:
        raise AssertionError("only links put anything off")
