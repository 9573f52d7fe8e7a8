"""The questions to the hub at the other end of a link that it has not answered yet."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TypeAlias

OnAnswer: TypeAlias = Callable[[bytes | None], None]
"""Called with what the answer says; ``None``: the link has ended, and there will be none."""


class OpenQuestions:
    """Open questions, oldest first, each under a token of its own."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, tuple[float, OnAnswer]] = {}  # to be asked later; since when
        self._asked: dict[bytes, tuple[float, OnAnswer]] = {}  # in the order in which they were asked
        self._tokens = 0  # so far

    def __len__(self) -> int:
        return len(self._waiting) + len(self._asked)

    @property
    def waiting(self) -> int:
        """How many were not asked yet."""
        return len(self._waiting)

    @property
    def lag(self) -> float:
        """For how many seconds the oldest has been open; 0 if none is."""
        oldest = [next(iter(some.values()))[0] for some in (self._waiting, self._asked) if some]
        return monotonic() - min(oldest) if oldest else 0.0

    def put(self, on_answer: OnAnswer, scope: bytes = b"tree") -> bytes:
        """A question is to be asked later. Returns its token."""
        self._tokens += 1
        token = b"%b%x" % (scope[:1], self._tokens)
        self._waiting[token] = monotonic(), on_answer
        return token

    def ask(self, token: bytes | None = None) -> bytes:
        """A question that waits is asked now: that with a token, else the oldest. Returns its token."""
        token = next(iter(self._waiting)) if token is None else token
        self._asked[token] = self._waiting.pop(token)
        return token

    def take_back(self, token: bytes) -> bool:
        """Do not ask a question; ``False``: it was asked."""
        return self._waiting.pop(token, None) is not None

    def answer(self, token: bytes, says: bytes) -> bool:
        """Act on an answer. Returns ``False`` if that question is not open."""
        _, on_answer = self._asked.pop(token, (0.0, None))
        if on_answer is not None:
            on_answer(says)
        return on_answer is not None

    def answer_oldest(self, says: bytes) -> None:
        """The other end answers in order, and without tokens."""
        if self._asked:
            self.answer(next(iter(self._asked)), says)

    def forget_before(self, token: bytes) -> None:
        """Count on no answer to the questions before one that is answered."""
        if token in self._asked:
            while (oldest := next(iter(self._asked))) != token:
                del self._asked[oldest]

    def close(self) -> None:
        """The link has ended."""
        open_ = [*self._asked.values(), *self._waiting.values()]
        self._asked.clear()
        self._waiting.clear()
        for _, on_answer in open_:
            on_answer(None)
