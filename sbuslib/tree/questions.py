"""Questions that go round the whole tree: when is what I subscribed to, or published, known everywhere?

A client asks by ``hub/sync``. The hub asks those beside it, and answers when all of them have: ``tree``, or ``partial``
when one did not answer in time. Questions of several clients go round as one. No client may have more than
:attr:`~sbuslib.limits.Limits.queued_answers` of them open.
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

    lagging: bool
    """Whether it let a question time out, and has not answered since."""

    def ask(self, token: bytes) -> None:
        """Ask for an answer once all that it was told is in force below."""
        ...


class Above(Protocol):
    """The hub above."""

    settled: bool

    @property
    def stands_apart(self) -> bool:
        """Whether it is not joined since it is below this one."""
        ...

    def ask(self, token: bytes) -> bool:
        """Ask it to sync the rest of the tree; ``False`` when it cannot be asked."""
        ...


class Neighbours(Protocol):
    """The hubs beside this one, and what goes on between them."""

    @property
    def links(self) -> Mapping[Any, Below]: ...

    @property
    def above(self) -> Above | None: ...

    def wake(self) -> None: ...


class _Round:
    """One question that goes round the tree, on behalf of several who asked: who has not answered yet."""

    def __init__(self, token: bytes, requests: list[tuple[object, Reply]]) -> None:
        self.token = token
        self.requests = requests
        self.waiting: set[object] = set()
        self.partial: set[object] = set()
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


class Questions:
    """The questions that are open on one hub."""

    def __init__(self, beside: Neighbours, context: Context) -> None:
        self._beside = beside
        self._context = context
        self._joining: list[tuple[Asker, bytes]] = []
        self._rounds: dict[bytes, _Round] = {}
        self._requests: list[tuple[object, Reply]] = []
        self._open: Counter[object] = Counter()
        self._round_up: _Round | None = None
        self._tokens = 0

    def clear(self) -> None:
        """The hub has stopped."""
        self._rounds.clear()
        self._round_up = None
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

    def forget(self, asker: Asker, link: Below | None) -> None:
        """A client has gone, and with it perhaps the link to a hub below."""
        if link is not None:
            for round_ in list(self._rounds.values()):
                round_.waiting.discard(link)
                self._check(round_)
        if self._open.pop(asker, None):
            self._requests = [request for request in self._requests if request[0] is not asker]

    def joined(self) -> None:
        """The relay has joined, or failed to: whoever asked about the path can be told."""
        joining, self._joining = self._joining, []
        for asker, token in joining:
            self.discharge(asker)
            if not asker.closed:
                asker.answer(control.encode_sync(token, b"root"))

    def sync(self, asker: Asker, origin: object, token: bytes, scope: bytes) -> None:
        """Answer a ``hub/sync``, at once or when the rest of the tree has answered, but for ``origin`` who asks."""
        if scope == b"root" and self._beside.above is not None and not self._beside.above.settled:
            self.charge(asker)
            self._joining.append((asker, token))
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

            self._requests.append((origin, reply))
            if self._round_up is None:
                self._start_round_up()

    def _sync_passed(self, asker: Asker, token: bytes) -> None:
        """Answer once all that was published before has left this hub."""
        self.charge(asker)

        def answer() -> None:
            self.discharge(asker)
            if not asker.closed:
                asker.answer(control.encode_sync(token, b"passed"))

        self._context.unsent.when_passed(answer)

    def _start_round_up(self) -> None:
        requests, self._requests = self._requests, []
        self._round_up = round_ = self._make_round(requests)
        if self._beside.above is not None and not self._beside.above.stands_apart:
            if self._beside.above.ask(round_.token):
                round_.waiting.add(self._beside.above)
            else:
                round_.partial.add(self._beside.above)
        self._beside.wake()
        self._check(round_)

    def sync_below(self, reply: Reply) -> None:
        """The hub above asks when all it told is in force below."""
        self._check(self._make_round([(None, reply)]))
        self._beside.wake()

    def _make_round(self, requests: list[tuple[object, Reply]]) -> _Round:
        self._tokens += 1
        round_ = _Round(b"%x" % self._tokens, requests)
        self._rounds[round_.token] = round_
        for link in self._beside.links.values():
            if link.lagging:
                round_.partial.add(link)
            else:
                link.ask(round_.token)
                round_.waiting.add(link)
        round_.timer = self._context.after(self._context.limits.sync_wait, lambda: self._time_out(round_))
        return round_

    def answered(self, token: bytes, who: object, partial: bool) -> None:
        """A hub beside this one answered a question."""
        round_ = self._rounds.get(token)
        if round_ is not None and who in round_.waiting:
            round_.waiting.discard(who)
            if partial:
                round_.partial.add(who)
            self._check(round_)

    def _time_out(self, round_: _Round) -> None:
        for link in self._beside.links.values():
            if link in round_.waiting:
                link.lagging = True  # it keeps nobody waiting again until it has answered
        self._check(round_, anyway=True)
        # Nobody else may say so here: a client asks, and a link answers, in the middle of a turn.
        self._context.members.end_turn()

    def _check(self, round_: _Round, anyway: bool = False) -> None:
        if round_.reply(anyway) and self._rounds.pop(round_.token, None) is not None:
            self._context.cancel(round_.timer)
            if round_ is self._round_up:
                self._round_up = None
                if self._requests:
                    self._start_round_up()
