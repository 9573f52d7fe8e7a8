"""Callers that share a client: one reads for all."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import nullcontext
from time import monotonic
from types import coroutine

import pytest
from clients.makers import run as run_in_event_loop
from support import PATIENCE

from sbuslib import aio, blocking
from sbuslib.clients.leadership import LeaderFollowers
from sbuslib.clients.runtime import run
from sbuslib.errors import DisconnectedError


def nothing() -> None: ...


def never() -> bool:
    return False


async def take(
    leadership: LeaderFollowers,
    ready: Callable[[], bool] = never,
    deadline: float | None = None,
    alive: threading.Lock | None = None,
) -> bool:
    """Take the lead, and keep it for as long as ``alive``, which is locked, lives."""
    if alive is None:
        alive = threading.Lock()
        alive.acquire()
    return await leadership.lead(alive, ready, nothing, deadline)


def blocking_lead() -> LeaderFollowers:
    return LeaderFollowers(threading.RLock(), blocking._Waiter)


def test_one_caller_takes_the_lead_and_the_next_waits_until_it_is_given_back() -> None:
    leadership, alive = blocking_lead(), threading.Lock()
    taken: queue.SimpleQueue[bool] = queue.SimpleQueue()
    next_caller = threading.Thread(target=lambda: taken.put(run(take(leadership))))
    with alive:
        assert run(take(leadership, alive=alive))
        with pytest.raises(TimeoutError):
            run(take(leadership, deadline=monotonic()))
        next_caller.start()
    leadership.pass_on()
    assert taken.get(timeout=PATIENCE)
    next_caller.join()


def test_a_caller_is_told_when_there_is_nothing_to_wait_for() -> None:
    def ended() -> None:
        raise DisconnectedError("ended")

    leadership = blocking_lead()
    with pytest.raises(DisconnectedError):
        run(leadership.lead(threading.Lock(), never, ended, None))
    assert not leadership.taken


class Woken:
    """A waiter that only tells whether it was woken, and waits for ever."""

    was_woken = False

    def wake(self) -> None:
        self.was_woken = True

    async def wait(self, timeout: float | None) -> bool:
        return await suspended()


@coroutine
def suspended() -> Generator[None, bool, bool]:
    return (yield)


class Following:
    """A caller that waits for the lead."""

    def __init__(self, leadership: LeaderFollowers, ready: Callable[[], bool] = never) -> None:
        self.leadership = leadership
        self.work = self._take(ready)
        self.work.send(None)
        self.waiter = [*leadership._followers][-1]

    async def _take(self, ready: Callable[[], bool]) -> bool:
        alive = threading.Lock()
        try:
            with alive:
                return await self.leadership.lead(alive, ready, nothing, None)
        finally:
            self.leadership.pass_on(has_read=False)

    @property
    def was_woken(self) -> bool:
        assert isinstance(self.waiter, Woken)
        return self.waiter.was_woken

    def go_on(self) -> bool:
        """Whether it has the lead now."""
        with pytest.raises(StopIteration) as end:
            self.work.send(True)
        return bool(end.value.value)


def test_when_the_chosen_caller_gives_up_the_next_one_is_chosen() -> None:
    leadership, alive = LeaderFollowers(nullcontext(), Woken), threading.Lock()
    with alive:
        assert run(take(leadership, alive=alive))
        first, second = Following(leadership), Following(leadership)
    leadership.pass_on()
    assert (first.was_woken, second.was_woken) == (True, False)
    first.work.close()
    assert second.was_woken
    assert second.go_on()


def test_a_chosen_caller_that_needs_no_lead_passes_it_on() -> None:
    leadership, alive = LeaderFollowers(nullcontext(), Woken), threading.Lock()
    has_come: list[bool] = []
    with alive:
        assert run(take(leadership, alive=alive))
        first, second = Following(leadership, lambda: bool(has_come)), Following(leadership)
    leadership.pass_on()
    has_come.append(True)
    assert not first.go_on()
    assert second.was_woken
    second.work.close()


# -- deadlines of tasks -----------------------------------------------------------------------------


def test_a_task_whose_time_is_over_waits_no_more_and_lets_others_run() -> None:
    async def test() -> None:
        others: list[str] = []
        asyncio.get_running_loop().call_soon(others.append, "ran")
        here: asyncio.Future[bool] = asyncio.Future()
        here.set_result(True)
        # Or packets for others, which come all the time, would keep a task for ever.
        assert not await aio._wait_for(here, 0)
        assert others == ["ran"]

    run_in_event_loop(test())


def test_a_task_that_is_cancelled_as_its_time_is_over() -> None:
    async def test() -> None:
        leadership, alive = LeaderFollowers(nullcontext(), aio._Waiter), threading.Lock()
        alive.acquire()
        assert await take(leadership, alive=alive)
        deadline = monotonic() + 0.001
        tasks = [asyncio.create_task(take(leadership, deadline=deadline)) for _ in range(2)]
        following = asyncio.create_task(take(leadership, deadline=monotonic() + PATIENCE))
        while not tasks[0].done():
            await asyncio.sleep(0)
            if monotonic() > deadline:
                tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], TimeoutError)
        assert isinstance(results[1], TimeoutError | asyncio.CancelledError)
        alive.release()
        leadership.pass_on()
        assert await following

    run_in_event_loop(test())
