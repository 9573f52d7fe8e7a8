"""The hubs below, as a hub knows them: their relays are clients that said ``interest/on``.

A link is told which patterns all others want or, if its user must not learn that, which of its keys nobody wants. It
may name only senders below its own credential key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import Final

from ..core.client_role import ClientRole
from ..core.protocols import Routes
from ..core.publisher import Publisher
from ..errors import PacketError, ReservedKeyError
from ..reasons import Reason
from ..secrets import Credentials
from ..wire import control
from ..wire.packets import MSG, Control, Packet, Subscribe, Unsubscribe, encode_control
from .hub_link import ForgedError, Link, Mode, Voucher
from .interest import PAGE, Reader
from .link_losses import LinkLosses
from .narrowing import Narrowed
from .place import Place
from .pruning import KeyTable

__all__ = ["PRUNES_PER_SECOND", "LinkBelow"]

PRUNES_PER_SECOND: Final = 8_192
"""Most keys in a second that a link is told not to send, so that endless new keys cost little."""

SHARED: Final = 4
"""Changes that were worked out for all links, and cost as much as one for this link."""

_UNANSWERED: Final = 64
"""Questions that a link which lags may leave unanswered, before it is asked no more."""


class LinkBelow(Link):
    """The role of the relay of a hub below."""

    def __init__(self, place: Place, publisher: Publisher, mode: Mode) -> None:
        outgoing = publisher.outgoing
        uid, pid = outgoing.credentials.uid, outgoing.credentials.pid
        super().__init__(place, publisher, outgoing, f"the relay {pid} of user {uid}")
        self.mode = mode
        self.trusted = mode == "announce"  # others may delay nobody
        self.losses = LinkLosses(self.context, lambda lost: place.pass_notice(lost, outgoing))
        """Losses on the way up that a trusted link reported."""
        self.told_all = False
        """Whether it has told all that is wanted below it."""
        self.pruned = KeyTable(self.context.limits.pruned_keys) if mode == "prune" else None
        """Keys that it was told not to send."""
        self.narrowed = Narrowed(self.context, outgoing)
        """What it asked for and may read only parts of."""
        self._tuples: dict[Routes, Routes] = {}  # its receivers, each tuple once
        self._old_key = self._key = outgoing.key  # its key under the hub's last prefix, and under that of now
        self._grafts: deque[bytes] = deque()  # keys that it has to be told to send again
        self._told_links = 0  # how many links it was told that there are
        self._prunes = float(self.context.limits.pruned_keys)  # keys that it may be told now not to send
        self._pruned_at = monotonic()  # when that was worked out
        self.reader: Reader | None = None
        """Which patterns it has still to be told, in mode ``announce``."""
        role = publisher.role
        assert isinstance(role, ClientRole)
        self._as_client = role  # acts on what the link says as any client does
        publisher.become(self)
        outgoing.become_link(publisher)
        if mode == "announce":
            self.reader = place.telling.announce_to(self)
        else:
            place.telling.prune(self)

    @property
    def asks(self) -> bool:
        """Whether ``authorize=`` is asked about its keys."""
        return self.context.authorization.is_asked

    def review(self, publisher: Publisher) -> Iterator[None]:
        """``authorize=`` has changed.

        The link is told to send all keys again that it was told not to send. It may no longer publish some of them, and
        must not learn later which of these are wanted.
        """
        if self.pruned is not None:
            for key in self.pruned.all_keys():
                self.graft(key)
            self.place.telling.wake(self.outgoing.account.uid)
        return self.narrowed.review()

    # -- what comes from the link -------------------------------------------------------------------

    def key_of(self, credentials: Credentials) -> bytes:
        """The credential key of the relay's process, as of any client."""
        return self.outgoing.key

    def look_up(self, publisher: Publisher, header: bytes, times: int) -> Routes:
        """The receivers of ``times`` messages of this link: all but the link itself."""
        try:
            receivers = self.receivers_of(header)
        except ReservedKeyError as error:
            self.drop(error.reason, times)
            return ()
        is_tap = self.context.router.is_tap
        wanted = self.pruned is None or any(not is_tap(receiver) for receiver in receivers)
        if wanted or self._prune(header[len(MSG) : -1]):
            if len(self._tuples) >= self.context.limits.cached_keys:
                self._tuples.clear()
            receivers = self._tuples.setdefault(receivers, receivers)
            self.remember(publisher, header, receivers)
        return receivers

    def note_dropped(self, reason: Reason, times: int) -> bool:
        return self.place.dropped.note(reason, self.outgoing.account.uid, times)

    def act_on(self, publisher: Publisher, packet: Packet) -> None:
        """Act on a packet as on that of a client, but give the link what it may read of what it asks for."""
        reserved = self.context.router.namespace.uses_reserved
        match packet:
            case Control(key=control.INTEREST_SYNC):
                token, _, scope = (packet.payload or b"").partition(b"\0")
                self.lagging = False
                self.questions.forget_before(token)  # a link that left one out is not waited for
                self.questions.answer(token, scope)
            case Control(key=control.NOTICE_LOST):
                self._note_lost(packet.payload or b"")
            case Control(key=control.INTEREST_COMPLETE):
                self.told_all = True
                self.place.settling.check()
            case Subscribe(pattern=pattern) if not reserved(pattern):
                self._subscribe(pattern)
                publisher.refresh()
            case Unsubscribe(pattern=pattern) if not reserved(pattern):
                self.context.ignored += not self.narrowed.unsubscribe(pattern)
                publisher.refresh()
            case _:
                self._as_client.act_on(publisher, packet)

    def _subscribe(self, pattern: bytes) -> None:
        """Hold a pattern for the link. Where that is one too many, everything is sent to it."""
        try:
            self.narrowed.subscribe(pattern)
        except PacketError as error:
            self.drop(error.reason)
            if error.reason is Reason.TOO_MANY_PATTERNS:
                self.say(encode_control(control.INTEREST_WIDEN))
                if not self.narrowed.holds(b""):
                    with suppress(PacketError):  # the link may read nothing at all
                        self.narrowed.subscribe(b"", anyway=True)

    def _note_lost(self, payload: bytes) -> None:
        """Note a loss below, which others are told. A link that is not trusted could make losses up."""
        if not self.trusted:
            raise PacketError(Reason.UNTRUSTED_LOSSES)
        try:
            notice = control.decode_notice(control.NOTICE_LOST, payload)
        except PacketError:
            notice = None
        if not isinstance(notice, control.Lost) or notice.cause not in control.UP_CAUSES:
            raise PacketError(Reason.STRANGE_NOTICE)
        room = control.MOST_LOST - self.losses.total[notice.cause]  # whoever reads the count reads 64 bits
        self.losses.note(notice.cause, min(notice.count, room), notice.since)

    def vouch(self, name: bytes) -> Voucher:
        namespace = self.context.router.namespace
        # Packets that were sent before our own prefix changed name the link by its old key.
        above = self._key if name.startswith(self._key + namespace.separator) else self._old_key
        if not namespace.is_below(name, above):
            raise ForgedError(Reason.FORGED_SENDER)
        outgoing = self.outgoing
        return Voucher(lambda: outgoing.key, outgoing.credentials, name[len(above) :])

    def prefix_changed(self) -> None:
        """This hub's own prefix changed."""
        self._old_key, self._key = self._key, self.outgoing.key
        self._vouchers.clear()

    def violated(self, publisher: Publisher, reason: Reason) -> None:
        """The link forged a sender, or sent a packet that is too long."""
        self.context.members.kick(publisher.outgoing, reason)

    def ended(self, publisher: Publisher, why: str) -> None:
        """The link has ended."""
        self.context.members.close(publisher.outgoing, why)

    # -- keys that nobody wants ---------------------------------------------------------------------

    def _prune(self, key: bytes) -> bool:
        """Tell the link not to send a key; ``False`` when that has to wait."""
        if key.startswith(self.context.router.namespace.start):
            return True
        assert self.pruned is not None
        if key in self.pruned:
            return True

        # 1. Not more keys in a second than the link may be told.
        now = monotonic()
        most = float(self.context.limits.pruned_keys)
        self._prunes = min(most, self._prunes + (now - self._pruned_at) * PRUNES_PER_SECOND)
        self._pruned_at = now
        if self._prunes < 1 or self.room <= 0:
            return False
        self._prunes -= 1

        # 2. The oldest keys make room.
        pruning = self.place.telling.pruning
        pruning.add(key, self)
        forgotten = self.pruned.add(key)
        self.say(encode_control(control.INTEREST_PRUNE, key))
        for oldest in forgotten:
            pruning.discard(oldest, self)
            self._tell_graft(oldest)
        return True

    def _tell_graft(self, key: bytes) -> None:
        self.publisher.forget_route(b"MSG %b\0" % key)
        self.say(encode_control(control.INTEREST_GRAFT, key))

    def graft(self, key: bytes) -> None:
        """Somebody may want a pruned key again: tell the link to send it, as soon as there is room."""
        assert self.pruned is not None
        if self.pruned.discard(key):
            self.place.telling.pruning.discard(key, self)
            self._grafts.append(key)
            self.place.telling.mark([self])  # whoever wants it wakes

    # -- what is told -------------------------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        return bool(self._grafts) if self.reader is None else not self.reader.is_told

    @property
    def may_ask(self) -> bool:
        return self.is_told and not (self.reader is None and self.place.telling.pruning.searches)

    def tell_changes(self, most: int) -> int:
        if self.reader is not None:
            news = self.reader.take_page() if most >= PAGE else None
            if news is not None:
                self.say(*news.packets)
                return len(news) // SHARED
            news = self.reader.take(most)
            self.say(*news.packets)
            return len(news) if self.reader.is_told else most
        count = min(most, len(self._grafts))
        for _ in range(count):
            self._tell_graft(self._grafts.popleft())
        return count

    def tell_links(self, count: int) -> None:
        """Tell a trusted link how many of them this hub has."""
        if count != self._told_links and self.room > 0:
            self._told_links = count
            self.say(encode_control(control.INTEREST_LINKS, b"%d" % count))

    # -- questions ----------------------------------------------------------------------------------

    @property
    def has_too_many_questions(self) -> bool:
        """A link that lags may never read: one question for it may wait. One that nobody waits for has one open."""
        lags = self.lagging and (self.questions.waiting or len(self.questions) >= _UNANSWERED)
        return bool(lags or (not self.trusted and len(self.questions)))

    def say_question(self, token: bytes) -> None:
        self.say(encode_control(control.INTEREST_SYNC, token))

    def note_overdue(self, token: bytes) -> None:
        """A question was not answered in time: until the link answers it, other questions do not wait for the link.

        If the question was not sent although the link had room, this hub is late, and not the link.
        """
        self.lagging = self.lagging or not (self.room > 0 and self.questions.take_back(token))
