"""A server of requests over all three clients: what it takes, refuses, answers and gives up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import gevent
import pytest
from clients.makers import Make, MakeClient, run, spawn, until
from gevent.event import Event
from support import PATIENCE, HubThread, choose, eventually, own_key
from worlds import STRANGER, World

from sbuslib import Client, aio, blocking
from sbuslib.clients import operations
from sbuslib.clients.endpoint import Endpoint
from sbuslib.clients.recipes import server as server_module
from sbuslib.clients.recipes.request import Request
from sbuslib.errors import (
    DisconnectedError,
    NoServerError,
    ReplyError,
)


def upper(question: Request) -> bytes:
    return question.payload.upper()


def test_a_server_learns_key_sender_and_deadline(server: HubThread, make: Make) -> None:
    one, other = make(), make()
    choose(other, b"senders/on")
    seen: list[Request] = []

    def answer(question: Request) -> bytes:
        seen.append(question)
        return b""

    with other.serve(b"svc/*", answer):
        one.request(b"svc/1", b"p", timeout=None)
        one.request(b"svc/2", b"p", timeout=PATIENCE)
    assert [(question.key, question.payload, question.sender) for question in seen] == [
        (b"svc/1", b"p", own_key()),
        (b"svc/2", b"p", own_key()),
    ]
    assert seen[0].until is None
    assert seen[1].until is not None


def waits(client: Endpoint) -> tuple[Callable[[], None], Callable[[], None]]:
    """A function that waits as this kind of client does, and one that lets it go on."""
    event: Any = threading.Event() if isinstance(client, blocking.Client) else gevent.event.Event()

    def wait() -> None:
        assert event.wait(PATIENCE)

    return wait, event.set


def test_a_question_whose_caller_gave_up_is_not_answered(
    server: HubThread, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = 0.0
    monkeypatch.setattr(operations, "monotonic", lambda: monotonic() + late)
    one, other, another = make(), make(), make()
    wait, go = waits(one)
    seen: list[bytes] = []

    def answer(question: Request) -> bytes:
        seen.append(question.payload)
        wait()
        return b""

    def ask(payload: bytes) -> None:
        with suppress(DisconnectedError, TimeoutError):  # its clock is late, too
            another.request(b"svc", payload, timeout=2 * PATIENCE)

    with other.serve(b"svc", answer) as service:
        requester = [spawn(another, partial(ask, b"first"))]
        while not seen:
            one.sync()
        requester.append(spawn(another, partial(ask, b"late")))
        answering = service._core._works.__self__
        while not answering._jobs:
            one.sync()
        late = 3 * PATIENCE
        go()
        assert one.request(b"svc", b"last") == b""
        another.close()
        for each in requester:
            each.join(PATIENCE)
    assert seen == [b"first", b"last"]


def test_a_slow_server_answers_what_it_took_also_at_its_end(server: HubThread, make: Make) -> None:
    one, other = make(), make()
    wait, go = waits(one)
    results: list[bytes] = []
    begun: list[bytes] = []

    def answer(question: Request) -> bytes:
        begun.append(question.payload)
        wait()
        return b"done"

    def ask() -> None:
        with suppress(NoServerError, TimeoutError):  # on a busy machine it may come too late to be taken
            results.append(one.request(b"svc", timeout=PATIENCE))

    with other.serve(b"svc", answer):
        requester = [spawn(one, ask) for _ in range(3)]
        while not begun:
            one.sync()
        with pytest.raises(TimeoutError):  # its only worker is busy
            one.request(b"svc", b"quick", timeout=0.01)
        other.sync()
        assert results == []
        go()
    for each in requester:
        each.join(PATIENCE)
    assert results == [b"done"] * len(results)
    assert results


def test_too_many_questions_are_refused(server: HubThread, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MOST_QUESTIONS", 2)
    one, other = make(), make()
    wait, go = waits(one)

    def answer(question: Request) -> bytes:
        wait()
        return b"done"

    results: list[object] = []

    def ask() -> None:
        try:
            results.append(one.request(b"svc", timeout=PATIENCE))
        except ReplyError as error:
            results.append(str(error))

    with other.serve(b"svc", answer):
        requester = [spawn(one, ask) for _ in range(20)]
        while not results:
            one.sync()
        go()
        for each in requester:
            each.join(PATIENCE)
    assert set(results) == {b"done", "the server is busy: too many questions wait"}


def test_with_asyncio_a_function_ends_when_its_caller_has_given_up(server: HubThread, address: str) -> None:
    ended: list[bytes] = []

    async def answer(question: Request) -> bytes:
        try:
            await asyncio.sleep(0 if question.payload == b"quick" else 10 * PATIENCE)
        except asyncio.CancelledError:
            ended.append(question.payload)
            raise
        return b"done"

    async def test() -> None:
        async with (
            aio.Client(address) as one,
            aio.Client(address) as other,
            other.serve(b"svc", answer, workers=1),
        ):
            while not ended:  # on a busy machine it may not even have begun
                with suppress(TimeoutError, ReplyError):
                    await one.request(b"svc", b"slow", timeout=0.1)
            assert await one.request(b"svc", b"quick", timeout=PATIENCE) == b"done", "its worker is free again"

    run(test())
    assert set(ended) == {b"slow"}


def test_with_gevent_a_function_ends_when_its_caller_has_given_up(
    server: HubThread, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[bytes] = []

    def answer(question: Request) -> bytes:
        try:
            gevent.sleep(0 if question.payload == b"quick" else 10 * PATIENCE)
        except gevent.Timeout:
            ended.append(question.payload)
            raise
        with suppress(gevent.Timeout), gevent.Timeout(0.001):  # one of its own
            gevent.sleep(PATIENCE)
        return b"done"

    with Client(address) as one, Client(address) as other, other.serve(b"svc", answer, workers=1):
        while not ended:  # on a busy machine it may not even have begun
            with suppress(TimeoutError, ReplyError):
                one.request(b"svc", b"slow", timeout=0.1)
        assert one.request(b"svc", b"quick", timeout=PATIENCE) == b"done", "its worker is free again"
    assert set(ended) == {b"slow"}
    assert not [record for record in caplog.records if record.exc_info], "that is no error of the server"


def test_a_task_that_is_cancelled_asks_no_more(server: HubThread, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as one, aio.Client(address) as other:
            never = asyncio.Event()

            async def answer(question: Request) -> bytes:
                if question.payload:
                    return b"x"
                await never.wait()
                return b""

            async with other.serve(b"svc", answer, workers=2):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await one.request(b"svc", timeout=PATIENCE)
                assert await one.request(b"svc", b"1") == b"x"
                never.set()
            (requester,) = one._core._requesters.values()
            assert not requester._pending

    run(test())


def test_a_server_begins_with_no_question_of_a_task_that_was_cancelled(server: HubThread, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as one, aio.Client(address) as other:
            go, begun = asyncio.Event(), list[bytes]()

            async def answer(question: Request) -> bytes:
                begun.append(question.payload)
                await go.wait()
                return b""

            async with other.serve(b"svc", answer, workers=1):
                first = asyncio.create_task(one.request(b"svc", b"first", timeout=PATIENCE))
                await until(lambda: begun)
                given_up = [asyncio.create_task(one.request(b"svc", b"x", timeout=None)) for _ in range(100)]
                await asyncio.sleep(0)
                for task in given_up[:50]:  # some before they were sent
                    task.cancel()
                await one.sync()
                for task in given_up[50:]:
                    task.cancel()
                assert {type(result) for result in await asyncio.gather(*given_up, return_exceptions=True)} == {
                    asyncio.CancelledError
                }
                last = asyncio.create_task(one.request(b"svc", b"last", timeout=PATIENCE))
                await one.sync()
                await other.sync()
                go.set()
                assert [await first, await last] == [b"", b""]
            assert begun == [b"first", b"last"]

    run(test())


def test_a_greenlet_that_gives_up_what_is_in_work_is_not_answered_and_the_next_is(
    server: HubThread, client: MakeClient
) -> None:
    one, other = client(), client()
    began, go, seen = Event(), Event(), list[bytes]()

    def answer(question: Request) -> bytes:
        seen.append(question.payload)
        began.set()
        go.wait()
        return question.payload

    with other.serve(b"svc", answer) as service:
        requester = [gevent.spawn(one.request, b"svc", payload, timeout=PATIENCE) for payload in (b"1", b"2", b"3")]
        began.wait(PATIENCE)
        jobs = service._core._works.__self__._jobs
        eventually(lambda: len(jobs) == 2)
        for each in requester[:2]:
            each.kill()
        one.sync()
        other.sync()
        go.set()
        assert requester[2].get(timeout=PATIENCE) == b"3"
    assert seen == [b"1", b"3"]
    assert not service._core._works.__self__._waiting


CALLER = """
import sys, threading
from sbuslib.blocking import Client
client = Client(sys.argv[1])
for number in range(20):
    threading.Thread(target=client.request, args=(b"svc", b"killed"), kwargs={"timeout": None}).start()
