"""One client as a publisher: its state between its packets and between its turns.

It is the part of a :class:`~.connection.Connection` that routing knows.

A *turn* routes the packets of one receive call, see :mod:`.routing`. The :class:`Role` of a client decides what the
client may do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate
from time import monotonic
from typing import Any, Final, Generic, Protocol, TypeVar

from ..errors import PacketError
from ..reasons import Reason
from ..secrets import Credentials
from ..wire import control
from ..wire.packets import MSG
from .context import Context
from .fan_out import FanOuts
from .messages import Messages
from .outbound import Outbound
from .protocols import Pausable, Pauser, Receiver, Routes, Sender
from .router import CACHED_HEADER_BYTES
from .running import Running

Which = TypeVar("Which")

ALLOWED_KEY: Final = 256
"""Bytes that are charged for a key remembered as allowed, beside its own: about what Python needs for it."""

FEW: Final = 64
"""Messages to so few receivers go without a look at the clock."""

PLANNED: Final = 2
"""How many times the deliveries of a turn are planned at once. The clock is not looked at meanwhile, which is a fifth
of a microsecond for each; to plan fewer sends what goes to one receiver in more pieces."""

_NOTHING: Final[deque[bytes | Undelivered[Any]]] = deque(maxlen=0)
_NOBODY: Final[frozenset[Pauser]] = frozenset()


def affordable(routes: Sequence[Routes], most: int) -> int:
    """How many of these routes, from the first on, are planned at once: at least one."""
    return max(1, bisect_right([*accumulate(map(len, routes))], most))


def by_receiver(routes: Iterable[tuple[Iterable[int], Routes]]) -> list[tuple[tuple[int, ...], list[Receiver]]]:
    """Which numbers go to which receivers: all of one receiver together, and those together that get the same."""
    mine: dict[Receiver, list[int]] = {}
    for numbers, receivers in routes:
        for receiver in receivers:
            if receiver in mine:
                mine[receiver] += numbers
            else:
                mine[receiver] = [*numbers]

    # One object for all receivers of the same messages, so that copies and batches of it are made once.
    alike: dict[tuple[int, ...], list[Receiver]] = {}
    for receiver, all_of_it in mine.items():
        alike.setdefault(tuple(all_of_it), []).append(receiver)
    return list(alike.items())


class Undelivered(Generic[Which]):
    """Messages of one sender that a turn had no time to deliver, and the receivers of each.

    :param plan: messages and their receivers, in order. No receivers are copied for it.
    """

    def __init__(self, sender: Sender, plan: Iterable[tuple[Which, Sequence[Receiver]]]) -> None:
        self.sender = sender
        self.plan = deque(plan)  # the rest of it
        self.done = 0  # receivers of the first that have got it

    def messages(self, which: Which) -> Messages:
        """The messages that the plan means by ``which``: by default these themselves."""
        assert isinstance(which, Messages)
        return which

    def keep(self) -> None:
        """The turn ends: copy the rest out of the hub's receive buffer."""
        kept = deque((self.messages(which).keep(), receivers) for which, receivers in self.plan)
        self.plan = kept  # type: ignore[assignment]


class Role(Protocol):
    """Role of a connection: a client, a link from a child, the link to the parent."""

    is_link: bool
    """Whether a violation by one of many clients behind it is only counted, by :meth:`drop`."""
    is_relay: bool
    """Whether it stands for the clients of another hub. Its messages never go back to it."""
    longest: int
    """Length of the longest packet it may send, in bytes. A message by itself is never longer than
    :data:`~sbuslib.limits.PACKET_BYTES`."""

    @property
    def senders(self) -> Mapping[bytes, Sender]:
        """Those behind a link that have sent something, by what the other end calls them."""
        ...

    @property
    def asks(self) -> bool:
        """Whether ``authorize=`` is asked about its keys."""
        ...

    def key_of(self, credentials: Credentials) -> bytes:
        """Return the credential key that goes with its messages."""

    def look_up(self, publisher: Publisher, header: bytes, times: int) -> Routes:
        """The receivers of so many messages with this header. Raises :exc:`~sbuslib.errors.PacketError`."""

    def command(self, publisher: Publisher, packet: bytes) -> None:
        """Act on a packet that is no message. Raises :exc:`~sbuslib.errors.PacketError` for a violation."""

    def drop(self, reason: Reason, times: int = 1) -> None:
        """Count messages that a link should not have sent."""

    def violated(self, publisher: Publisher, reason: Reason) -> None:
        """The client did something that is not allowed. The turn has ended."""

    def ended(self, publisher: Publisher, why: str) -> None:
        """The other end closed the connection, or it broke. The turn has ended."""

    def review(self, publisher: Publisher) -> Iterator[None]:
        """``authorize=`` has changed: end subscriptions that it no longer allows, one pattern a step."""
        ...

    def forget(self, publisher: Publisher) -> None:
        """The client has left, and is closed."""

    def after_turn(self, publisher: Publisher) -> None:
        """The turn of a link has ended, and the hub's receive buffer is free: do the work that was put off."""


