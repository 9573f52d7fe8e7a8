"""Tasks that share a client: one reads for all, and each waits until its deadline."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest
from clients.makers import run
from support import PATIENCE

from sbuslib.clients import aio_lead
from sbuslib.clients.aio_lead import TaskLead


def nothing() -> None: ...


def never() -> bool:
    return False


def test_a_task_takes_the_lead_and_the_next_waits_until_it_is_given_back() -> None:
    async def test() -> None:
        lead = TaskLead()
        assert await lead.take(never, nothing, None)
        with pytest.raises(TimeoutError):
            await lead.take(never, nothing, monotonic() + 0.001)
        following = asyncio.create_task(lead.take(never, nothing, monotonic() + PATIENCE))
        await asyncio.sleep(0)
        lead.give_back()
        assert await following

    run(test())


def test_each_task_waits_until_its_own_deadline() -> None:
    async def test() -> None:
        lead = TaskLead()
        assert await lead.take(never, nothing, None)

        async def wait(seconds: float) -> None:
            deadline = monotonic() + seconds
            with pytest.raises(TimeoutError):
                await lead.take(never, nothing, deadline)
            assert monotonic() >= deadline

        longest = asyncio.create_task(lead.take(never, nothing, monotonic() + 10 * PATIENCE))
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*map(wait, (0.02, 0.01, 0.03, 0.01)))
        lead.give_back()
        assert await longest, "who gave up is not chosen to read"

    run(test())


def test_a_deadline_that_is_far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        lead = TaskLead()
        done: asyncio.Future[bool | None] = asyncio.Future()
        done.set_result(True)
        assert await lead.wait(done, monotonic() + 1e9)
        assert lead._timer is not None
        assert lead._timer.when() <= asyncio.get_running_loop().time() + aio_lead.LONGEST
        monkeypatch.setattr(aio_lead, "LONGEST", 0.001)
        lead = TaskLead()
        deadline = monotonic() + 0.01
        with pytest.raises(TimeoutError):
            await lead.wait(asyncio.Future(), deadline)
        assert monotonic() >= deadline

    run(test())


def test_a_task_whose_time_is_over_waits_no_more_and_lets_others_run() -> None:
    async def test() -> None:
        lead = TaskLead()
        others: list[str] = []
        asyncio.get_running_loop().call_soon(others.append, "ran")
        here: asyncio.Future[bool | None] = asyncio.Future()
        here.set_result(True)
        with pytest.raises(TimeoutError):  # or packets for others, which come all the time, would keep a task for ever
            await lead.wait(here, monotonic())
        assert others == ["ran"]

    run(test())


def test_a_task_that_is_cancelled_as_its_time_is_over() -> None:
    async def test() -> None:
        lead = TaskLead()
        assert await lead.take(never, nothing, None)
        deadline = monotonic() + 0.001
        tasks = [asyncio.create_task(lead.take(never, nothing, deadline)) for _ in range(2)]
        following = asyncio.create_task(lead.take(never, nothing, monotonic() + PATIENCE))
        while not tasks[0].done():
            await asyncio.sleep(0)
            if monotonic() > deadline:
                tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], TimeoutError)
        assert isinstance(results[1], TimeoutError | asyncio.CancelledError)
        lead.give_back()
        assert await following

    run(test())
