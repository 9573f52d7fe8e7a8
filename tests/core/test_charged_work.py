"""Work that is done in turns of the user who caused it."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest
from support import eventually

from sbuslib.core.charged_work import ChargedWork
from sbuslib.core.scheduler import Scheduler


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


def nothing() -> None:
    pass


@pytest.mark.parametrize("turn_time", [0.0, 1e6])
def test_the_jobs_of_a_user_take_turns_until_all_are_done(scheduler: Scheduler, turn_time: float) -> None:
    work, done = ChargedWork(scheduler, turn_time), list[str]()
    work.add(1, job(done, "a", 3), nothing)
    work.add(1, job(done, "b", 2), nothing)
    assert work.waits
    assert done == []  # never at once
    eventually(lambda: not work.waits)
    assert done == ["a", "b", "a", "b", "a"]


def test_a_user_with_much_work_does_not_keep_another_waiting(scheduler: Scheduler) -> None:
    work, done = ChargedWork(scheduler, 0.0), list[str]()
    work.add(1, job(done, "much", 100_000), nothing)
    work.add(2, job(done, "little", 1), nothing)
    eventually(lambda: "little" in done)
    assert done.count("much") < 100_000
    work.clear()
    assert not work.waits


def test_a_job_says_that_it_has_ended_whether_it_was_done_failed_or_was_cleared(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Iterator[None]:
        yield
        raise RuntimeError("a fault of ours")

    told: list[object] = []
    monkeypatch.setattr(gevent.get_hub(), "handle_error", lambda context, kind, value, trace: told.append(value))
    work, done, ended = ChargedWork(scheduler, 0.0), list[str](), list[str]()
    work.add(1, fail(), lambda: ended.append("bad"))
    work.add(1, job(done, "good", 5), lambda: ended.append("good"))
    eventually(lambda: not work.waits)
    assert done == ["good"] * 5, "although the other one failed"
    assert [str(error) for error in told] == ["a fault of ours"]
    work.add(1, job(done, "late", 5), lambda: ended.append("late"))
    work.clear()
    for _ in range(10):
        gevent.idle()
    assert "late" not in done
    assert ended == ["bad", "good", "late"]


def test_what_begins_as_a_job_ends_is_done_unless_all_work_is_cleared(scheduler: Scheduler) -> None:
    work, done = ChargedWork(scheduler, 0.0), list[str]()
    work.add(1, job(done, "a", 1), lambda: work.add(1, job(done, "b", 1), nothing))
    eventually(lambda: not work.waits)
    assert done == ["a", "b"]
    work.add(1, job(done, "c", 1), lambda: work.add(1, job(done, "d", 1), nothing))
    work.clear()
    assert not work.waits


def test_what_is_added_once_all_work_was_cleared_ends_at_once(scheduler: Scheduler) -> None:
    """Else a job that begins anew as it ends would begin for ever."""
    work, ended = ChargedWork(scheduler, 0.0), list[str]()

    def end() -> None:
        ended.append("again")
        if len(ended) < 100:
            work.add(1, job([], "a", 1), lambda: ended.append("late"))

    work.add(1, job([], "a", 1), end)
    work.clear()
    assert ended == ["again", "late"]
    assert not work.waits


@pytest.mark.parametrize("is_cleared", [False, True])
def test_a_dictionary_is_emptied_in_steps_and_all_of_it_at_the_end(scheduler: Scheduler, is_cleared: bool) -> None:
    work = ChargedWork(scheduler, 0.0)
    rest = dict.fromkeys(range(10))
    work.empty(1, rest, rest.pop, 4)
    assert list(rest) == [4, 5, 6, 7, 8, 9], "the first are taken out at once"
    if is_cleared:
        work.clear()
    eventually(lambda: not rest)
    assert not work.waits
