"""Requests of clients that are answered later: ``hub/sync``, and ``whoami`` while the hub has no prefix yet.

A client asks by ``hub/sync`` when its subscriptions, or messages, have reached the whole tree. Its hub asks the
children and the parent, and answers when all of them have answered: ``tree``, or ``partial`` when one did not answer in
time. While this hub joins the one above, the question waits for that. One *round* of questions to the other hubs serves
all clients of one user that have asked by then.

A link of a user that this hub does not trust gets grafts, but is not asked: else its user could delay everybody. The
answer shows that (:data:`~sbuslib.wire.control.SCOPE_TRUSTED`).

A child gets its *prefix*, with which its clients' credential keys begin, from the parent: the credential key of its own
link, and a separator. Until the first one is known, for at most :attr:`~sbuslib.limits.Limits.prefix_wait`, a
client that asks ``whoami`` waits.

No client may have more than :attr:`~sbuslib.limits.Limits.queued_answers` questions open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from ..core.context import Context
from ..errors import PacketError
from ..reasons import Reason
from ..wire import control
from ..wire.packets import encode_control
from .link_interfaces import ChildPort, Neighbour, ParentPort

Respond: TypeAlias = Callable[[bytes], None]
"""Called with the scope of the answer: ``tree``, ``partial`` and so on."""


class Questioner(Protocol):
    """A client that asks."""

    closed: bool

    def __hash__(self) -> int: ...

    @property
    def key(self) -> bytes:
        """Its credential key, under the prefix as it is now."""

    def answer(self, packet: bytes) -> None:
        """Send or queue an answer."""


class _Round:
    """One question to the children and the parent: who asked for it, and which hubs have not answered yet.

    :param requests: the replies to make, by who asked: the link to a child does not wait for its own answer.
    """

    def __init__(self, user: int, requests: dict[object, list[Respond]]) -> None:
        self.user = user
        self.requests = requests
        self.waiting: dict[object, bytes] = {}  # links, with tokens, and the parent while this hub joins it
        self.partial: set[object] = set()  # links that did not answer for the whole of their part
        self.trusted_only = False  # whether some hub was not waited for, because it is not trusted
        self.timer: Any = None

    def reply(self, anyway: bool = False) -> bool:
        """Answer those whose question is answered, or everybody; whether nobody is left."""
        left = {}
        for origin, replies in self.requests.items():
            missing = len(self.waiting) > (origin in self.waiting)
            if missing and not anyway:
                left[origin] = replies
                continue
            partial = missing or len(self.partial) > (origin in self.partial)
            for reply in replies:
                reply(b"partial" if partial else control.SCOPE_TRUSTED if self.trusted_only else control.SCOPE_TREE)
        self.requests = left
        return not left


class Questions:
    """The open questions of one hub.

    :param links: those to the children.
    :param parent: the parent, if this hub has a relay.
    """

    def __init__(
        self, context: Context, links: Mapping[Any, ChildPort], parent: Callable[[], ParentPort | None]
    ) -> None:
        self._context = context
        self._links = links
        self._parent = parent
        self.knows_prefix = True
        """Whether the first prefix is known, or nobody waits for it any more."""
        self._until_prefix: dict[Questioner, list[Respond]] = {}  # who asked whoami
        self._until_joined: dict[Questioner, list[Respond]] = {}  # who asked about the path
        self._rounds: set[_Round] = set()  # that are not over
        self._asked_by_clients: dict[int, _Round] = {}  # those of the rounds that clients asked for: one a user
        self._requests: dict[int, dict[object, list[Respond]]] = {}  # for the next round of each user
        self._open: Counter[Questioner] = Counter()  # questions that are not answered yet

    def clear(self) -> None:
        """The hub has stopped."""
        self._rounds.clear()
        self._asked_by_clients.clear()
        self._requests.clear()
        self._open.clear()
        self._until_prefix.clear()
        self._until_joined.clear()

    def _put_off(self, asker: Questioner, encode: Callable[[bytes], bytes]) -> Respond:
        """Return a function that answers a client's question later. Raises :exc:`~sbuslib.errors.PacketError` when it
        has too many.
        """
        self._open[asker] += 1
        if self._open[asker] > self._context.limits.queued_answers:
            raise PacketError(Reason.UNREAD_ANSWERS)

        def reply(scope: bytes) -> None:
            self._open[asker] -= 1
            if self._open[asker] <= 0:
                del self._open[asker]
            if not asker.closed:
                asker.answer(encode(scope))

        return reply

    def forget(self, asker: Questioner, link: ChildPort | None, user: int) -> None:
        """A client of ``user`` has gone, and with it perhaps the link to a child."""
        if self._open.pop(asker, None):
            self._until_prefix.pop(asker, None)
            self._until_joined.pop(asker, None)
            self._requests.get(user, {}).pop(link or asker, None)

    # -- about the asker, and this hub's place ------------------------------------------------------

    def whoami(self, asker: Questioner) -> None:
        """Answer a ``whoami``, once the first prefix is known."""
        if self.knows_prefix:
            asker.answer(encode_control(control.WHOAMI, asker.key))
        else:
            reply = self._put_off(asker, lambda _: encode_control(control.WHOAMI, asker.key))
            self._until_prefix.setdefault(asker, []).append(reply)

    def note_prefix(self) -> None:
        """The prefix is known, or the wait is over: answer the clients that asked who they are."""
        self.knows_prefix = True
        waiting, self._until_prefix = self._until_prefix, {}
        for reply in [reply for replies in waiting.values() for reply in replies]:
            reply(b"")

    def note_joined(self) -> None:
        """The relay has joined, or failed to: those that asked about the path are answered, and rounds go on."""
        waiting, self._until_joined = self._until_joined, {}
        for reply in [reply for replies in waiting.values() for reply in replies]:
            reply(b"root")
        parent = self._parent()
        for round_ in [round_ for round_ in self._rounds if parent in round_.waiting]:
            del round_.waiting[parent]
            self._ask_parent(round_)
            self._check(round_)

    # -- about the tree -----------------------------------------------------------------------------

    def sync(self, asker: Questioner, link: ChildPort | None, user: int, token: bytes, scope: bytes) -> None:
        """Answer a ``hub/sync`` of a client of ``user``, at once or when the rest of the tree has answered.

        Where the client is the ``link`` to a child, that hub is not asked.
        """
        parent = self._parent()
        if scope == b"passed":
            reply = self._put_off(asker, lambda scope: control.encode_sync(token, scope))
            self._context.running.delivery_barrier.when_flushed(lambda: reply(b"passed"))
        elif scope == b"root" and parent is not None and not parent.settled:
            reply = self._put_off(asker, lambda scope: control.encode_sync(token, scope))
            self._until_joined.setdefault(asker, []).append(reply)
        elif scope == b"tree" and (parent is not None or self._links):
            reply = self._put_off(asker, lambda scope: control.encode_sync(token, scope))
            self._requests.setdefault(user, {}).setdefault(link or asker, []).append(reply)
            if user not in self._asked_by_clients:
                self._start_round(user)
        else:
            asker.answer(control.encode_sync(token, scope if scope in (b"root", b"tree") else b"local"))

    def _start_round(self, user: int) -> None:
        """Ask all other hubs, for the clients of a user."""
        self._asked_by_clients[user] = round_ = self._make_round(user, self._requests.pop(user))
        self._ask_parent(round_)
        self._check(round_)

    def sync_children(self, reply: Respond, user: int) -> None:
        """The parent, whose changes count as those of ``user``, asks when its announcements are in force below."""
        self._check(self._make_round(user, {None: [reply]}))

    def _make_round(self, user: int, requests: dict[object, list[Respond]]) -> _Round:
        round_ = _Round(user, requests)
        self._rounds.add(round_)
        for link in self._links.values():
            self._ask(round_, link)
        round_.timer = self._context.running.after(self._context.limits.sync_wait, lambda: self._time_out(round_))
        return round_

    def _ask_parent(self, round_: _Round) -> None:
        parent = self._parent()
        if parent is None or parent.stands_apart:
            return
        if parent.joined is not None:
            self._ask(round_, parent.joined)
        else:
            if parent.settled:
                round_.partial.add(parent)
            else:
                round_.waiting[parent] = b""

    def _ask(self, round_: _Round, link: Neighbour) -> None:
        round_.trusted_only = round_.trusted_only or not link.trusted
        token = link.ask(lambda scope: self._answered(round_, link, scope))
        if token and not link.lagging:
            round_.waiting[link] = token
        elif link.trusted:
            # A link that lags is asked again, since its answer ends that. But nobody waits for it.
            round_.partial.add(link)

    def _answered(self, round_: _Round, link: Neighbour, scope: bytes | None) -> None:
        """A child or the parent answered a question, or its link has ended: nothing is below then."""
        if round_.waiting.pop(link, None) is None or round_ not in self._rounds:
            return
        parent = self._parent()
        if scope is None and parent is not None and link.receiver is parent.up:
            scope = parent.scope_alone
        if scope == control.SCOPE_TRUSTED:
            round_.trusted_only = True
        elif scope not in (control.SCOPE_TREE, None):
            round_.partial.add(link)
        self._check(round_)

    def _time_out(self, round_: _Round) -> None:
        for link in self._links.values():
            if link in round_.waiting:
                link.note_overdue(round_.waiting[link])
        self._check(round_, anyway=True)

    def _check(self, round_: _Round, anyway: bool = False) -> None:
        if round_.reply(anyway) and round_ in self._rounds:
            self._rounds.discard(round_)
            self._context.running.cancel(round_.timer)
            if self._asked_by_clients.get(round_.user) is round_:
                del self._asked_by_clients[round_.user]
                if self._requests.get(round_.user):
                    self._start_round(round_.user)
