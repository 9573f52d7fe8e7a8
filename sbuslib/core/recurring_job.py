"""Recurring jobs: work of one user that begins whenever there is something to do, and lasts until there is no more.

Whoever finds something to do *wakes* the job. It takes turns of its user (:class:`~.charged_work.ChargedWork`), and
then rests for as long as it took, at most :data:`REST_MOST`: so many changes are seen to at once. A step that fails, a
bug of ours, ends no job: it goes on after :data:`ERROR_PAUSE`. Once the hub stops or is handed over, nothing begins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from time import monotonic
from typing import Final, Literal, TypeAlias

from .context import Context
from .running import Running
from .send_watcher import SEND_RETRY

REST_MOST: Final = SEND_RETRY
"""Most seconds for which a job rests that has ended."""

ERROR_PAUSE: Final = 1.0
"""Seconds after which a job goes on where it failed: it may fail again, and each time is logged."""

_KEPT: Final = 64
"""Jobs of users that are kept though there is nothing to do."""

State: TypeAlias = Literal["idle", "due", "running", "again"]
"""``due``: it rests, or waits for its turn; ``again``: it was woken while it ran."""

Event: TypeAlias = Literal["wake", "begin", "end", "pause", "clear"]
"""``end``: a run found nothing more to do; ``pause``: it has to go on later, or has failed; ``clear``: no job begins
any more."""

Steps: TypeAlias = Generator[None, None, float | None]
"""One run. It returns ``None``, or the seconds after which it has to go on."""

NEXT: Final[dict[tuple[State, Event], State]] = {
    ("idle", "wake"): "due",
    ("due", "wake"): "due",
    ("running", "wake"): "again",
    ("again", "wake"): "again",
    ("due", "begin"): "running",
    ("running", "end"): "idle",
    ("again", "end"): "due",
    ("running", "pause"): "due",
    ("again", "pause"): "due",
    ("idle", "clear"): "idle",
    ("due", "clear"): "idle",
    ("running", "clear"): "idle",
    ("again", "clear"): "idle",
}
"""The next state. What is not here cannot be."""


class RecurringJob(ABC):
    """One job of a user. It is not part of a reference cycle: the last that drops it frees it."""

    def __init__(self, context: Context, user: int) -> None:
        self._context = context
        self._user = user  # whose turns it takes
        self._running: Running | None = None  # in which its state is so
        self._state: State = "idle"
        self._rests_until = 0.0  # by the monotonic clock
        self._is_done = False  # whether the last run found nothing more to do

    @abstractmethod
    def steps(self) -> Steps:
        """Yield after each step of one run, which begins with all that there is to do."""

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do, nor has to be waited for."""
        return self._state == "idle" and monotonic() >= self._rests_until

    def wake(self) -> None:
        """There is something to do."""
        if self._running is not self._context.running:
            self._running, self._state = self._context.running, "idle"  # what was due has ended with the hub
        if self._state != "due":
            self._on("wake")

    def _on(self, event: Event) -> None:
        before, self._state = self._state, NEXT[self._state, event]
        if self._state == "due" != before:
            self._set_off()

    def _set_off(self) -> None:
        running, rest = self._context.running, self._rests_until - monotonic()
        if running.work.closed:
            self._on("clear")
        elif rest > 0:
            running.after(rest, self._take_turns)
        else:
            self._take_turns()

    def _take_turns(self) -> None:
        self._context.running.work.add(self._user, self._run(), self._on_end)

    def _run(self) -> Generator[None, None, None]:
        self._on("begin")
        self._is_done = False
        began, pause = monotonic(), ERROR_PAUSE
        try:
            asked = yield from self.steps()
            self._is_done, pause = asked is None, asked or 0.0
        finally:
            now = monotonic()
            self._rests_until = now + max(min(now - began, REST_MOST), pause)

    def _on_end(self) -> None:
        if self._context.running.work.closed:
            self._on("clear")
        else:
            self._on("end" if self._is_done else "pause")


class _UserJob(RecurringJob):
    def __init__(self, context: Context, user: int, steps: Callable[[int], Steps]) -> None:
        super().__init__(context, user)
        self._make_steps = steps

    def steps(self) -> Steps:
        return self._make_steps(self._user)


class UserJobs:
    """The same job for each user.

    :param steps: makes the steps of one run for a user.
    """

    def __init__(self, context: Context, steps: Callable[[int], Steps]) -> None:
        self._context = context
        self._steps = steps
        self._jobs: dict[int, _UserJob] = {}  # by user
        self._most = _KEPT  # jobs, before idle ones are forgotten

    def wake(self, user: int) -> None:
        """There is something to do in turns of a user."""
        job = self._jobs.get(user)
        if job is None:
            if len(self._jobs) >= self._most:
                self._jobs = {user: job for user, job in self._jobs.items() if not job.is_idle}
                self._most = 2 * len(self._jobs) + _KEPT
            job = self._jobs[user] = _UserJob(self._context, user, self._steps)
        job.wake()