"""


def test_a_server_begins_with_no_question_of_a_caller_that_was_killed(
    server: HubThread, make: Make, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(server_module, "LEFT_SECONDS", 0.0)
    one, other = make(), make()
    wait, go = waits(one)
    seen: list[bytes] = []

    def answer(question: Request) -> bytes:
        seen.append(question.payload)
        wait()
        return b""

    with other.serve(b"svc", answer) as service:
        jobs = service._core._works.__self__._jobs
        first = spawn(one, partial(one.request, b"svc", b"first", timeout=PATIENCE))
        while not seen:
            one.sync()
        patterns = server.call(server.hub.statistics).patterns
        with subprocess.Popen([sys.executable, "-c", CALLER, address]) as process:
            while len(jobs) < 20:
                one.sync()
            process.kill()

        # A hub that has just begun says that it does not know who has gone, and its patterns are forgotten in turns.
        while server.call(server.hub.statistics).patterns > patterns:
            pass
        while not server.call(lambda: server.hub.tree.startup_barrier.done):
            pass
        go()
        assert one.request(b"svc", b"last", timeout=PATIENCE) == b""
        first.join(PATIENCE)
    assert seen == [b"first", b"last"]


def test_a_caller_that_is_away_for_a_moment_is_answered(
    server: HubThread, client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "LOOK_SECONDS", 0.0)
    one, other = client(), client()
    looks = iter([False, True])

    async def is_wanted(key: bytes, *, timeout: float | None = None) -> bool:
        return next(looks, True)

    monkeypatch.setattr(other._core, "is_wanted", is_wanted)
    with other.serve(b"svc", upper):
        assert [one.request(b"svc", payload, timeout=PATIENCE) for payload in (b"a", b"b")] == [b"A", b"B"]
    assert next(looks, None) is None


def test_questions_of_users_take_turns(world: World) -> None:
    world.hub("bus")
    serving, requester = world.client("bus"), world.client("bus")
    world.uids["bus"] = STRANGER
    greedy = world.client("bus")
    answered: list[bytes] = []
    began, go = Event(), Event()

    def answer(question: Request) -> bytes:
        began.set()
        go.wait()
        answered.append(question.payload)
        return b""

    with serving.serve(b"svc", answer) as service:
        jobs = service._core._works.__self__._jobs
        first = gevent.spawn(greedy.request, b"svc", b"0", timeout=PATIENCE)
        began.wait(PATIENCE)
        others = [gevent.spawn(greedy.request, b"svc", b"%d" % number, timeout=PATIENCE) for number in range(1, 50)]
        eventually(lambda: len(jobs) == 49)
        others.append(gevent.spawn(requester.request, b"svc", b"modest", timeout=PATIENCE))
        eventually(lambda: len(jobs) == 50)
        go.set()
        gevent.joinall([first, *others], timeout=PATIENCE, raise_error=True)
    assert answered.index(b"modest") <= 2
    assert len(answered) == 51
