"""Jobs that last as long as there is something to do: each cell of their table, failures, and the end of the hub."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import get_args

import gevent
import pytest
from support import MakeHub, eventually

from sbuslib import Hub
from sbuslib.core import recurring_job
from sbuslib.core.context import Context
from sbuslib.core.recurring_job import NEXT, Event, RecurringJob, State, Steps, UserJobs

STRANGER = 12_345


class Job(RecurringJob):
    """A job that does what it finds, one thing a step."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, STRANGER)
        self.todo: deque[Callable[[], float | None]] = deque()
        self.runs = 0

    def do(self, thing: Callable[[], float | None]) -> None:
        self.todo.append(thing)
        self.wake()

    def steps(self) -> Steps:
        self.runs += 1
        while self.todo:
            pause = self.todo.popleft()()
            if pause is not None:
                return pause
            yield
        return None


@pytest.fixture
def job(hub: Hub) -> Job:
    return Job(hub.context)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The errors that the event loop is told of."""
    errors: list[str] = []
    monkeypatch.setattr(gevent.get_hub(), "handle_error", lambda context, kind, value, trace: errors.append(str(value)))
    monkeypatch.setattr(recurring_job, "ERROR_PAUSE", 0.001)
    return errors


def test_the_table_is_whole() -> None:
    cannot_be = {("idle", "begin"), ("running", "begin"), ("again", "begin")}  # only what is due begins
    cannot_be |= {(state, event) for state in ("idle", "due") for event in ("end", "pause")}  # only a run ends
    assert {(state, event) for state in get_args(State) for event in get_args(Event)} - cannot_be == NEXT.keys()
    assert all(NEXT[state, "clear"] == "idle" for state in get_args(State))
    assert all(NEXT[state, "wake"] != "idle" for state in get_args(State)), "no wake is lost"


def test_a_job_that_is_woken_while_it_runs_runs_again(job: Job) -> None:
    done: list[int] = []

    def more() -> None:
        done.append(1)
        job.wake()

    job.do(more)
    for _ in range(5):
        job.wake()  # it is due: once is enough
    assert done == [], "never at once"
    eventually(lambda: job.is_idle)
    assert (done, job.runs) == ([1], 2)


def test_a_job_goes_on_after_the_pause_that_it_asks_for(job: Job) -> None:
    done: list[int] = []
    job.do(lambda: 0.0)
    job.do(lambda: done.append(1))
    eventually(lambda: job.is_idle)
    assert (done, job.runs) == ([1], 2)


def test_a_step_that_fails_ends_no_job(job: Job, told: list[str]) -> None:
    def fail() -> None:
        job.wake()
        raise RuntimeError("a fault of ours")

    done: list[int] = []
    job.do(fail)
    job.do(fail)
    job.do(lambda: done.append(1))
    eventually(lambda: done and job.is_idle)
    assert told == ["a fault of ours"] * 2
    job.do(lambda: done.append(2))
    eventually(lambda: done == [1, 2])


@pytest.mark.parametrize("began", [False, True])
def test_nothing_begins_once_the_hub_has_stopped_and_all_begins_when_it_starts(make_hub: MakeHub, began: bool) -> None:
    hub = make_hub()
    job, done = Job(hub.context), list[int]()

    def wait() -> None:
        job.todo.appendleft(wait)

    job.do(wait)
    if began:
        eventually(lambda: job.runs)
    hub.stop()
    runs = job.runs
    job.wake()
    for _ in range(10):
        gevent.idle()
    assert job.runs == runs
    hub.start()
    job.todo.clear()
    job.do(lambda: done.append(1))
    eventually(lambda: done == [1])
    hub.stop()


def test_a_job_that_rests_when_the_hub_stops_is_not_lost_for_the_next_start(make_hub: MakeHub) -> None:
    hub = make_hub()
    job, done = Job(hub.context), list[int]()
    job.do(lambda: 1e6)
    eventually(lambda: job.runs and not hub.context.running.work.waits)
    hub.stop()
    hub.start()
    job._rests_until = 0.0
    job.do(lambda: done.append(1))
    eventually(lambda: done == [1])
    hub.stop()


def test_jobs_of_users_that_have_nothing_to_do_are_forgotten(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurring_job, "_KEPT", 4)
    done: list[int] = []

    def steps(user: int) -> Steps:
        done.append(user)
        yield
        return None

    jobs = UserJobs(hub.context, steps)
    jobs._most = 4
    for user in range(100):
        jobs.wake(user)
        eventually(lambda: done[-1:] == [user] and not hub.context.running.work.waits)  # noqa: B023
        gevent.sleep(0)
    assert done == list(range(100))
    assert len(jobs._jobs) <= 20
