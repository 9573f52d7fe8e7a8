"""Work that is done in turns of the user who caused it."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest
from support import eventually

from sbuslib.core.scheduler import Scheduler
from sbuslib.core.user_work import UserWork


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler(gevent.get_hub().loop)
    made.several = True
    yield made
    made.close()


def job(done: list[str], name: str, steps: int) -> Iterator[None]:
    for _ in range(steps):
        done.append(name)
        yield


@pytest.mark.parametrize("turn_time", [0.0, 1e6])
def test_the_jobs_of_a_user_take_turns_until_all_are_done(scheduler: Scheduler, turn_time: float) -> None:
    work, done = UserWork(scheduler, turn_time), list[str]()
    work.add(1, job(done, "a", 3))
    work.add(1, job(done, "b", 2))
    assert work.waits
    assert done == []  # never at once
    eventually(lambda: not work.waits)
    assert done == ["a", "b", "a", "b", "a"]


def test_a_user_with_much_work_does_not_keep_another_waiting(scheduler: Scheduler) -> None:
    work, done = UserWork(scheduler, 0.0), list[str]()
    work.add(1, job(done, "much", 100_000))
    work.add(2, job(done, "little", 1))
    eventually(lambda: "little" in done)
    assert done.count("much") < 100_000
    work.clear()
    assert not work.waits


def test_a_job_that_fails_ends_alone(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Iterator[None]:
        yield
        raise RuntimeError("a fault of ours")

    told: list[object] = []
    monkeypatch.setattr(gevent.get_hub(), "handle_error", lambda context, kind, value, trace: told.append(value))
    work, done = UserWork(scheduler, 0.0), list[str]()
    work.add(1, fail())
    work.add(1, job(done, "good", 5))
    eventually(lambda: not work.waits)
    assert done == ["good"] * 5
    assert [str(error) for error in told] == ["a fault of ours"]


def test_work_that_was_cleared_is_not_done(scheduler: Scheduler) -> None:
    work, done = UserWork(scheduler, 0.0), list[str]()
    work.add(1, job(done, "a", 5))
    work.clear()
    for _ in range(10):
        gevent.idle()
    assert done == []
