"""A hub's place in a tree: the hubs below it, the one above, and what all of them have to know of each other.

Who owns what:

* :mod:`sbuslib.interest` decides, without I/O, which patterns a link has to hold.
* :class:`Link` is what a hub knows of one relay below: a client like any other that said ``interest/on``. It is told
  what everybody else wants or, where its user must not learn that, which of its keys nobody wants.
* :class:`Tree` is the rest: the prefix and who waits for it, the path to the root, questions that go round the
  whole tree. It feeds each change of what is wanted to all who have to hear of it.
* :class:`sbuslib.relay.Relay` joins the hub to the one above, and is known here as :class:`Above`.

Changes of interest are noted at once and told from a callback of the event loop, a bounded number in each round.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from . import control
from .errors import PacketError, ReservedKeyError, StateError
from .interest import Interest, KeyTable
from .limits import CONTROL_EXTRA, PACKET_BYTES
from .packets import MSG, Control, encode_control, parse
from .secrets import Credentials

if TYPE_CHECKING:
    from .connection import Connection
    from .delivery import Holdable, Receiver
    from .hub import Hub

__all__ = ["Above", "Link", "Tree", "Voucher"]

logger = logging.getLogger("sbuslib")

Mode: TypeAlias = Literal["announce", "prune", "plain"]
Snapshot: TypeAlias = "Iterator[tuple[Receiver, bytes]]"


class Voucher:
    """Somebody behind a link, as the hub at its other end says. Implements :class:`~sbuslib.delivery.Sender`."""

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


class Above(Protocol):
    """The relay of this hub, as the tree knows it."""

    settled: bool
    """Whether it has joined, or failed to: not in between."""

    def pump(self) -> bool:
        """Tell the hub above what has changed, some of it; whether there is more."""
        ...

    def watch(self, pattern: bytes, wanted: bool) -> None:
        """Somebody here began (``True``) or ceased to want a pattern."""
        ...

    def ask(self, token: bytes) -> bool:
        """Ask the hub above to sync the rest of the tree; ``False`` when it cannot be asked."""
        ...

    @property
    def stands_apart(self) -> bool:
        """Whether it found that this hub is above the one that it was to join."""
        ...

    def tell_senders(self) -> None:
        """Whether anybody here wants to know senders has changed."""
        ...

    def wanted_above(self) -> list[bytes]:
        """The patterns that the hub above is taken to want now."""
        ...

    def is_sending(self) -> bool:
        """Whether something waits that can still be sent."""
        ...

    def close(self) -> None:
        """End it."""
        ...

    def abandon(self) -> None:
        """In the child of a fork: end it without a word to anybody."""
        ...


class Link:
    """The relay of a hub below, on the hub above."""

    def __init__(self, tree: Tree, connection: Connection, mode: Mode) -> None:
        limits = tree.hub.limits
        self.connection = connection
        self.mode = mode
        self.is_lenient = mode != "plain"
        self.dropped: Counter[str] = Counter()
        self.lagging = False
        self.complete = False
        self.interest: Interest | None = None
        self.pruned: KeyTable | None = None
        self._tree = tree
        self._hub = tree.hub
        self._tuples: dict[tuple[Receiver, ...], tuple[Receiver, ...]] = {}
        self._vouchers: dict[bytes, Voucher] = {}
        self._was = connection.key  # under the prefix before the last
        self._is = connection.key
        self._questions: deque[bytes] = deque()
        self._snapshot: deque[tuple[Receiver, list[bytes]]] = deque()
        self._lost: dict[str, tuple[int, float]] = {}
        self._telling = False
        self._sweeps: deque[Iterator[bytes | None]] = deque()
        self._prunes = float(limits.pruned_keys)
        self._pruned_at = monotonic()
        if mode == "announce":
            self.interest = Interest(self._hub.router.namespace.separator, limits.link_patterns)
            self._snapshot.extend(pair for pair in self._hub.router.plain_patterns() if pair[0] is not connection)
            for pattern in tree.wanted_above():
                self.interest.add(pattern)
        elif mode == "prune":
            self.pruned = KeyTable(limits.pruned_keys, limits.pruned_bytes)

    # -- what comes from it -------------------------------------------------------------------------

    def look_up(self, header: bytes, routes: dict[bytes, tuple[Receiver, ...]]) -> tuple[Receiver, ...]:
        """The receivers of a message of this link's: everybody but the link itself."""
        router = self._hub.router
        try:
            found = router.routes.get(header)
            if found is None:
                found = router.route(header)
        except ReservedKeyError as error:
            if not self.is_lenient:
                raise
            self.dropped[error.reason] += 1
            return ()
        connection = self.connection
        found = tuple(receiver for receiver in found if receiver is not connection)
        known = self.pruned is None or any(not router.is_tap(receiver) for receiver in found)
        if not known:
            known = self._prune(header[len(MSG) : -1])
        if known and len(header) <= self._hub.limits.cached_key_bytes:
            if len(routes) >= self._hub.limits.cached_keys:
                routes.clear()
                self._tuples.clear()
            found = routes[header] = self._tuples.setdefault(found, found)
        return found

    def take(self, data: bytes) -> None:
        """Act on a packet that is no message. Raises :exc:`~sbuslib.errors.PacketError` for a forgery alone."""
        try:
            packet = parse(data)
        except PacketError as error:
            self.dropped[error.reason] += 1
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
            self.connection.act_on(packet)
        except PacketError as error:
            self.dropped[error.reason] += 1
            if error.reason == "too many patterns":
                self.connection.answer(encode_control(control.INTEREST_WIDEN))
                hub, connection = self._hub, self.connection
                if hub.authorize is None or hub.is_authorized(connection.credentials, "subscribe", b""):
                    hub.router.subscribe_anyway(b"", connection, connection.account)

    def _note_lost(self, payload: bytes) -> None:
        """Pass on what was lost below, at most once in a while: one packet of the link's is many to others."""
        try:
            notice = control.decode_notice(control.NOTICE_LOST, payload)
        except PacketError:
            notice = None
        if not isinstance(notice, control.Lost) or notice.cause not in control.LINK_CAUSES:
            self.dropped["notice that no link gives"] += 1
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
            self._tree.pass_notice(control.Lost(cause, count, since), self)
        self._tree.after(self._hub.limits.link_notices, self._tell_lost)

    def _take_wrapped(self, payload: bytes) -> None:
        try:
            sender, packet = control.unwrap_from(payload)
        except PacketError as error:
            self.dropped[error.reason] += 1
            return
        header = packet[: packet.find(b"\0") + 1]
        if not header.startswith(MSG) or len(packet) > PACKET_BYTES:
            self.dropped["wrapped packet is no message"] += 1
            return
        self.connection.publish_for(self._voucher(sender), header, packet)

    def _voucher(self, sender: bytes) -> Voucher:
        voucher = self._vouchers.get(sender)
        if voucher is None:
            namespace = self._hub.router.namespace
            # What was under way when our own prefix changed names the link by its old key.
            above = self._is if sender.startswith(self._is + namespace.separator) else self._was
            if not namespace.is_below(sender, above):
                raise PacketError("forged sender")
            if len(self._vouchers) >= self._hub.limits.voucher_keys:
                self._vouchers.clear()
            connection = self.connection
            rest = sender[len(above) :]
            voucher = self._vouchers[sender] = Voucher(lambda: connection.key, connection.credentials, rest)
        return voucher

    def prefix_changed(self) -> None:
        """This hub's own prefix changed."""
        self._was, self._is = self._is, self.connection.key
        self._vouchers.clear()

    # -- keys that nobody wants ---------------------------------------------------------------------

    def _prune(self, key: bytes) -> bool:
        """Tell the link not to send a key; ``False`` when that has to wait."""
        limits = self._hub.limits
        if key.startswith(self._hub.router.namespace.start):
            return True
        assert self.pruned is not None
        if key in self.pruned:
            return True
        now = monotonic()
        most = float(limits.pruned_keys)
        self._prunes = min(most, self._prunes + (now - self._pruned_at) * limits.prunes_per_second)
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
        self.connection.forget_route(b"MSG %b\0" % key)
        self.connection.answer(encode_control(control.INTEREST_GRAFT, key))

    def graft_for(self, pattern: bytes) -> None:
        """Somebody else began to want a pattern."""
        if self.pruned:
            self._sweeps.append(self.pruned.matched(pattern, self._hub.router.namespace.separator))

    # -- what is told -------------------------------------------------------------------------------

    def ask(self, token: bytes) -> None:
        """Ask for an answer once all that it was told is in force below."""
        self._questions.append(token)

    def _room(self) -> int:
        """How many more answers may wait for the link before it would be let go for it."""
        return self._hub.limits.queued_answers // 2 - self.connection.answers

    @property
    def is_full(self) -> bool:
        """Whether the link has to read before it can be told more."""
        return self._room() <= 0

    def pump(self) -> bool:
        """Tell some of what has changed; whether there is more to do."""
        connection, limits = self.connection, self._hub.limits
        if connection.closed:
            return False
        steps = limits.interest_steps
        more = False
        if self.interest is not None:
            while self._snapshot and steps > 0:
                patterns = self._snapshot[0][1]
                while patterns and steps > 0:
                    self.interest.add(patterns.pop())
                    steps -= 1
                if not patterns:
                    self._snapshot.popleft()
            self.interest.work(limits.interest_steps)
            for added, pattern in self.interest.take(max(0, self._room())):
                key = control.INTEREST_ADD if added else control.INTEREST_REMOVE
                connection.answer(encode_control(key, pattern))
            more = bool(self._snapshot) or not self.interest.settled
        elif self.pruned is not None:
            while self._sweeps and steps > 0 and self._room() > 0:
                steps -= 1
                try:
                    key_ = next(self._sweeps[0])
                except StopIteration:
                    self._sweeps.popleft()
                    continue
                if key_ is not None and self.pruned.discard(key_):
                    self._tell_graft(key_)
            more = bool(self._sweeps)
        if not more:
            if not self.complete and self._tree.has_settled:
                self.complete = True
                connection.answer(encode_control(control.INTEREST_COMPLETE))
            while self._questions and self._room() > 0:
                connection.answer(encode_control(control.INTEREST_SYNC, self._questions.popleft()))
        return more or bool(self._questions)


