"""Work that is done in turns of the user who caused it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import gevent
import pytest
from support import eventually

from sbuslib.core.quotas import Account
from sbuslib.core.scheduler import Scheduler
from sbuslib.core.user_work import UserWork
from sbuslib.limits import Limits


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler(gevent.get_hub().loop)
    made.several = True
    yield made
    made.close()


def worker(scheduler: Scheduler, left: Counter[int]) -> tuple[UserWork, list[int]]:
    """Work of which each user has so many pieces left; and whose pieces were done, in order."""
    done: list[int] = []

    def step(account: Account) -> bool:
        done.append(account.uid)
        left[account.uid] -= 1
        return left[account.uid] > 0

    return UserWork(scheduler, step), done


def test_work_is_done_piece_by_piece_until_none_is_left(scheduler: Scheduler) -> None:
    work, done = worker(scheduler, Counter({1: 5}))
    work.begin(Account(1, Limits()))
    assert work.waits
    assert done == []  # never at once
    eventually(lambda: not work.waits)
    assert done == [1] * 5


def test_a_turn_is_asked_once_however_often_work_begins(scheduler: Scheduler) -> None:
    work, done = worker(scheduler, Counter({1: 1}))
    account = Account(1, Limits())
    for _ in range(3):
        work.begin(account)
    eventually(lambda: not work.waits)
    assert done == [1]


def test_a_user_with_much_work_does_not_keep_another_waiting(scheduler: Scheduler) -> None:
    work, done = worker(scheduler, Counter({1: 100_000, 2: 1}))
    work.begin(Account(1, Limits()))
    work.begin(Account(2, Limits()))
    eventually(lambda: 2 in done)
    assert done.count(1) < 100_000
    work.end()


def test_work_that_was_ended_is_not_done(scheduler: Scheduler, settle: Callable[[], None]) -> None:
    work, done = worker(scheduler, Counter({1: 5}))
    work.begin(Account(1, Limits()))
    work.end()
    settle()
    assert done == []


@pytest.fixture
def settle() -> Callable[[], None]:
    def wait() -> None:
        for _ in range(10):
            gevent.idle()

    return wait
