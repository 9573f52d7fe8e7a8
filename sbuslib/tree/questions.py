"""Questions to the whole tree: when is what I subscribed to, or published, known everywhere?

A client asks by ``hub/sync``. Its hub asks the hubs below and above, and answers when all of them have answered:
``tree``, or ``partial`` when one did not answer in time. While this hub joins the one above, the question waits for
that. One *round* of questions to the other hubs serves all clients of one user that have asked by then. No client may
have more than :attr:`~sbuslib.limits.Limits.queued_answers` questions open.

A link of a user that this hub does not trust is asked, which shows how far it lags, but nobody waits for its answer:
else its user could delay everybody. The answer says so (:data:`~sbuslib.wire.control.SCOPE_TRUSTED`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from ..core.context import Context
from ..errors import PacketError
from ..wire import control
from .prefixes import Asker

__all__ = ["Questions", "Reply"]

Reply: TypeAlias = Callable[[bytes], None]


class Below(Protocol):
    """A hub below."""

    trusted: bool
    """Whether anybody waits for its answers."""
    lagging: bool
    """Whether it let a question time out, and has not answered since."""

    def ask(self, token: bytes) -> None:
        """Ask for an answer once all that is wanted here is in force below."""

    def note_overdue(self, token: bytes) -> None:
        """It did not answer a question in time."""


class Above(Protocol):
    """The hub above."""

    @property
    def settled(self) -> bool: ...

    @property
    def stands_apart(self) -> bool:
        """Whether this hub has not joined it since it is below this hub."""

    def ask(self, token: bytes) -> bool:
        """Ask it to sync the rest of the tree; ``False`` when it cannot be asked."""


class Neighbours(Protocol):
    """The hubs below and above this one."""

    @property
    def links(self) -> Mapping[Any, Below]: ...

    @property
    def above(self) -> Above | None: ...

    def wake(self) -> None: ...


class _Round:
    """One question to the hubs below and above: who asked for it, and which hubs have not answered yet.

    :param requests: the replies to make, by who asked: the link to a hub below does not wait for its own answer.
    """

    def __init__(self, token: bytes, user: int, requests: dict[object, list[Reply]]) -> None:
        self.token = token
        self.user = user
        self.requests = requests
        self.waiting: set[object] = set()
        self.partial: set[object] = set()
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
    """The open questions of one hub."""

    def __init__(self, beside: Neighbours, context: Context) -> None:
        self._beside = beside
        self._context = context
        self._joining: dict[Asker, list[bytes]] = {}
        self._rounds: dict[bytes, _Round] = {}
        self._asked_by_clients: dict[int, _Round] = {}  # those of the rounds that clients asked for: one a user
        self._requests: dict[int, dict[object, list[Reply]]] = {}  # for the next round of each user
        self._open: Counter[object] = Counter()
        self._tokens = 0

    def clear(self) -> None:
        """The hub has stopped."""
        self._rounds.clear()
        self._asked_by_clients.clear()
        self._requests.clear()
        self._open.clear()
        self._joining.clear()

    def charge(self, asker: Asker) -> None:
        """A client asked something. Raises :exc:`~sbuslib.errors.PacketError` when it has too many questions open."""
        self._open[asker] += 1
        if self._open[asker] > self._context.limits.queued_answers:
            raise PacketError("too many unread answers")

    def discharge(self, asker: Asker) -> None:
        """A question was answered."""
        self._open[asker] -= 1
        if self._open[asker] <= 0:
            del self._open[asker]

    def forget(self, asker: Asker, link: Below | None, user: int) -> None:
        """A client of ``user`` has gone, and with it perhaps the link to a hub below."""
        if link is not None:
            for round_ in list(self._rounds.values()):
                round_.waiting.discard(link)
                self._check(round_)
        if self._open.pop(asker, None):
            self._joining.pop(asker, None)
            self._requests.get(user, {}).pop(link or asker, None)

    def joined(self) -> None:
        """The relay has joined, or failed to: clients that asked about the path can be told."""
        joining, self._joining = self._joining, {}
        for asker, tokens in joining.items():
            for token in tokens:
                self.discharge(asker)
                if not asker.closed:
                    asker.answer(control.encode_sync(token, b"root"))

    def sync(self, asker: Asker, link: Below | None, user: int, token: bytes, scope: bytes) -> None:
        """Answer a ``hub/sync`` of a client of ``user``, at once or when the rest of the tree has answered.

        Where the client is the ``link`` to a hub below, that hub is not asked.
        """
        if scope == b"root" and self._beside.above is not None and not self._beside.above.settled:
            self.charge(asker)
            self._joining.setdefault(asker, []).append(token)
        elif scope == b"root":
            asker.answer(control.encode_sync(token, b"root"))
        elif scope == b"passed":
            self._sync_passed(asker, token)
        elif scope != b"tree":
            asker.answer(control.encode_sync(token, b"local"))
        elif self._beside.above is None and not self._beside.links:
            asker.answer(control.encode_sync(token, b"tree"))
        else:
            self.charge(asker)

            def reply(answer: bytes) -> None:
                self.discharge(asker)
                if not asker.closed:
                    asker.answer(control.encode_sync(token, answer))

            self._requests.setdefault(user, {}).setdefault(link or asker, []).append(reply)
            if user not in self._asked_by_clients:
                self._start_round(user)

    def _sync_passed(self, asker: Asker, token: bytes) -> None:
        """Answer once all that was published before has left this hub."""
        self.charge(asker)

        def answer() -> None:
            self.discharge(asker)
            if not asker.closed:
                asker.answer(control.encode_sync(token, b"passed"))

        self._context.unsent.when_passed(answer)

    def _start_round(self, user: int) -> None:
        """Ask all other hubs, for the clients of a user."""
        self._asked_by_clients[user] = round_ = self._make_round(user, self._requests.pop(user))
        if self._beside.above is not None and not self._beside.above.stands_apart:
            if self._beside.above.ask(round_.token):
                round_.waiting.add(self._beside.above)
            else:
                round_.partial.add(self._beside.above)
        self._beside.wake()
        self._check(round_)

    def sync_below(self, reply: Reply, user: int) -> None:
        """The hub above, whose changes count as those of ``user``, asks when all it told is in force below."""
        self._check(self._make_round(user, {None: [reply]}))
        self._beside.wake()

    def _make_round(self, user: int, requests: dict[object, list[Reply]]) -> _Round:
        self._tokens += 1
        round_ = _Round(b"%x" % self._tokens, user, requests)
        self._rounds[round_.token] = round_
        for link in self._beside.links.values():
            link.ask(round_.token)
            if not link.trusted:
                round_.trusted_only = True
            else:
                # A link that lags is asked again, since its answer ends that. But nobody waits for it.
                (round_.partial if link.lagging else round_.waiting).add(link)
        round_.timer = self._context.after(self._context.limits.sync_wait, lambda: self._time_out(round_))
        return round_

    def answered(self, token: bytes, who: object, scope: bytes) -> None:
        """A hub below or above answered a question."""
        round_ = self._rounds.get(token)
        if round_ is not None and who in round_.waiting:
            round_.waiting.discard(who)
            if scope == control.SCOPE_TRUSTED:
                round_.trusted_only = True
            elif scope != control.SCOPE_TREE:
                round_.partial.add(who)
            self._check(round_)

    def _time_out(self, round_: _Round) -> None:
        for link in self._beside.links.values():
            if link in round_.waiting:
                link.note_overdue(round_.token)
        self._check(round_, anyway=True)
        # Nobody else may say so here: a client asks, and a link answers, in the middle of a turn.

    def _check(self, round_: _Round, anyway: bool = False) -> None:
        if round_.reply(anyway) and self._rounds.pop(round_.token, None) is not None:
            self._context.cancel(round_.timer)
            if self._asked_by_clients.get(round_.user) is round_:
                del self._asked_by_clients[round_.user]
                if self._requests.get(round_.user):
                    self._start_round(round_.user)