@dataclass(slots=True, eq=False, repr=False)
class Publisher:
    """One client as a publisher. Its routes are remembered from turn to turn.

    Implements :class:`~.protocols.Sender` and :class:`~.protocols.Pausable`.
    """

    context: Context
    fan_outs: FanOuts
    credentials: Credentials
    outbound: Outbound
    role: Role
    received: int = 0  # messages, ever
    commands: int = 0  # packets that were no message, ever
    spent: int = 0  # deliveries of the turn at hand
    backlog: deque[bytes | Undelivered[Any]] = field(
        default_factory=lambda: _NOTHING
    )  # for later turns: copies of packets
    end: Reason | str | None = None  # what comes after them: a violation, or how the connection ended
    refused: bytes = b""  # the key or pattern of that violation, where it is about one
    pausers: Set[Pauser] = _NOBODY  # receivers that hold this client: it is not read from
    misses: bool = False  # whether the last receive call brought anything but messages with known receivers
    running: Running = field(init=False)
    asks: bool = field(init=False)
    routes: dict[bytes, Routes] = field(init=False)
    _until: float = 0.0  # when the turn at hand ends, by the monotonic clock; 0: nobody asked yet
    _allowed: dict[bytes, bytes] | None = None  # headers that authorize= said yes to, each by itself
    _allowed_bytes: int = 0
    _version: int = field(init=False)  # of the router, when routes were right
    _wrapper: bytes = b""  # of this role, under the prefix below
    _prefix: bytes | None = None  # of the hub, when the wrapper was made; None: it has to be made

    def __post_init__(self) -> None:
        self.running = self.context.running
        self._version = self.context.router.version
        self.become(self.role)

    def become(self, role: Role) -> None:
        """Take another role: a client becomes a link."""
        self.role = role
        self._prefix = None
        self.asks = role.asks
        # Most clients use the router's own cache. A link, and a client about which authorize= is asked, has a cache of
        # its own, so that each header that is new for it is looked at.
        self.routes = {} if role.asks or role.is_relay else self.context.router.routes

    @property
    def closed(self) -> bool:
        return self.outbound.closed

    @property
    def batches(self) -> bool:
        return self.outbound.takes_batches

    # -- as a sender --------------------------------------------------------------------------------

    @property
    def key(self) -> bytes:
        return self.role.key_of(self.credentials)

    @property
    def wrapper(self) -> bytes:
        prefix = self.context.router.namespace.prefix
        if prefix is not self._prefix:  # made once, since all that goes over a link has it
            self._wrapper, self._prefix = control.wrapper_from(self.key), prefix
        return self._wrapper

    def holdable_by(self, receiver: Receiver) -> Pausable | None:
        # A client may not hold itself: while it waits to send, it reads nothing. A link speaks for many clients.
        if receiver is self.outbound or self.role.is_link or self.closed:
            return None
        return self if self.context.may_hold(self.credentials, receiver.credentials) else None

    # -- from turn to turn --------------------------------------------------------------------------

    def begin_turn(self) -> None:
        self.spent = 0
        self._until = 0.0

    @property
    def most(self) -> int:
        return self.context.limits.turn_deliveries

    @property
    def until(self) -> float:
        """When the turn at hand ends: the clock is read when this is first asked, as most turns are short."""
        if not self._until:
            self._until = monotonic() + self.context.limits.turn_time
        return self._until

    @property
    def is_over(self) -> bool:
        """Whether no more of this client's messages may be handed on in this turn."""
        return bool(self.pausers) or self.spent >= self.context.limits.turn_deliveries

    def pause(self, by: Pauser) -> None:
        if not isinstance(self.pausers, set):
            self.pausers = set()
        self.pausers.add(by)  # not a new set each time: thousands of receivers of one message may hold it

    def resume(self, by: Pauser) -> None:
        if isinstance(self.pausers, set):
            self.pausers.discard(by)
        if not self.pausers:
            self.pausers = _NOBODY

    def put_off(self, packets: Iterable[bytes]) -> None:
        """Go on with these packets, which are copies, in a turn to come."""
        if self.backlog is _NOTHING:
            self.backlog = deque()
        self.backlog.extend(packets)

    def put_off_first(self, rest: bytes | Undelivered[Any]) -> None:
        """Go on with this packet, or with these deliveries, before all else that is left."""
        self.put_off(())
        self.backlog.appendleft(rest)

    def forget_backlog(self) -> None:
        """Nothing is left. No empty deque is kept: it takes 760 bytes for each idle client."""
        self.backlog = _NOTHING

    def leave(self) -> None:
        """The client has left. Messages that some receivers have got are kept for the others, until :meth:`finish`."""
        if not self.is_cut:
            self.forget_backlog()
        self.forget_allowed()

    @property
    def is_cut(self) -> bool:
        """Whether some receivers have got messages that others have still to get."""
        return bool(self.backlog) and isinstance(self.backlog[0], Undelivered)

    def finish(self) -> bool:
        """Go on with those, for the length of a turn, and with nothing else. Returns whether there are more.

        Of a client that has left, nothing else is kept.
        """
        rest = self.backlog.popleft()
        assert isinstance(rest, Undelivered)
        self.begin_turn()
        if self.hand_on(rest):
            return True
        if self.closed or not self.backlog:
            self.forget_backlog()
        return False

    # -- receivers ----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Forget receivers that may be wrong by now."""
        router = self.context.router
        if self._version != router.version:
            self._version = router.version
            if self.routes is not router.routes:
                self.routes.clear()

    def look_up(self, header: bytes, times: int = 1) -> Routes:
        return self.role.look_up(self, header, times)

    def deliver(self, receivers: Routes, sender: Sender, messages: Messages) -> None:
        """Hand each receiver messages that came over this connection."""
        receivers = self.fan_outs.with_groups(receivers, sender)
        count = messages.count
        self.received += count
        if len(receivers) > FEW:
            self.hand_on(Undelivered(sender, [(messages, receivers)]))
            return
        self.spent += count * len(receivers)
        for receiver in receivers:
            receiver.deliver(sender, messages)

    def hand_on(self, deliveries: Undelivered[Any]) -> bool:
        """Hand messages on, for the length of a turn. Returns whether a later turn has to go on with the rest.

        That comes before all else that is left. From its return on nothing of it is in the hub's receive buffer.
        """
        if not self.spread(deliveries):
            return False
        deliveries.keep()
        self.put_off_first(deliveries)
        return True

    def spread(self, deliveries: Undelivered[Any]) -> bool:
        """Hand messages on until the turn is over. Returns whether any are left."""
        sender, until, most = deliveries.sender, self.until, self.most
        is_over = False
        while deliveries.plan and not is_over:
            which, receivers = deliveries.plan[0]
            messages = deliveries.messages(which)
            for receiver in receivers[deliveries.done :]:
                deliveries.done += 1
                self.spent += 1 if receiver.takes_batches else messages.count
                receiver.deliver(sender, messages)
                if self.spent >= most or monotonic() > until:
                    is_over = True
                    break
            if deliveries.done == len(receivers):
                deliveries.plan.popleft()
                deliveries.done = 0

        if deliveries.plan:
            self.spent = max(self.spent, most)
        return bool(deliveries.plan)

    # -- authorize= ---------------------------------------------------------------------------------

    def knows_allowed(self, header: bytes) -> bool:
        """Whether ``authorize=`` said yes to a header before, or is not asked."""
        return not self.asks or (self._allowed is not None and header in self._allowed)

    def may_publish(self, header: bytes, times: int = 1) -> bool:
        """Ask ``authorize=`` about the key of so many messages. Not while the hub's receive buffer is in use.

        If the answer is no, a link's messages are counted as dropped; for others this raises
        :exc:`~sbuslib.errors.PacketError`.
        """
        try:
            self.context.router.namespace.check_key(header[len(MSG) : -1])
            client = self.outbound
            if not self.context.authorization.allows(
                client.account, client.credentials, "publish", header[len(MSG) : -1]
            ):
                raise PacketError(Reason.PUBLISHING_REFUSED, header[len(MSG) : -1])
        except PacketError as error:
            if not self.role.is_link:
                raise
            self.role.drop(error.reason, times)
            return False

        if self.closed:
            return False  # authorize= had it closed
        self._remember_allowed(header)
        return True

    def _remember_allowed(self, header: bytes) -> None:
        limits, quotas = self.context.limits, self.context.quotas
        if len(header) > CACHED_HEADER_BYTES:
            return
        uid, size = self.outbound.account.uid, len(header) + ALLOWED_KEY
        if self._allowed is None:
            self._allowed = {}
        if len(self._allowed) >= limits.cached_keys or not quotas.allowed.take(uid, size):
            self.forget_allowed()
            if not quotas.allowed.take(uid, size):
                return  # the user's other clients have taken all of its share
        self._allowed[header] = header
        self._allowed_bytes += size

    def remember_route(self, header: bytes, receivers: Routes) -> None:
        """Remember the receivers of a message that ``authorize=`` said yes to, so that it is not looked at again."""
        if self._allowed is not None and (known := self._allowed.get(header)) is not None:
            self.routes[known] = receivers  # under the object that is there already, and charged

    def forget_answers(self) -> None:
        """``authorize=`` has changed: ask about every key anew, or about none any more."""
        self.forget_allowed()
        self.become(self.role)

    def forget_allowed(self) -> None:
        """Ask ``authorize=`` about every key again."""
        if self._allowed:
            self.context.quotas.allowed.give(self.outbound.account.uid, self._allowed_bytes)
            self._allowed.clear()
            self._allowed_bytes = 0
            if self.routes is not self.context.router.routes:
                self.routes.clear()  # they may be sent without a question
