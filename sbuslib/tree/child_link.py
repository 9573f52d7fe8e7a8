"""Links to child hubs: their relays are clients that have sent ``interest/on``. The relay's user decides on the mode.

- *announce*, of a trusted user: all patterns of others are announced to it, and syncs wait for it.
- *prune*, of a user who may run relays: it must not learn patterns. It sends everything up, and keys of its
  messages that nobody wants are pruned. No sync waits for it.
- *plain*, of anybody else (:class:`PlainLink`): a client like any other, except that it names the senders behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from time import monotonic
from typing import Final

from ..core.client_role import ClientRole
from ..core.protocols import Routes
from ..core.publisher import Publisher
from ..errors import PacketError
from ..limits import CONTROL_EXTRA, PACKET_BYTES
from ..reasons import Reason
from ..secrets import Credentials
from ..wire import control, presence
from ..wire.packets import MSG, Control, Packet, Subscribe, Unsubscribe, encode_control, parse
from .interest import Changes
from .link import Link, Mode
from .link_context import LinkContext
from .pruning import PRUNED_BYTES, PrunedKeys
from .remote_senders import ChildSenders, RemoteSender, take_wrapped

PRUNES_A_SECOND: Final = 8_192
"""Most keys that are pruned on a link in a second, so that endless new keys cost little."""

_UNANSWERED = 64
"""Questions that a lagging link may leave unanswered before it is asked no more."""


class ChildLink(Link):
    """The role of the relay of a child, in mode *announce* or *prune*.

    :param behind: the senders behind the link.
    :param hub: identifies the child hub, the same over successive links.
    :param words: the words of :data:`~sbuslib.wire.control.BETWEEN_HUBS` that the child knows.
    """

    def __init__(
        self,
        link_context: LinkContext,
        publisher: Publisher,
        mode: Mode,
        behind: ChildSenders,
        hub: Hashable,
        words: frozenset[bytes],
    ) -> None:
        outbound = publisher.outbound
        super().__init__(link_context, publisher, outbound, "")
        self.mode = mode
        self.trusted = mode == "announce"  # others could delay everybody, and learn of other users' keys
        self.synced = False
        """Whether it has announced all the interest of the hubs below it."""
        self.lost: Counter[str] = Counter()
        """Messages lost on their way up that a trusted link reported, by cause."""
        self._behind = behind  # those who send over it
        self._narrowed = False  # whether it gets less than it asked for
        self._all: list[bytes] = []  # once it wanted too many patterns, in their place: all it may read, until it ends
        role = publisher.role
        assert isinstance(role, ClientRole)
        self._as_client = role  # acts on what the link says as any client does

        # From here on it is no client any more.
        publisher.become(self)
        outbound.become_link(publisher)
        publisher.fan_outs.forget()  # it is in no group any more
        self._keys: PrunedKeys | None = None  # keys that were pruned on it
        if self.trusted:
            self.cursor = link_context.propagation.begin(self, control.INTEREST_PRESUMED in words)
        else:
            self.cursor = self._keys = link_context.propagation.begin_pruned(self)
        self._prunes = 0  # how many were pruned in this second
        self._second = 0.0  # when that began, by the monotonic clock
        self._hub = hub  # the child hub's identity
        self.dropped = Counter[str]()
        """Packets of this link that had no effect, by reason."""
        self._names_presences = presence.PRESENCE_NAMED in words  # whether it knows presences by name

    @property
    def asks(self) -> bool:
        """Whether ``authorize=`` is asked about its keys."""
        return self.context.authorization.is_asked

    # -- what comes from the link -------------------------------------------------------------------

    def key_of(self, credentials: Credentials) -> bytes:
        """The unknown sender behind it, for messages whose sender the child does not name."""
        return self._behind.unknown

    def note_dropped(self, reason: Reason, times: int) -> bool:
        self.dropped[reason] += times
        return self.link_context.dropped.note(reason, self.outbound.account.uid, times)

    def act_on(self, publisher: Publisher, packet: Packet) -> None:
        """Act on a packet as on a client's, but narrow its subscriptions to keys that the link may read."""
        namespace = self.context.router.namespace
        match packet:
            case Control(key=control.INTEREST_SYNC):
                token, _, scope = (packet.payload or b"").partition(b"\0")
                self.lagging = False
                self.questions.forget_before(token)  # answers come in order: earlier ones will not come
                self.questions.answer(token, scope)
            case Control(key=control.INTEREST_LOST):
                self._take_reports(packet.payload or b"")
            case Control(key=control.INTEREST_COMPLETE):
                self.synced = True
                self.link_context.startup_barrier.check()
            case Subscribe(pattern=pattern) if not namespace.uses_reserved(namespace.unmark(pattern)[1]):
                self._subscribe(pattern)
                publisher.refresh()
            case Unsubscribe(pattern=pattern) if not namespace.uses_reserved(namespace.unmark(pattern)[1]):
                self._unsubscribe(pattern)
                publisher.refresh()
            case Control(key=presence.PRESENCE_BEGIN, payload=payload):
                self._begin_presences()
                self._take_presence(packet.key, payload or b"")
            case Control(key=key, payload=payload) if self._take_presence(key, payload or b""):
                pass
            case _:
                self._as_client.act_on(publisher, packet)

    def _begin_presences(self) -> None:
        """Begin presences: the child will announce its own, and wants those of others."""
        if self.presence_cursor is None:
            presences, account = self.link_context.presences, self.outbound.account
            self.presence_cursor = presences.begin_link(
                self.receiver,
                self._hub,
                self._hub,
                account,
                self.outbound.credentials.uid,
                self._may_know,
                named=self._names_presences,
                trusted=self.trusted,
            )
            self.say(presences.greeting)
            self.mark()

    def may_be_present(self, key: bytes) -> bool:
        return self.context.authorization.allows(self.outbound.account, self.outbound.credentials, "publish", key)

    def _may_know(self, key: bytes) -> bool:
        """Whether the user of this link may know who is present under a key."""
        return self.trusted or self.context.authorization.allows(
            self.outbound.account, self.outbound.credentials, "subscribe", key
        )

    # -- permission to read -------------------------------------------------------------------------

    def _narrow(self, pattern: bytes) -> list[bytes]:
        """Return what the link may subscribe to in place of a pattern: itself, or the parts that its user may read.

        A child subscribes for all of its clients, and one of them may ask for everything. Subscriptions are
        counted, so the common part of several patterns stays until each of them has ended.
        """
        outbound = self.outbound
        mark, raw = self.context.router.namespace.unmark(pattern)
        parts = self.context.authorization.narrow(outbound.account, outbound.credentials, raw)
        return [mark + part for part in parts] if mark else parts

    def _subscribe(self, pattern: bytes) -> None:
        """Subscribe the link to a pattern. If that is one too many, it is sent everything instead."""
        router, outbound, account = self.context.router, self.outbound, self.outbound.account
        router.check_size(router.namespace.unmark(pattern)[1])
        parts = self._narrow(pattern)
        if outbound.closed or self._all:
            return  # authorize= had it closed, or it gets all already
        self._narrowed = self._narrowed or parts != [pattern]
        if not parts:
            raise PacketError(Reason.SUBSCRIPTION_REFUSED)

        # Beyond its quota, it is sent everything that it may read, and drops what its hub does not want.
        try:
            for part in parts:
                router.subscribe(router.cut_marked(part), outbound, outbound.credentials, account)
        except PacketError as error:
            self.drop(error.reason)
            self.say(encode_control(control.INTEREST_WIDEN))
            self._all = self._narrow(router.namespace.presumption)
            for part in self._all:
                router.subscribe_anyway(part, outbound, account)

    def _unsubscribe(self, pattern: bytes) -> None:
        router, outbound = self.context.router, self.outbound
        parts = [pattern]
        if self._narrowed and not self._all and not router.times(pattern, outbound):
            router.check_size(router.namespace.unmark(pattern)[1])
            parts = self._narrow(pattern)
        taken = [router.unsubscribe(part, outbound, outbound.account) for part in parts if part not in self._all]
        self.context.counts.ignored += not any(taken)

    def review(self, publisher: Publisher) -> Iterator[None]:
        """Apply a changed ``authorize=``: a link that may read something else now has to join and subscribe again.

        All its pruned keys are grafted: it may no longer publish some, and must not learn which of these are wanted.
        """
        if self._keys is not None:
            self._keys.graft_all()
            self.mark()
        if self.presence_cursor is not None:
            yield from self.link_context.presences.review_link(self.receiver, self.may_be_present)
            self.mark()
        for pattern in self.context.router.plain_patterns_of(self.outbound):
            yield
            self._narrowed = self._narrowed or self._narrow(pattern) != [pattern]
        if self._narrowed and not self.outbound.closed:
            self.link_context.clients.kick(self.outbound, Reason.JOIN_ANEW)

    # -- keys that nobody wants ---------------------------------------------------------------------

    @property
    def pruned(self) -> int:
        """Number of keys that are pruned on it."""
        return len(self._keys.keys) if self._keys is not None else 0

    def look_up(self, publisher: Publisher, header: bytes, times: int) -> Routes:
        receivers = super().look_up(publisher, header, times)
        if self._keys is not None and not self._prune(self._keys, header[len(MSG) : -1]):
            publisher.routes.pop(header, None)  # the next message asks again
        return receivers

    def _prune(self, keys: PrunedKeys, key: bytes) -> bool:
        """Prune a key if nobody else wants it; ``False``: not now, try again with the next message."""
        router, now = self.context.router, monotonic()
        if key in keys.keys or len(key) > PRUNED_BYTES or router.namespace.uses_reserved(key):
            return True
        if router.is_received(key, self.receiver):
            return True

        # 1. Not more keys in a second than may be pruned.
        if now - self._second >= 1:
            self._second, self._prunes = now, 0
        if self._prunes >= PRUNES_A_SECOND or self.room <= 0:
            return False
        self._prunes += 1

        # 2. The oldest key makes room.
        self.say(encode_control(control.INTEREST_PRUNE, key))
        oldest = keys.add(key)
        if oldest is not None:
            self.publisher.routes.pop(b"%b%b\0" % (MSG, oldest), None)
            self.say(encode_control(control.INTEREST_GRAFT, oldest))
        return True

    # -- reports about others -----------------------------------------------------------------------

    def _take_reports(self, payload: bytes) -> None:
        """Note reported losses below, to pass them on. A link that is not trusted could invent them."""
        if not self.trusted:
            raise PacketError(Reason.UNTRUSTED_LOSSES)
        for report in control.decode_loss_reports(payload):
            news = self.link_context.loss_reports.take(report, self.receiver)
            if news is not None:
                self._count(news.cause, news.certain)
                self._count(control.UNCERTAIN, news.uncertain)

    def _count(self, cause: str, count: int) -> None:
        self.lost[cause] = min(self.lost[cause] + count, control.MOST_LOST)  # readers take 64 bits

    def remote_sender(self, name: bytes) -> RemoteSender:
        return self._behind.remote_sender(name)

    def violated(self, publisher: Publisher, reason: Reason) -> None:
        """The link forged a sender, or sent a packet that is too long."""
        self.link_context.clients.kick(publisher.outbound, reason)

    def ended(self, publisher: Publisher, why: str) -> None:
        """The link has ended."""
        self.link_context.clients.close(publisher.outbound, why)

    def forget(self, publisher: Publisher) -> None:
        self._as_client.forget(publisher)

    # -- answers ------------------------------------------------------------------------------------

    def encode(self, changes: Changes) -> list[bytes]:
        if self._keys is not None:
            return [encode_control(control.INTEREST_GRAFT, key) for _, key in changes]
        return self.link_context.propagation.interest.encode(changes)

    # -- questions ----------------------------------------------------------------------------------

    def announce(self, most: int) -> tuple[int, bool]:
        told = super().announce(most)
        while self.questions.waiting and not self.trusted and self.room <= 0:  # nobody waits until it reads
            self.say_question(self.questions.ask())
        return told

    @property
    def has_too_many_questions(self) -> bool:
        """A lagging link may never read: at most one question waits for it."""
        if not self.trusted:
            return self.room <= 0
        return self.lagging and bool(self.questions.waiting or len(self.questions) >= _UNANSWERED)

    def say_question(self, token: bytes) -> None:
        if self.trusted:
            self.say(encode_control(control.INTEREST_SYNC, token))
        else:
            self.questions.answer(token, control.SCOPE_TREE)  # it sends up all but pruned keys anyway

    def note_overdue(self, token: bytes) -> None:
        """A question was not answered in time: until the link answers it, other questions do not wait for the link.

        If the question was not sent although the link had room, this hub is late, and not the link.
        """
        is_late = not (self.room > 0 and self.questions.take_back(token))
        self.lagging = self.lagging or (is_late and self.trusted)


