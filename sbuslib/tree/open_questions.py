"""The questions to the hub at the other end of a link that it has not answered yet."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TypeAlias

__all__ = ["Answer", "OpenQuestions"]

Answer: TypeAlias = Callable[[bytes | None], None]
"""Called with what the answer says; ``None``: the link has ended, and there will be none."""


class OpenQuestions:
    """Open questions, oldest first, each under a token of its own."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[float, Answer]] = {}  # with the time at which it was asked

    def __len__(self) -> int:
        return len(self._open)

    @property
    def lag(self) -> float:
        """For how many seconds the oldest has been open; 0 if none is."""
        return monotonic() - next(iter(self._open.values()))[0] if self._open else 0.0

    def add(self, token: bytes, on_answer: Answer) -> None:
        """A question is asked."""
        self._open[token] = monotonic(), on_answer

    def answer(self, token: bytes, says: bytes) -> bool:
        """The other end has answered. Returns whether there was such a question."""
        _, on_answer = self._open.pop(token, (0.0, None))
        if on_answer is not None:
            on_answer(says)
        return on_answer is not None

    def answer_oldest(self, says: bytes) -> None:
        """The other end answers in order, and without tokens."""
        if self._open:
            self.answer(next(iter(self._open)), says)

    def forget_up_to(self, token: bytes) -> None:
        """Count on no answer to a question, nor to those before it."""
        if token in self._open:
            asked = list(self._open)
            for one in asked[: asked.index(token) + 1]:
                del self._open[one]

    def close(self) -> None:
        """The link has ended."""
        waiting, self._open = self._open, {}
        for _, on_answer in waiting.values():
            on_answer(None)