Asked: TypeAlias = "Link | Above"
Reply: TypeAlias = Callable[[bytes], None]


class _Round:
    """One question that goes round the tree, on behalf of several who asked: who has not answered yet."""

    def __init__(self, token: bytes, requests: list[tuple[object, Reply]]) -> None:
        self.token = token
        self.requests = requests
        self.waiting: set[Asked] = set()
        self.partial: set[Asked] = set()
        self.timer: Any = None

    def reply(self, anyway: bool = False) -> bool:
        """Answer those whose question is answered; whether that were all."""
        left = []
        for origin, reply in self.requests:
            if (missing := self.waiting - {origin}) and not anyway:
                left.append((origin, reply))
            else:
                reply(b"partial" if missing or self.partial - {origin} else b"tree")
        self.requests = left
        return not left


class Tree:
    """What one hub knows of the tree that it stands in. Belongs to the hub and its thread."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.above: Above | None = None
        self.links: dict[Connection, Link] = {}
        self.path: tuple[bytes, ...] = (hub.hub_id,)
        self.senders = 0
        self.has_settled = False
        self._asking: deque[Connection] = deque()
        self._prefix_pending = False
        self._timers: set[Any] = set()
        self._pumping: Any = None
        self._started = False
        self._joining: list[tuple[Connection, bytes]] = []
        self._rounds: dict[bytes, _Round] = {}
        self._requests: list[tuple[object, Reply]] = []
        self._open: Counter[object] = Counter()
        self._round_up: _Round | None = None
        self._tokens = 0

    # -- lifecycle ----------------------------------------------------------------------------------

    def start(self) -> None:
        """The hub listens."""
        self._started = True
        self.has_settled = False
        self.path = (self.hub.hub_id,)
        self.hub.router.namespace.prefix = b""
        self.after(self.hub.limits.settle, self._settle)

    def _settle(self) -> None:
        self.has_settled = True
        self.wake()

    def stop(self) -> None:
        """The hub stops."""
        self._started = False
        if self.above is not None:
            self.above.close()
        self._forget_all()

    def abandon(self) -> None:
        """In the child of a fork."""
        self._started = False
        if self.above is not None:
            self.above.abandon()
        self._forget_all()

    def _forget_all(self) -> None:
        if self._pumping is not None:
            self._pumping.stop()
            self._pumping = None
        for timer in list(self._timers):
            self._cancel(timer)
        self._rounds.clear()
        self._round_up = None
        self._requests.clear()
        self._open.clear()
        self._joining.clear()
        self._asking.clear()

    def is_sending(self) -> bool:
        """Whether something waits on its way up that can still be sent."""
        return self.above is not None and self.above.is_sending()

    def after(self, seconds: float, function: Callable[[], None]) -> Any:
        """Call a function later; the timer, for :meth:`_cancel`."""
        timer = self.hub.loop.timer(seconds)
        self._timers.add(timer)

        def run() -> None:
            self._cancel(timer)
            function()

        timer.start(run)
        return timer

    def _cancel(self, timer: Any) -> None:
        if timer in self._timers:
            self._timers.discard(timer)
            timer.stop()
            timer.close()

    # -- links below --------------------------------------------------------------------------------

    def add_link(self, connection: Connection) -> None:
        """A client said ``interest/on``: answer how it is served, and begin."""
        if connection in self.links:
            return
        hub = self.hub
        mode: Mode = "plain"
        if hub.is_trusted(connection.credentials.uid):
            mode = "announce"
        elif hub.may_relay(connection):
            mode = "prune"
        link = self.links[connection] = Link(self, connection, mode)
        connection.answer(encode_control(control.INTEREST_ON, mode.encode()))
        if mode != "plain":
            connection.become_link(link, PACKET_BYTES + CONTROL_EXTRA)
            if self.senders:
                connection.answer(encode_control(control.SENDERS_ON))
        self._watch()
        self.wake()

    def forget(self, connection: Connection) -> None:
        """A client has gone."""
        link = self.links.pop(connection, None)
        if link is not None:
            self._watch()
            for round_ in list(self._rounds.values()):
                round_.waiting.discard(link)
                self._check(round_)
        if self._open.pop(connection, None):
            self._requests = [request for request in self._requests if request[0] is not connection]

    def dropped(self) -> dict[str, int]:
        """Packets that links should not have sent, by reason."""
        total: Counter[str] = Counter()
        for link in self.links.values():
            total.update(link.dropped)
        return dict(total)

    # -- the hub above ------------------------------------------------------------------------------

    def attach(self, above: Above) -> None:
        """A relay begins. Raises :exc:`~sbuslib.errors.StateError` where there is one."""
        if self.above is not None:
            raise StateError(f"{self.hub!r} has a relay already: one relay a hub")
        self.above = above
        self._prefix_pending = True
        self._watch()
        self.after(self.hub.limits.prefix_wait, self._give_up_prefix)

    def detach(self) -> None:
        """The relay has ended for good: this hub is a root again."""
        self.above = None
        self._watch()
        self.set_path(())
        if self._started:
            self.set_prefix(b"")

    def _watch(self) -> None:
        self.hub.router.watch = self._on_want if self.links or self.above is not None else None

    def _on_want(self, subscriber: Receiver, pattern: bytes, wanted: bool) -> None:
        """Somebody here began or ceased to hold a pattern: all others may have to know."""
        if self.above is not None:
            self.above.watch(pattern, wanted)
        for connection, link in self.links.items():
            if connection is not subscriber:
                self._tell(link, pattern, wanted)
        self.wake()

    def on_above(self, pattern: bytes, wanted: bool) -> None:
        """The hub above began or ceased to want a pattern."""
        for link in self.links.values():
            self._tell(link, pattern, wanted)
        self.wake()

    @staticmethod
    def _tell(link: Link, pattern: bytes, wanted: bool) -> None:
        if link.interest is not None:
            if wanted:
                link.interest.add(pattern)
            else:
                link.interest.remove(pattern)
        elif wanted:
            link.graft_for(pattern)

    def wanted_above(self) -> list[bytes]:
        """The patterns that the hub above is taken to want."""
        return self.above.wanted_above() if self.above is not None else []

    def wake(self) -> None:
        """Something is to be told: in the next round of the event loop."""
        if self._pumping is None and self._started:
            self._pumping = self.hub.loop.run_callback(self._pump)

    def _pump(self) -> None:
        self._pumping = None
        more = [link.pump() for link in list(self.links.values())]
        if self.above is not None:
            more.append(self.above.pump())
        self.hub.carry_out()
        if any(more) and self._started and self._pumping is None:
            # After a pause, a longer one where a slow link has to make room first.
            waits = any(link.is_full for link in self.links.values())
            pause = self.hub.limits.send_retry if waits else self.hub.limits.interest_pause
            self._pumping = self.after(pause, self._pump)

    # -- senders ------------------------------------------------------------------------------------

    def count_senders(self, change: int) -> None:
        """One more, or one less, receiver here wants to know who sent what it gets."""
        before, self.senders = self.senders, self.senders + change
        if bool(before) is bool(self.senders) or not self._started:
            return
        packet = encode_control(control.SENDERS_ON if self.senders else control.SENDERS_OFF)
        for link in list(self.links.values()):
            if link.is_lenient and not link.connection.closed:
                link.connection.answer(packet)
        if self.above is not None:
            self.above.tell_senders()

    # -- path ---------------------------------------------------------------------------------------

    def set_path(self, above: tuple[bytes, ...]) -> None:
        """The path to the root goes on with ``above`` after this hub: those below have to know."""
        path = (self.hub.hub_id, *above)
        if path == self.path:
            return
        self.path = path
        packet = encode_control(control.FEATURES, self.hub.features.encode())
        for link in list(self.links.values()):
            link.connection.answer(packet)
        self.hub.carry_out()

    def joined(self) -> None:
        """The relay has joined, or failed to: whoever asked about the path can be told."""
        joining, self._joining = self._joining, []
        for connection, token in joining:
            self._discharge(connection)
            if not connection.closed:
                connection.answer(control.encode_sync(token, b"root"))

    # -- prefix -------------------------------------------------------------------------------------

    def whoami(self, connection: Connection) -> None:
        """Answer a whoami, once the first prefix is known."""
        if not self._prefix_pending:
            connection.answer(encode_control(control.WHOAMI, connection.key))
            return
        self._charge(connection)
        self._asking.append(connection)

    def _charge(self, connection: object) -> None:
        self._open[connection] += 1
        if self._open[connection] > self.hub.limits.queued_answers:
            raise PacketError("too many unread answers")

    def _discharge(self, connection: object) -> None:
        self._open[connection] -= 1
        if self._open[connection] <= 0:
            del self._open[connection]

    def _give_up_prefix(self) -> None:
        self._prefix_pending = False
        asking, self._asking = self._asking, deque()
        for connection in asking:
            self._discharge(connection)
            if not connection.closed:
                connection.answer(encode_control(control.WHOAMI, connection.key))
        self.hub.carry_out()

    @property
    def knows_prefix(self) -> bool:
        """Whether the hub knows under which prefix its credentials stand, or has given up asking."""
        return not self._prefix_pending

    def set_prefix(self, prefix: bytes) -> None:
        """Credentials here stand under ``prefix`` from now on.

        Secrets held under another name others now, so they are taken back: those who asked for notices are
        told, and can ask for their new ones; others are disconnected.
        """
        hub = self.hub
        changed = hub.router.namespace.prefix != prefix
        hub.router.namespace.prefix = prefix
        if changed:
            for link in self.links.values():
                link.prefix_changed()
            hub.router.reconsider_all()
            for connection in list(hub.connections):
                held = hub.router.forget_secrets(connection, connection.account)
                if connection.wants_notices:
                    connection.answer(control.NewCredentials(connection.key).encode())
                elif held:
                    hub.close_connection(connection, "the prefix of its secrets changed")
            for inbox in list(hub.inboxes):
                if hub.router.forget_secrets(inbox, inbox.account):
                    inbox.close()
        self._give_up_prefix()

    # -- questions that go round the tree -----------------------------------------------------------

    def sync(self, connection: Connection, token: bytes, scope: bytes) -> None:
        """Answer a ``hub/sync``, at once or when the rest of the tree has answered."""
        if scope == b"root" and self.above is not None and not self.above.settled:
            self._charge(connection)
            self._joining.append((connection, token))
        elif scope == b"root":
            connection.answer(control.encode_sync(token, b"root"))
        elif scope != b"tree":
            connection.answer(control.encode_sync(token, b"local"))
        elif self.above is None and not self.links:
            connection.answer(control.encode_sync(token, b"tree"))
        else:
            self._charge(connection)

            def reply(answer: bytes) -> None:
                self._discharge(connection)
                if not connection.closed:
                    connection.answer(control.encode_sync(token, answer))

            self._requests.append((self.links.get(connection, connection), reply))
            if self._round_up is None:
                self._start_round_up()

    def _start_round_up(self) -> None:
        requests, self._requests = self._requests, []
        self._round_up = round_ = self._make_round(requests)
        if self.above is not None and not self.above.stands_apart:
            if self.above.ask(round_.token):
                round_.waiting.add(self.above)
            else:
                round_.partial.add(self.above)
        self.wake()
        self._check(round_)

    def sync_below(self, reply: Reply) -> None:
        """The hub above asks when all it told is in force below."""
        self._check(self._make_round([(None, reply)]))
        self.wake()

    def _make_round(self, requests: list[tuple[object, Reply]]) -> _Round:
        self._tokens += 1
        round_ = _Round(b"%x" % self._tokens, requests)
        self._rounds[round_.token] = round_
        for link in self.links.values():
            if link.lagging:
                round_.partial.add(link)
            elif link.is_lenient:
                link.ask(round_.token)
                round_.waiting.add(link)
        round_.timer = self.after(self.hub.limits.sync_wait, lambda: self._time_out(round_))
        return round_

    def answered(self, token: bytes, who: Asked, partial: bool) -> None:
        """A hub beside this one answered a question."""
        round_ = self._rounds.get(token)
        if round_ is not None and who in round_.waiting:
            round_.waiting.discard(who)
            if partial:
                round_.partial.add(who)
            self._check(round_)

    def _time_out(self, round_: _Round) -> None:
        for who in round_.waiting:
            if isinstance(who, Link):
                who.lagging = True  # it keeps nobody waiting again until it has answered
        self._check(round_, anyway=True)

    def _check(self, round_: _Round, anyway: bool = False) -> None:
        if round_.reply(anyway) and self._rounds.pop(round_.token, None) is not None:
            self._cancel(round_.timer)
            if round_ is self._round_up:
                self._round_up = None
                if self._requests:
                    self._start_round_up()
        self.hub.carry_out()

    # -- notices ------------------------------------------------------------------------------------

    def pass_notice(self, notice: control.Lost, origin: Link | None) -> None:
        """Messages were lost between two hubs: tell everybody here who asked for notices."""
        for connection in list(self.hub.connections):
            if connection.link is None or connection.link is not origin:
                connection.notify(notice.encode())