class PlainLink(ClientRole):
    """The role of a relay that is served like any client, except that its messages are from the clients behind it."""

    is_relay = True
    longest = PACKET_BYTES + CONTROL_EXTRA

    def __init__(self, publisher: Publisher, behind: ChildSenders) -> None:
        role = publisher.role
        assert isinstance(role, ClientRole)
        super().__init__(*role.parts)
        self._publisher = publisher
        self._behind = behind  # those who send over it
        self._last: tuple[bytes, RemoteSender] | None = None  # by name; only one, as no user is charged for its memory
        publisher.become(self)

    def key_of(self, credentials: Credentials) -> bytes:
        return self._behind.unknown

    def look_up(self, publisher: Publisher, header: bytes, times: int) -> Routes:
        # Remembered only by the router: a user may have any number of these relays.
        router = self._context.router
        found = router.routes.get(header)
        if found is None:
            found = router.route(header)
        return tuple(receiver for receiver in found if receiver is not publisher.outbound)

    def command(self, publisher: Publisher, packet: bytes) -> None:
        parsed = parse(packet)
        if isinstance(parsed, Control) and parsed.key == control.FROM:
            take_wrapped(publisher, parsed.payload or b"", self._sender_of)
        else:
            self.act_on(publisher, parsed)

    def _sender_of(self, name: bytes) -> RemoteSender:
        if self._last is None or self._last[0] != name:
            self._last = name, self._behind.remote_sender(name, self._publisher)
        return self._last[1]
