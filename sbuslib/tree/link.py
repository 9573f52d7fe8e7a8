"""One end of a link between two hubs: what both ends do alike.

Each end wants something of the other, and tells it: patterns, and whether it wants senders. It is told the same, and
treats that as what any client wants. What comes over a link goes to all receivers but the link itself. A wrong packet
is dropped and counted: a link with hundreds of clients behind it does not end for one packet.
:mod:`~sbuslib.tree.below` has the upper end, :mod:`~sbuslib.tree.above` the lower one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from ..core.batch_routing import take_batch
from ..core.callbacks import log
from ..core.client_role import ClientRole
from ..core.context import Context
from ..core.messages import Copied
from ..core.outgoing import Outgoing
from ..core.protocols import Holdable, Receiver, Routes
from ..core.publisher import Publisher
from ..core.quotas import Account
from ..core.router import CACHED_HEADER_BYTES
from ..core.violations import Violations
from ..errors import PacketError
from ..limits import CONTROL_EXTRA, PACKET_BYTES
from ..secrets import Credentials
from ..wire import control
from ..wire.batches import BATCH
from ..wire.packets import MSG, Control, Packet, encode_control, parse
from .open_questions import OpenQuestions
from .telling import Telling

__all__ = ["ForgedError", "HubTree", "Link", "Voucher"]

_SENDERS: Final = 4_096
"""Senders behind one link that are remembered. When one more comes, all are forgotten, and made again as they come."""


class ForgedError(PacketError):
    """A link names a sender that is not below it."""


class HubTree(Protocol):
    """What a link asks of the tree that its hub belongs to."""

    context: Context
    client_role: ClientRole
    dropped: Violations
    telling: Telling

    def wake(self, account: Account | None = None) -> None:
        """A user, or the hub itself, has changed something of which links have to be told, in later turns."""

    @property
    def has_settled(self) -> bool:
        """Whether this hub knows what is wanted."""

    def told_all(self) -> None:
        """A link has told all that is wanted below it."""

    def answered(self, token: bytes, who: object, scope: bytes) -> None:
        """A hub below or above answered a question."""

    def pass_notice(self, notice: control.Lost | control.Away, origin: Receiver | None) -> None:
        """Messages were lost between two hubs: tell the clients and hubs that asked for notices, but not ``origin``."""


class Voucher:
    """Somebody behind a link, as the hub at its other end says. Implements :class:`~sbuslib.core.protocols.Sender`.

    :param through: the credential key of the link, which is the kernel's word.
    :param credentials: of the link, which is all that the kernel vouches for.
    :param rest: what the hub at the other end adds to that key.
    """

    __slots__ = ("_rest", "_through", "credentials")

    def __init__(self, through: Callable[[], bytes], credentials: Credentials, rest: bytes) -> None:
        self._through = through
        self._rest = rest
        self.credentials = credentials

    @property
    def key(self) -> bytes:
        """Its credential key."""
        return self._through() + self._rest

    @property
    def wrapper(self) -> bytes:
        """What goes before its packets on the way to a receiver that asked for senders."""
        return control.wrapper_from(self.key)

    def holdable_by(self, receiver: Receiver) -> Holdable | None:
        """Nothing: a link is never held back, since others are behind it."""
        return None


class Link:
    """The role of a connection to another hub. Implements :class:`~sbuslib.core.publisher.Role`."""

    is_link = True
    longest = PACKET_BYTES + CONTROL_EXTRA

    def __init__(self, tree: HubTree) -> None:
        self.tree = tree
        self.context = tree.context
        self.questions = OpenQuestions()
        self._to_ask: deque[bytes] = deque()  # tokens of questions that wait until all is told
        self._told_senders = False  # whether the other end was told that senders are wanted
        self._vouchers: dict[bytes, Voucher] = {}  # by what the other end calls them
        self._to_log: list[str] = []  # why something was dropped for the first time, in this turn

    # -- for either end to say ----------------------------------------------------------------------

    @property
    def outgoing(self) -> Outgoing:
        """What sends to the other end."""
        raise NotImplementedError

    @property
    def receiver(self) -> Receiver:
        """What routes hold for the other end."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The other end, for the log."""
        raise NotImplementedError

    @property
    def is_up(self) -> bool:
        """Whether the other end can be told anything."""
        return not self.outgoing.closed

    @property
    def asked_for_senders(self) -> bool:
        """Whether the other end wants messages with their sender."""
        raise NotImplementedError

    @property
    def has_changes(self) -> bool:
        """Whether there is something that the other end has to know of what is wanted of it."""
        raise NotImplementedError

    @property
    def room(self) -> int:
        """How many more control packets may wait."""
        raise NotImplementedError

    def tell_changes(self, most: int) -> int:
        """Tell up to ``most`` changes. Returns how many."""
        raise NotImplementedError

    def tell_complete(self) -> None:
        """All was told. This may have to be said."""
        raise NotImplementedError

    def ask_now(self, token: bytes) -> None:
        """Ask the other end to answer when all that it was told is in force."""
        raise NotImplementedError

    def vouch(self, name: bytes) -> Voucher:
        """The sender that the other end calls so. Raises :exc:`~sbuslib.errors.PacketError`."""
        raise NotImplementedError

    def act_on(self, publisher: Publisher, packet: Packet) -> None:
        """Act on a packet that is no message. Raises :exc:`~sbuslib.errors.PacketError`."""
        raise NotImplementedError

    def note_dropped(self, reason: str, times: int) -> bool:
        """Count wrong packets. Returns whether that is to be logged."""
        raise NotImplementedError

    # -- what comes from the other end --------------------------------------------------------------

    def receivers_of(self, header: bytes) -> Routes:
        """The receivers of a message of this link: all but the link itself.

        Raises :exc:`~sbuslib.errors.ReservedKeyError` where nobody may publish under its key.
        """
        router = self.context.router
        receivers = router.routes.get(header)
        if receivers is None:
            receivers = router.route(header)
        own = self.receiver
        return tuple(receiver for receiver in receivers if receiver is not own)

    def remember(self, publisher: Publisher, header: bytes, receivers: Routes) -> None:
        """Remember the receivers of a message for the next one.

        Not of a longer header than the router remembers: the router does not say when these receivers change.
        """
        if len(header) <= CACHED_HEADER_BYTES:
            if len(publisher.routes) >= self.context.limits.cached_keys:
                publisher.routes.clear()
            publisher.routes[header] = receivers

    def command(self, publisher: Publisher, data: bytes) -> None:
        """Act on a packet that is no message of an unknown sender. Raises :exc:`ForgedError` alone."""
        try:
            packet = parse(data)
            if isinstance(packet, Control) and packet.key == control.FROM:
                self._take_wrapped(publisher, packet.payload or b"")
            else:
                self.act_on(publisher, packet)
        except ForgedError:
            raise
        except PacketError as error:
            self.drop(error.reason)

    def _take_wrapped(self, publisher: Publisher, payload: bytes) -> None:
        """Hand on a message, or a batch, with its sender."""
        name, packet = control.unwrap_from(payload)
        is_batch = packet.startswith(BATCH) and publisher.batches
        header = packet[: packet.find(b"\0") + 1]
        if not is_batch and (not header.startswith(MSG) or len(packet) > PACKET_BYTES):
            raise PacketError("wrapped packet is no message")

        voucher = self._vouchers.get(name)
        if voucher is None:
            voucher = self.vouch(name)
            if len(self._vouchers) >= _SENDERS:
                self._vouchers.clear()
            self._vouchers[name] = voucher

        if is_batch:
            take_batch(publisher, packet, voucher, control.wrapper_from(name))
        elif publisher.knows_allowed(header) or publisher.may_publish(header):
            receivers = publisher.routes.get(header) or publisher.look_up(header)
            publisher.deliver(receivers, voucher, Copied(self.context.writer, [packet]))

    def drop(self, reason: str, times: int = 1) -> None:
        """Count wrong packets or messages of this link, which have no effect. The first is logged after the turn."""
        if self.note_dropped(reason, times):
            self._to_log.append(reason)

    def after_turn(self, publisher: Publisher) -> None:
        """Log what was dropped for the first time."""
        while self._to_log:
            text = "sbus hub at %s dropped what %s sent: %s (further ones are only counted)"
            log(logging.WARNING, text, self.context.address(), self.name, self._to_log.pop())

    # -- what the other end is told -----------------------------------------------------------------

    @property
    def _wants_senders(self) -> bool:
        """Whether anybody but the other end wants messages with their sender."""
        return self.context.senders > self.asked_for_senders

    @property
    def is_told(self) -> bool:
        """Whether the other end was told all that is wanted of it."""
        return not self.has_changes and self._told_senders is self._wants_senders

    @property
    def lag(self) -> float:
        """For how many seconds the other end owes an answer; 0 if it does not."""
        return self.questions.lag

    @property
    def may_ask(self) -> bool:
        """Whether questions that wait may be asked, once all is told."""
        return self.is_told

    @property
    def has_more(self) -> bool:
        """Whether there is more to tell, now or when the other end has read."""
        return self.is_up and (not self.is_told or bool(self._to_ask and self.may_ask))

    def tell(self, most: int) -> int:
        """Tell up to ``most`` changes, as far as there is room, then ask what waited for that. Returns how many."""
        if not self.is_up:
            return 0
        wants = self._wants_senders
        if self._told_senders is not wants and self.room > 0:
            self._told_senders = wants
            self.outgoing.answer(encode_control(control.SENDERS_ON if wants else control.SENDERS_OFF))
        count = self.tell_changes(max(0, min(most, self.room)))

        if self.is_told:
            self.tell_complete()
        while self._to_ask and self.room > 0 and self.may_ask:
            self.ask_now(self._to_ask.popleft())
        return count
