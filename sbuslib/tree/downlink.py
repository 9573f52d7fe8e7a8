"""The hubs below, as a hub knows them: their relays are clients that said ``interest/on``.

A link is told which patterns all others want or, if its user must not learn that, which of its keys nobody wants. It
may name only senders below its own credential key. A wrong packet is dropped and counted: a link with hundreds of
clients behind it does not end for one packet, unless it forges a sender.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import Final, Literal, Protocol, TypeAlias

from ..core.batch_routing import take_batch
from ..core.callbacks import log
from ..core.client_role import ClientRole
from ..core.context import Context
from ..core.messages import Copied
from ..core.protocols import Receiver, Routes
from ..core.publisher import Publisher
from ..core.quotas import Account
from ..core.violations import Violations
from ..errors import PacketError, ReservedKeyError
from ..limits import CONTROL_EXTRA, PACKET_BYTES
from ..secrets import Credentials
from ..wire import control
from ..wire.batches import BATCH
from ..wire.packets import MSG, Control, Packet, Subscribe, Unsubscribe, encode_control, parse
from .interest import Reader
from .link_routes import receivers_of, remember
from .losses import LinkLosses
from .narrowing import Narrowed
from .pruning import KeyTable
from .telling import Telling
from .vouchers import Voucher, Vouchers

__all__ = ["PRUNES_PER_SECOND", "Link", "Mode"]

Mode: TypeAlias = Literal["announce", "prune", "plain"]

PRUNES_PER_SECOND: Final = 8_192
"""Most keys in a second that a link is told not to send, so that endless new keys cost little."""


_UNANSWERED: Final = 64
"""Questions of which a hub remembers when they were asked. The oldest tells how far the link lags."""


class HubTree(Protocol):
    """What a link asks of the tree that its hub belongs to."""

    context: Context
    client_role: ClientRole
    dropped: Violations
    telling: Telling

    def wake(self, account: Account) -> None:
        """A user has changed something of which the links have to be told, in later turns."""

    @property
    def has_settled(self) -> bool:
        """Whether this hub knows what is wanted."""

    def told_all(self) -> None:
        """A link has told all that is wanted below it."""

    def answered(self, token: bytes, who: object, scope: bytes) -> None:
        """A hub below or above answered a question."""

    def pass_notice(self, notice: control.Lost | control.Away, origin: Receiver | None) -> None:
        """Messages were lost between two hubs: tell the clients and hubs that asked for notices, but not ``origin``."""


class Link:
    """The role of the relay of a hub below. Implements :class:`~sbuslib.core.publisher.Role`."""

    is_link = True
    longest = PACKET_BYTES + CONTROL_EXTRA

    def __init__(self, tree: HubTree, publisher: Publisher, mode: Mode) -> None:
        context = self._context = tree.context
        limits = context.limits
        self.connection = connection = publisher.outgoing
        self._publisher = publisher
        self.mode = mode
        self.trusted = mode == "announce"
        self.losses = LinkLosses(context, lambda lost: tree.pass_notice(lost, self.connection))
        """Losses on the way up that a trusted link reported."""
        self.lagging = False
        self.complete = False
        self.reader: Reader | None = None
        self.told_all = False
        """Whether it has told all that is wanted below it."""
        self.pruned: KeyTable | None = None
        self._tree = tree
        self._tuples: dict[Routes, Routes] = {}
        self.narrowed = Narrowed(context, connection)
        """What the link asked for and may read only parts of."""
        self._vouchers = Vouchers(self._vouch)
        self._old_key = connection.key  # its key under the hub's last prefix
        self._key = connection.key
        self._questions: deque[bytes] = deque()  # asked once the link is told all
        self._unanswered: dict[bytes, float] = {}  # questions, and when they were to be asked
        self._to_log: list[str] = []
        self._told_senders = False
        self._grafts: deque[bytes] = deque()
        self._told_links = 0
        self._prunes = float(limits.pruned_keys)
        self._pruned_at = monotonic()
        if mode == "prune":
            self.pruned = KeyTable(limits.pruned_keys)
        publisher.become(self)
        connection.become_link(publisher.sender)

    @property
    def asks(self) -> bool:
        """Whether ``authorize=`` is asked about its keys."""
        return self._context.authorization.is_asked

    def review(self, publisher: Publisher) -> Iterator[None]:
        """``authorize=`` has changed.

        The link is told to send all keys again that it was told not to send. It may no longer publish some of them, and
        must not learn later which of these are wanted.
        """
        if self.pruned is not None:
            keys = self.pruned.keys()
            for key in keys:
                self.graft(key)
            self._tree.wake(self.connection.account)
        return self.narrowed.review()

    # -- what comes from the link -------------------------------------------------------------------

    def key_of(self, credentials: Credentials) -> bytes:
        """The credential key of the relay's process, as of any client."""
        return self.connection.key

    def look_up(self, publisher: Publisher, header: bytes, times: int) -> Routes:
        """The receivers of ``times`` messages of this link: all but the link itself."""
        context = self._context
        try:
            found = receivers_of(context, header, self.connection)
        except ReservedKeyError as error:
            self.drop(error.reason, times)
            return ()
        known = self.pruned is None or any(not context.router.is_tap(receiver) for receiver in found)
        if known or self._prune(header[len(MSG) : -1]):
            if len(self._tuples) >= context.limits.cached_keys:
                self._tuples.clear()
            found = self._tuples.setdefault(found, found)
            remember(context, publisher.routes, header, found)
        return found

    def drop(self, reason: str, times: int = 1) -> None:
        """Count wrong packets or messages of this link, which have no effect. The first is logged after the turn."""
        if self._tree.dropped.note(reason, self.connection.account.uid, times):
            self._to_log.append(reason)

    def command(self, publisher: Publisher, data: bytes) -> None:
        """Act on a packet that is no message. Raises :exc:`~sbuslib.errors.PacketError` only for a forged sender."""
        try:
            packet = parse(data)
        except PacketError as error:
            self.drop(error.reason)
            return
        if isinstance(packet, Control):
            match packet.key:
                case control.FROM:
                    self._take_wrapped(packet.payload or b"")
                    return
                case control.INTEREST_SYNC:
                    token, _, scope = (packet.payload or b"").partition(b"\0")
                    self._note_answer(token)
                    self._tree.answered(token, self, scope)
                    return
                case control.NOTICE_LOST:
                    self._note_lost(packet.payload or b"")
                    return
                case control.INTEREST_COMPLETE:
                    self.told_all = True
                    self._tree.told_all()
                    return
        try:
            self._act_on(publisher, packet)
        except PacketError as error:
            self.drop(error.reason)
            if error.reason == "too many patterns":
                self.connection.answer(encode_control(control.INTEREST_WIDEN))
                if not self.narrowed.holds(b""):
                    with suppress(PacketError):  # the link may read nothing at all
                        self.narrowed.subscribe(b"", anyway=True)

    def _act_on(self, publisher: Publisher, packet: Packet) -> None:
        """Act on a packet as on that of a client, but give the link what it may read of what it asks for."""
        reserved = self._context.router.namespace.uses_reserved
        if not isinstance(packet, (Subscribe, Unsubscribe)) or reserved(packet.pattern):
            self._tree.client_role.act_on(publisher, packet)
            return
        if isinstance(packet, Unsubscribe) and not self.narrowed.unsubscribe(packet.pattern):
            self._context.ignored += 1
        elif isinstance(packet, Subscribe):
            self.narrowed.subscribe(packet.pattern)
        publisher.refresh()

    def _note_lost(self, payload: bytes) -> None:
        """Pass on a notice of losses below, at most once in a while: each goes to many clients.

        A link that is not trusted could make losses up, so nobody is told.
        """
        if not self.trusted:
            self.drop("notice of losses by a link that is not trusted")
            return
        try:
            notice = control.decode_notice(control.NOTICE_LOST, payload)
        except PacketError:
            notice = None
        if not isinstance(notice, control.Lost) or notice.cause not in control.UP_CAUSES:
            self.drop("notice that no link gives")
            return
        room = control.MOST_LOST - self.losses.total[notice.cause]  # whoever reads the count reads 64 bits
        self.losses.note(notice.cause, min(notice.count, room), notice.since)

    def _take_wrapped(self, payload: bytes) -> None:
        try:
            sender, packet = control.unwrap_from(payload)
        except PacketError as error:
            self.drop(error.reason)
            return
        if packet.startswith(BATCH) and self.connection.takes_batches:
            take_batch(self._publisher, packet, self._vouchers.of(sender), control.wrapper_from(sender))
            return
        header = packet[: packet.find(b"\0") + 1]
        if not header.startswith(MSG) or len(packet) > PACKET_BYTES:
            self.drop("wrapped packet is no message")
            return
        publisher, voucher = self._publisher, self._vouchers.of(sender)
        if publisher.knows_allowed(header) or publisher.may_publish(header):
            publisher.deliver(publisher.look_up(header), voucher, Copied(self._context.writer, [packet]))

    def _vouch(self, sender: bytes) -> Voucher:
        namespace = self._context.router.namespace
        # Packets that were sent before our own prefix changed name the link by its old key.
        above = self._key if sender.startswith(self._key + namespace.separator) else self._old_key
        if not namespace.is_below(sender, above):
            raise PacketError("forged sender")
        connection = self.connection
        return Voucher(lambda: connection.key, connection.credentials, sender[len(above) :])

    def prefix_changed(self) -> None:
        """This hub's own prefix changed."""
        self._old_key, self._key = self._key, self.connection.key
        self._vouchers.clear()

    def violated(self, publisher: Publisher, reason: str) -> None:
        """The link forged a sender, or sent a packet that is too long."""
        self._context.members.kick(publisher.outgoing, reason)

    def ended(self, publisher: Publisher, why: str) -> None:
        """The link has ended."""
        self._context.members.close(publisher.outgoing, why)

    def after_turn(self, publisher: Publisher) -> None:
        """Log what was dropped for the first time."""
        while self._to_log:
            text = "sbus hub at %s dropped what the relay %d of user %d sent: %s (further ones are only counted)"
            who = self.connection.credentials
            log(logging.WARNING, text, self._context.address(), who.pid, who.uid, self._to_log.pop())

    # -- keys that nobody wants ---------------------------------------------------------------------

    def _prune(self, key: bytes) -> bool:
        """Tell the link not to send a key; ``False`` when that has to wait."""
        limits = self._context.limits
        if key.startswith(self._context.router.namespace.start):
            return True
        assert self.pruned is not None
        if key in self.pruned:
            return True
        now = monotonic()
        most = float(limits.pruned_keys)
        self._prunes = min(most, self._prunes + (now - self._pruned_at) * PRUNES_PER_SECOND)
        self._pruned_at = now
        if self._prunes < 1 or self.room <= 0:
            return False
        self._prunes -= 1
        pruning = self._tree.telling.pruning
        pruning.add(key, self)
        forgotten = self.pruned.add(key)
        self.connection.answer(encode_control(control.INTEREST_PRUNE, key))
        for oldest in forgotten:
            pruning.discard(oldest, self)
            self._tell_graft(oldest)
        return True

    def _tell_graft(self, key: bytes) -> None:
        self._publisher.forget_route(b"MSG %b\0" % key)
        self.connection.answer(encode_control(control.INTEREST_GRAFT, key))

    def graft(self, key: bytes) -> None:
        """Somebody may want a pruned key again: tell the link to send it, as soon as there is room."""
        assert self.pruned is not None
        if self.pruned.discard(key):
            self._tree.telling.pruning.discard(key, self)
            self._grafts.append(key)
            self._tree.telling.mark([self])

    # -- what is told -------------------------------------------------------------------------------

    def ask(self, token: bytes) -> None:
        """Ask the link for an answer once all that others want is in force below. It is told all of that first.

        A link that lags has at most one question that was not sent yet: it may never read. A link that nobody waits
        for has one question open.
        """
        if (self.lagging and self._questions) or (not self.trusted and self._unanswered):
            return
        if len(self._unanswered) < _UNANSWERED:
            self._unanswered[token] = monotonic()
        self._questions.append(token)
        self._tree.telling.mark([self])

    def _note_answer(self, token: bytes) -> None:
        """The link answered a question. Those before it are no longer counted on."""
        self.lagging = False
        if token in self._unanswered:
            asked = list(self._unanswered)
            for one in asked[: asked.index(token) + 1]:
                del self._unanswered[one]

    @property
    def lag(self) -> float:
        """For how many seconds the link owes an answer; 0 if it does not."""
        return monotonic() - next(iter(self._unanswered.values())) if self._unanswered else 0.0

    def note_overdue(self, token: bytes) -> None:
        """A question was not answered in time: until the link answers it, other questions do not wait for the link.

        If the question was not sent although the link had room, this hub is late, and not the link.
        """
        if token in self._questions and self.room > 0:
            self._questions.remove(token)
            self._unanswered.pop(token, None)
        else:
            self.lagging = True

    @property
    def room(self) -> int:
        """How many more answers may wait for the link. Half of the room is kept for answers to its questions."""
        return self._context.limits.queued_answers // 2 - self.connection.answers

    @property
    def _has_changes(self) -> bool:
        if self._told_senders is not self._wants_senders:
            return True
        return bool(self._grafts) if self.reader is None else not self.reader.is_told

    @property
    def is_told(self) -> bool:
        """Whether the link was told all that others want."""
        waits = self.reader is None and self._tree.telling.pruning.searches
        return not waits and not self._has_changes

    def tell_links(self, count: int) -> None:
        """Tell a trusted link how many of them this hub has."""
        if count != self._told_links and self.room > 0:
            self._told_links = count
            self.connection.answer(encode_control(control.INTEREST_LINKS, b"%d" % count))

    @property
    def has_more(self) -> bool:
        """Whether there is more to tell, now or when the link has read."""
        return not self.connection.closed and (self._has_changes or bool(self._questions and self.is_told))

    def tell(self, most: int) -> int:
        """Tell up to ``most`` changes, as far as there is room. Returns how many."""
        if self.connection.closed:
            return 0
        self._tell_senders()
        count = max(0, min(most, self.room))
        if self.reader is not None:
            changes = self.reader.take(count)
            if changes:
                self.connection.answer_all(control.encode_changes(changes))
        else:
            count = min(count, len(self._grafts))
            for _ in range(count):
                self._tell_graft(self._grafts.popleft())
        self._end_telling()
        return count

    @property
    def _wants_senders(self) -> bool:
        """Whether anybody but the link wants senders."""
        return self._context.senders > self.connection.wants_senders

    def _tell_senders(self) -> None:
        senders = self._wants_senders
        if self._told_senders is not senders and self.room > 0:
            self._told_senders = senders
            self.connection.answer(encode_control(control.SENDERS_ON if senders else control.SENDERS_OFF))

    def _end_telling(self) -> None:
        """If the link was told all, say so, and ask the questions that waited for that."""
        if not self.complete and self._tree.has_settled and self.is_told:
            self.complete = True
            self.connection.answer(encode_control(control.INTEREST_COMPLETE))
        while self._questions and self.room > 0 and self.is_told:
            self.connection.answer(encode_control(control.INTEREST_SYNC, self._questions.popleft()))
