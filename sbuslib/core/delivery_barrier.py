"""Delivery barrier: calls back once all messages that wait on a hub now have been passed on.

Messages that a hub has handed to the kernel arrive even if the hub is killed. Messages that wait in its own memory do
not. The relay of a child has to report messages that were lost with its parent. So its messages are acknowledged only
after those that went into a queue have left it (``hub/sync`` of scope ``passed``).

A client that stopped reading would keep every relay waiting. So no relay waits longer than
:data:`~.running.PASSED_WAIT` for a client, until nothing waits for that client. If the hub is killed meanwhile, the
messages in that client's queue are lost with it. The parent, and the children of trusted users, are waited for
however long it takes: many clients are behind each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from time import monotonic
from typing import Protocol


class Pending(Protocol):
    """A receiver for which messages wait."""

    @property
    def queued(self) -> int:
        """How many wait."""

    @property
    def delivered(self) -> int:
        """How many were sent to it, ever."""

    @property
    def in_order(self) -> bool:
        """Whether those that wait are sent oldest first."""

    @property
    def hands_on(self) -> bool:
        """Whether a message that leaves it may then wait for another receiver."""

    @property
    def is_hub(self) -> bool:
        """Whether it is a hub, for which questions wait however long it takes."""


class DeliveryBarrier:
    """The receivers of one hub for which messages wait, and the questions that wait for them.

    Questions that come while others wait are answered together after these. So what all receivers have to be sent is
    looked up again only when each of them was sent something, however many questions there are.

    :param after: calls a function after so many seconds.
    :param wait: seconds that questions wait at most for clients who take nothing.
    """

    def __init__(self, after: Callable[[float, Callable[[], None]], object], wait: float) -> None:
        self._after = after
        self._wait = wait
        self._behind: dict[Pending, None] = {}  # receivers for which messages wait, and questions with them
        self._lagging: set[Pending] = set()  # clients for which messages wait, and no questions any more
        self._answers: list[Callable[[], None]] = []  # to the questions that wait
        self._due: dict[Pending, float] = {}  # how much each receiver has to have been sent before they are called
        self._next: list[Callable[[], None]] = []  # to those that came later
        self._until = 0.0
        self._timing = False  # whether a timer runs

    def note(self, receiver: Pending, waits: bool) -> None:
        """Note whether anything waits for a receiver: it may have changed."""
        if not waits:
            self._lagging.discard(receiver)
            if receiver in self._behind:
                del self._behind[receiver]
                self.check()
        elif receiver not in self._lagging:
            self._behind[receiver] = None

    def when_flushed(self, answer: Callable[[], None]) -> None:
        """Call ``answer`` once all that waits now was passed on, or enough time has passed; it may be at once."""
        if self._answers:
            self._next.append(answer)
        elif not self._behind:
            answer()
        else:
            self._begin([answer])
            self.check()

    def _begin(self, answers: list[Callable[[], None]]) -> None:
        self._answers = answers
        self._due = self._due_of(self._behind)
        self._until = monotonic() + self._wait
        self._keep_time()

    @staticmethod
    def _due_of(receivers: Iterable[Pending]) -> dict[Pending, float]:
        """For each receiver the count of sent messages at which all that waits for it now has gone."""
        return {receiver: receiver.delivered + receiver.queued if receiver.in_order else inf for receiver in receivers}

    def check(self) -> None:
        """Something was sent: answer the questions that can be answered."""
        while self._answers:
            due = self._due
            while due:
                receiver, count = due.popitem()
                if receiver in self._behind and receiver.queued and receiver.delivered < count:
                    due[receiver] = count
                    return
                if receiver.hands_on:
                    # To whom is not noted: that would have to be done with each message.
                    due.update(self._due_of(other for other in self._behind if not other.hands_on))
            answers, self._answers = self._answers, []
            later, self._next = self._next, []
            if later:
                self._begin(later)
            for answer in answers:
                answer()

    def _keep_time(self) -> None:
        if self._answers and not self._timing and self._until < inf:
            self._timing = True
            self._after(max(0.0, self._until - monotonic()), self._on_time)

    def _on_time(self) -> None:
        self._timing = False
        if self._answers and self._until <= monotonic():
            self._until = inf  # from now on only hubs are waited for
            for receiver in [receiver for receiver in self._due if not receiver.is_hub]:
                del self._due[receiver]
                if receiver in self._behind:
                    del self._behind[receiver]
                    self._lagging.add(receiver)
            self.check()
        self._keep_time()

    def answer_all(self) -> None:
        """Answer all: waiting messages go on with the hub that takes this one over."""
        answers = self._answers + self._next
        self._answers, self._next, self._due = [], [], {}
        for answer in answers:
            answer()

    def clear(self) -> None:
        self._behind.clear()
        self._lagging.clear()
        self._answers.clear()
        self._due.clear()
        self._next.clear()
        self._timing = False
