"""A hub's prefix, under which its clients' credential keys stand, and who waits to learn it.

A hub below another gets its prefix from there: the credential key of its own link, and a separator. Until the first one
is known, for at most :attr:`~sbuslib.limits.Limits.prefix_wait`, a client that asks ``whoami`` waits.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from ..wire import control
from ..wire.packets import encode_control

__all__ = ["Asker", "Prefix"]


class Asker(Protocol):
    """A client that asked for its credential key."""

    closed: bool

    @property
    def key(self) -> bytes:
        """Its credential key, under the prefix as it is now."""

    def answer(self, packet: bytes) -> None:
        """Send or queue an answer."""


class OpenQuestions(Protocol):
    """Counts the questions that a client has open, which are bounded."""

    def charge(self, asker: Asker) -> None:
        """It asked one. Raises :exc:`~sbuslib.errors.PacketError` when that is too many."""

    def discharge(self, asker: Asker) -> None:
        """One was answered."""


class Prefix:
    """Whether the first prefix is known, and the clients that wait for it."""

    def __init__(self, questions: OpenQuestions) -> None:
        self._questions = questions
        self._asking: Counter[Asker] = Counter()
        self.is_known = True

    def whoami(self, asker: Asker) -> None:
        """Answer a ``whoami``, once the first prefix is known."""
        if self.is_known:
            asker.answer(encode_control(control.WHOAMI, asker.key))
            return
        self._questions.charge(asker)
        self._asking[asker] += 1

    def expect(self) -> None:
        """A relay has started: the prefix is not known yet."""
        self.is_known = False

    def settle(self) -> None:
        """The prefix is known, or the wait is over: answer the clients that asked."""
        self.is_known = True
        asking, self._asking = self._asking, Counter()
        for asker in asking.elements():
            self._questions.discharge(asker)
            if not asker.closed:
                asker.answer(encode_control(control.WHOAMI, asker.key))

    def forget(self, asker: Asker) -> None:
        """A client has gone."""
        self._asking.pop(asker, None)

    def clear(self) -> None:
        """The hub has stopped."""
        self._asking.clear()
