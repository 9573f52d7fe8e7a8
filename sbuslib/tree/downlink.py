"""The relays of the hubs below, as a hub knows them: clients like any other that said ``interest/on``.

Such a client is told what everybody else wants or, where its user must not learn that, which of its keys nobody
wants. What it says of others is taken only as far as its own credentials reach. What it should not have said is dropped
and counted: a link with hundreds of clients behind it does not end for one packet, unless it forges a sender.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final, Literal, Protocol, TypeAlias

from ..core.batch_routing import take_batch
from ..core.client_role import ClientRole
from ..core.context import Context
from ..core.messages import Copied
from ..core.outgoing import Outgoing
from ..core.protocols import Holdable, Receiver, Routes
from ..core.router import CACHED_HEADER_BYTES
from ..core.turn import Turn
from ..errors import PacketError, ReservedKeyError
from ..limits import CONTROL_EXTRA, PACKET_BYTES
from ..matcher import is_literal
from ..secrets import Credentials
from ..wire import control
from ..wire.batches import BATCH
from ..wire.packets import MSG, Control, encode_control, parse
from .interest import Feed, Interest, KeyTable

__all__ = ["PRUNES_PER_SECOND", "SEARCHES", "VOUCHERS", "Link", "Mode", "Voucher"]

Mode: TypeAlias = Literal["announce", "prune", "plain"]

PRUNES_PER_SECOND: Final = 8_192
"""Keys that a link is told not to send, in a second: endless new keys must cost little."""

SEARCHES: Final = 64
"""New patterns for which the keys that a link was told not to send are searched one after the other. Where there are
more at a time, the link is told to send all of them again."""

VOUCHERS: Final = 4_096
"""Senders behind one link that are remembered: as many again are made anew."""


class Voucher:
    """Somebody behind a link, as the hub at its other end says. Implements :class:`~sbuslib.core.protocols.Sender`."""

    __slots__ = ("_rest", "_through", "credentials")

    def __init__(self, through: Callable[[], bytes], credentials: Credentials, rest: bytes) -> None:
        self._through = through
        self._rest = rest
        self.credentials = credentials
        """Of the link, which is all that the kernel vouches for."""

    @property
    def key(self) -> bytes:
        """Its credential key: the link's, which is the kernel's word, and what the link adds to it."""
        return self._through() + self._rest

    @property
    def wrapper(self) -> bytes:
        """What goes before its packets on the way to a receiver that asked for senders."""
        return control.wrapper_from(self.key)

    def holdable_by(self, receiver: Receiver) -> Holdable | None:
        """Nothing: a link is never held back, since others are behind it."""
        return None


class Standing(Protocol):
    """What a link asks of the tree that its hub stands in."""

    context: Context
    client_role: ClientRole
    dropped: Counter[str]
    has_settled: bool

    def wanted_above(self) -> list[bytes]:
        """The patterns that the hub above is taken to want."""
        ...

    def answered(self, token: bytes, who: object, partial: bool) -> None:
        """A hub beside this one answered a question."""
        ...

    def pass_notice(self, notice: control.Lost, origin: Outgoing | None) -> None:
        """Messages were lost between two hubs: tell everybody here who asked for notices, but the one it came from."""
        ...


class Link:
    """The relay of a hub below, on the hub above. Implements :class:`~sbuslib.core.turn.Role`."""

    is_link = True
    longest = PACKET_BYTES + CONTROL_EXTRA

    def __init__(self, tree: Standing, turn: Turn, mode: Mode) -> None:
        context = self._context = tree.context
        limits = context.limits
        self.asks = context.authorization.is_asked
        self.connection = connection = turn.outgoing
        self._turn = turn
        self.mode = mode
        self.lagging = False
        self.complete = False
        self.interest: Interest | None = None
        self.pruned: KeyTable | None = None
        self._tree = tree
        self._tuples: dict[Routes, Routes] = {}
        self._vouchers: dict[bytes, Voucher] = {}
        self._was = connection.key  # under the prefix before the last
        self._is = connection.key
        self._questions: deque[bytes] = deque()
        self._feed = Feed()
        self._lost: dict[str, tuple[int, float]] = {}
        self._telling = False
        self._told_senders = False
        self._sweeps: dict[int, deque[Iterator[bytes | None]]] = {}  # by the user whose patterns they are for
        self._account = connection.account
        self._prunes = float(limits.pruned_keys)
        self._pruned_at = monotonic()
        if mode == "announce":
            self.interest = Interest(self._context.router.namespace.separator, limits.link_patterns)
            others = [patterns for who, patterns in self._context.router.plain_patterns() if who is not connection]
            self._feed = Feed([tree.wanted_above(), *others])
        elif mode == "prune":
            self.pruned = KeyTable(limits.pruned_keys)
        turn.become(self)
        connection.become_link(turn.sender)

    # -- what comes from it -------------------------------------------------------------------------

    def key_of(self, credentials: Credentials) -> bytes:
        """As of any client: the kernel's word."""
        return self.connection.key

    def look_up(self, turn: Turn, header: bytes, times: int) -> Routes:
        """The receivers of ``times`` messages of this link's: everybody but the link itself."""
        router = self._context.router
        try:
            found = router.routes.get(header)
            if found is None:
                found = router.route(header)
        except ReservedKeyError as error:
            self.drop(error.reason, times)
            return ()
        connection, routes = self.connection, turn.routes
        found = tuple(receiver for receiver in found if receiver is not connection)
        known = self.pruned is None or any(not router.is_tap(receiver) for receiver in found)
        if not known:
            known = self._prune(header[len(MSG) : -1])
        if known and len(header) <= CACHED_HEADER_BYTES:
            if len(routes) >= self._context.limits.cached_keys:
                routes.clear()
                self._tuples.clear()
            found = routes[header] = self._tuples.setdefault(found, found)
        return found

    def drop(self, reason: str, times: int = 1) -> None:
        """Count what this link should not have sent, a packet or so many messages; what it asked for is not done."""
        self._tree.dropped[reason] += times

    def command(self, turn: Turn, data: bytes) -> None:
        """Act on a packet that is no message. Raises :exc:`~sbuslib.errors.PacketError` for a forgery alone."""
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
                    self.lagging = False
                    self._tree.answered(token, self, scope != b"tree")
                    return
                case control.NOTICE_LOST:
                    self._note_lost(packet.payload or b"")
                    return
        try:
            self._tree.client_role.act_on(turn, packet)
        except PacketError as error:
            self.drop(error.reason)
            if error.reason == "too many patterns":
                self.connection.answer(encode_control(control.INTEREST_WIDEN))
                context, connection = self._context, self.connection
                is_allowed = context.authorization.allows(connection.credentials, "subscribe", b"")
                if is_allowed and not connection.closed:
                    context.router.subscribe_anyway(b"", connection, connection.account)

    def _note_lost(self, payload: bytes) -> None:
        """Pass on what was lost below, at most once in a while: one packet of the link's is many to others."""
        try:
            notice = control.decode_notice(control.NOTICE_LOST, payload)
        except PacketError:
            notice = None
        if not isinstance(notice, control.Lost) or notice.cause not in control.LINK_CAUSES:
            self.drop("notice that no link gives")
            return
        count, since = self._lost.get(notice.cause, (0, notice.since))
        self._lost[notice.cause] = count + notice.count, min(since, notice.since)
        if not self._telling:
            self._tell_lost()

    def _tell_lost(self) -> None:
        self._telling = bool(self._lost)
        if not self._telling or self.connection.closed:
            return
        lost, self._lost = self._lost, {}
        for cause, (count, since) in lost.items():
            self._tree.pass_notice(control.Lost(cause, count, since), self.connection)
        self._context.after(self._context.limits.link_notices, self._tell_lost)

    def _take_wrapped(self, payload: bytes) -> None:
        try:
            sender, packet = control.unwrap_from(payload)
        except PacketError as error:
            self.drop(error.reason)
            return
        if packet.startswith(BATCH) and self.connection.takes_batches:
            take_batch(self._turn, packet, self._voucher(sender), control.wrapper_from(sender))
            return
        header = packet[: packet.find(b"\0") + 1]
        if not header.startswith(MSG) or len(packet) > PACKET_BYTES:
            self.drop("wrapped packet is no message")
            return
        turn, voucher = self._turn, self._voucher(sender)
        if turn.knows_allowed(header) or turn.may_publish(header):
            turn.deliver(turn.look_up(header), voucher, Copied(self._context.writer, [packet]))

    def _voucher(self, sender: bytes) -> Voucher:
        voucher = self._vouchers.get(sender)
        if voucher is None:
            namespace = self._context.router.namespace
            # What was under way when our own prefix changed names the link by its old key.
            above = self._is if sender.startswith(self._is + namespace.separator) else self._was
            if not namespace.is_below(sender, above):
                raise PacketError("forged sender")
            if len(self._vouchers) >= VOUCHERS:
                self._vouchers.clear()
            connection = self.connection
            rest = sender[len(above) :]
            voucher = self._vouchers[sender] = Voucher(lambda: connection.key, connection.credentials, rest)
        return voucher

    def prefix_changed(self) -> None:
        """This hub's own prefix changed."""
        self._was, self._is = self._is, self.connection.key
        self._vouchers.clear()

    def violated(self, turn: Turn, reason: str) -> None:
        """It forged a sender, or sent a packet that is too long."""
        self._context.members.kick(turn.outgoing, reason)

    def ended(self, turn: Turn, why: str) -> None:
        """It has gone."""
        self._context.members.close(turn.outgoing, why)

    def after_turn(self, turn: Turn) -> None:
        """Nothing was put off."""

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
        if self._prunes < 1 or self._room() <= 0:
            return False
        self._prunes -= 1
        forgotten = self.pruned.add(key)
        self.connection.answer(encode_control(control.INTEREST_PRUNE, key))
        for oldest in forgotten:
            self._tell_graft(oldest)
        return True

    def _tell_graft(self, key: bytes) -> None:
        self._turn.forget_route(b"MSG %b\0" % key)
        self.connection.answer(encode_control(control.INTEREST_GRAFT, key))

    def watch(self, pattern: bytes, wanted: bool, user: int) -> None:
        """Another user, or the hub above, began (``True``) or ceased to want a pattern."""
        if self.interest is None:
            if wanted:
                self._graft_for(pattern, user)
        elif wanted:
            self.interest.add(pattern, user)
        else:
            self.interest.remove(pattern, user)

    def _graft_for(self, pattern: bytes, user: int) -> None:
        """Have the link send what a pattern matches of the keys that it was told not to send."""
        if not self.pruned:
            return
        separator = self._context.router.namespace.separator
        if is_literal(pattern, separator):
            if pattern not in self.pruned:
                return
            found: Iterator[bytes | None] = iter([pattern])
        else:
            found = self.pruned.matched(pattern, separator)
        self._sweeps.setdefault(user, deque()).append(found)
        if sum(map(len, self._sweeps.values())) > SEARCHES:
            # Forgetting all of them costs less than finding out which, and loses no message.
            most = max(self._sweeps, key=lambda one: len(self._sweeps[one]))
            self._sweeps = {most: deque([self.pruned.matched(b"", separator)])}

    # -- what is told -------------------------------------------------------------------------------

    def ask(self, token: bytes) -> None:
        """Ask for an answer once all that it was told is in force below."""
        self._questions.append(token)

    def _room(self) -> int:
        """How many more answers may wait for the link before it would be let go for it."""
        return self._context.limits.queued_answers // 2 - self.connection.answers

    @property
    def is_told(self) -> bool:
        """Whether the link was told all that others want: jobs that are left only reduce what it was told of."""
        if self._feed or self._told_senders is not bool(self._context.senders):
            return False
        return not self._sweeps if self.interest is None else self.interest.is_told

    @property
    def is_full(self) -> bool:
        """Whether there is more to tell, for which the link has to read first."""
        return self._room() <= 0 and not (self.is_told and not self._questions)

    def pump(self, steps: int, user: int) -> bool:
        """Do up to ``steps`` steps of a user's jobs, and tell what has changed; whether the user has more to do."""
        if self.connection.closed:
            return False
        self._tell_senders()
        interest = self.interest
        more = self._announce(interest, steps, user) if interest is not None else self._graft(steps, user)
        if self.is_told:
            self._tell_told()
        return more

    def _tell_senders(self) -> None:
        senders = bool(self._context.senders)
        if self._told_senders is not senders and self._room() > 0:
            self._told_senders = senders
            self.connection.answer(encode_control(control.SENDERS_ON if senders else control.SENDERS_OFF))

    def _announce(self, interest: Interest, steps: int, user: int) -> bool:
        """Tell which patterns are wanted; whether this user has more to do for it."""
        if user == self._account.uid:
            for pattern in self._feed.take(steps):
                interest.add(pattern, user)
        more = interest.work(steps, user)
        for added, pattern in interest.take(max(0, self._room())):
            self.connection.answer(encode_control(control.INTEREST_ADD if added else control.INTEREST_REMOVE, pattern))
        return more or (user == self._account.uid and bool(self._feed))

    def _graft(self, steps: int, user: int) -> bool:
        """Tell which keys are wanted again, of those that the link was told not to send; whether the user has more."""
        assert self.pruned is not None
        while (sweeps := self._sweeps.get(user)) and steps > 0 and self._room() > 0:
            steps -= 1
            try:
                key = next(sweeps[0])
            except StopIteration:
                sweeps.popleft()
                if not sweeps:
                    del self._sweeps[user]
                continue
            if key is not None and self.pruned.discard(key):
                self._tell_graft(key)
        return user in self._sweeps and self._room() > 0

    def _tell_told(self) -> None:
        """All is told: say so where that was asked."""
        if not self.complete and self._tree.has_settled:
            self.complete = True
            self.connection.answer(encode_control(control.INTEREST_COMPLETE))
        while self._questions and self._room() > 0:
            self.connection.answer(encode_control(control.INTEREST_SYNC, self._questions.popleft()))
