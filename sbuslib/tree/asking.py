"""The questions of the tree that the hub above is asked: when is all in force that this hub has told it?

A hub without features is asked ``whoami``, as for an acknowledgement. It answers in order, so each answer is the answer
to the oldest question, whichever of the two that was.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from ..wire import control
from ..wire.packets import encode_control

__all__ = ["Asking"]


class Sending(Protocol):
    """What sends to the hub above."""

    @property
    def open_questions(self) -> int:
        """How many questions for an acknowledgement are open."""

    def say(self, *packets: bytes) -> None:
        """Send control packets."""


class Asking:
    """The questions to the hub above on one connection. At most ``most`` wait, and as many are open.

    Questions are known by the token of the round of :class:`~sbuslib.tree.questions.Questions` that they belong to.
    """

    def __init__(self, up: Sending, most: int) -> None:
        self._up = up
        self._most = most
        self._waiting: deque[bytes] = deque()
        self._open: dict[bytes, bytes] = {}
        self._in_order: deque[tuple[bytes, int]] = deque()  # with the count of acknowledgements that come before
        self._acknowledged = 0

    def __bool__(self) -> bool:
        """Whether questions wait."""
        return bool(self._waiting)

    def ask(self, token: bytes) -> bool:
        """Ask this as soon as all is told; ``False`` if too many questions wait for that."""
        if len(self._waiting) >= self._most:
            return False
        self._waiting.append(token)
        return True

    def send(self, has_features: bool) -> None:
        """All is told: ask the questions that wait."""
        while self._waiting and (has_features or len(self._in_order) < self._most):
            token = self._waiting.popleft()
            asked = b"r" + token
            if has_features:
                if len(self._open) >= self._most:
                    del self._open[next(iter(self._open))]  # nobody waits for the oldest any more
                self._open[asked] = token
                self._up.say(encode_control(control.SYNC, asked + b"\0" + control.SCOPE_TREE))
            else:
                self._in_order.append((token, self._acknowledged + self._up.open_questions))
                self._up.say(encode_control(control.WHOAMI))

    def take(self, asked: bytes) -> bytes | None:
        """The hub above answered: the question's token, if it was one of these."""
        return self._open.pop(asked, None)

    def take_whoami(self) -> bytes | None:
        """A hub without features answered: the question's token, or ``None`` if this was an acknowledgement."""
        if self._in_order and self._in_order[0][1] <= self._acknowledged:
            return self._in_order.popleft()[0]
        self._acknowledged += 1
        return None

    def unanswered(self) -> list[bytes]:
        """The tokens of all questions that were not answered."""
        return [*self._open.values(), *(token for token, _ in self._in_order), *self._waiting]
