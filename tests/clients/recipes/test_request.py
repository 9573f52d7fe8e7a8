"""Request and reply over all three clients: answers, errors, and faults."""

from __future__ import annotations

import logging
from itertools import pairwise
from threading import Lock
from typing import Any

import pytest
from clients.drivers import Bus, script
from support import PATIENCE, HubThread, own_key

from sbuslib.clients.recipes.request import Reply, Request, Requester
from sbuslib.errors import (
    PayloadError,
    ReplyError,
)
from sbuslib.limits import PACKET_BYTES


def upper(question: Request) -> bytes:
    return question.payload.upper()


def test_the_number_of_a_question_tells_nothing_of_the_next() -> None:
    requester = Requester(own_key() + b"/reply/" + b"0" * 32, Lock)
    numbers = [requester.ask(1)[0] for _ in range(100)]
    assert len({later - earlier for earlier, later in pairwise(numbers)}) == 99


@script
async def test_a_question_is_answered(bus: Bus, server: HubThread) -> None:
    one, other = await bus.client(), await bus.client()
    await one.subscribe(b"news")
    async with other.serve(b"svc/", upper):
        await one.publish(b"news", b"1")
        for number in range(50):
            assert await one.request(b"svc/%d" % number, b"y%d" % number) == b"Y%d" % number
        assert await one.request(b"svc/", timeout=None) == b""
        assert await other.request(b"svc/own", b"x") == b"X"
        with pytest.raises(PayloadError):
            await one.request(b"svc/", bytes(PACKET_BYTES))
    (requester,) = bus.core(one)._core._requesters.values()
    assert not requester._pending
    # Nothing else that came was lost, and no answer is left.
    assert (await one.receive(timeout=PATIENCE)).payload == b"1"
    for client in (one, other):
        with pytest.raises(TimeoutError):
            await client.receive(timeout=0)


@script
async def test_an_error_of_the_server_is_logged_and_its_type_is_raised_where_it_was_asked(
    bus: Bus, server: HubThread, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = await bus.client(), await bus.client()

    def fail(question: Request) -> Any:
        match question.payload:
            case b"none":
                return None
            case b"long":
                return bytes(PACKET_BYTES)
            case b"told":
                raise ReplyError("told: é" + "x" * 10_000)
        raise ValueError("wrong")

    async with other.serve(b"svc", fail):
        for payload, text in ((b"x", "ValueError"), (b"none", "TypeError"), (b"long", "ValueError")):
            with (
                caplog.at_level(logging.ERROR, "sbuslib.clients.recipes"),
                pytest.raises(ReplyError, match=f"^{text}$"),
            ):
                await one.request(b"svc", payload)
        with pytest.raises(ReplyError, match="told: é") as caught:
            await one.request(b"svc", b"told")
        assert len(str(caught.value)) < 5_000
    failed, none, long = caplog.records
    assert (failed.getMessage(), failed.exc_info is not None) == ("a question under svc failed", True)
    assert "bytes, not" not in failed.getMessage()
    assert "not bytes" in str(none.exc_info[1] if none.exc_info else "")
    assert "409" not in long.getMessage()


@script
async def test_all_servers_answer_who_are_asked_together(bus: Bus, server: HubThread) -> None:
    one, two, three = await bus.client(), await bus.client(), await bus.client()

    def fail(question: Request) -> bytes:
        raise ValueError("no")

    async with two.serve(b"svc", upper), three.serve(b"svc", upper):
        answers = await one.request_many(b"svc", b"x", wait=PATIENCE, most=2)
        assert answers == [Reply(b"X", own_key())] * 2
        async with three.serve(b"svc", fail):
            answers = await one.request_many(b"svc", b"x", wait=PATIENCE, most=3)
            assert sorted(answer.error or "" for answer in answers) == ["", "", "ValueError"]
            (failed,) = (answer for answer in answers if answer.error)
            with pytest.raises(ReplyError, match="ValueError"):
                _ = failed.payload
        assert await one.request(b"svc", b"y") == b"Y"  # one answer is taken, the other dropped
    assert await one.request_many(b"svc", wait=0.01) == []


@script
async def test_64_questions_in_flight_on_one_client(bus: Bus, server: HubThread) -> None:
    one, other = await bus.client(), await bus.client()

    async def slowly(question: Request) -> bytes:
        await bus.core(other)._connection.runtime.sleep(0.001)
        return question.payload.upper()

    async def ask(number: int) -> list[bytes]:
        return [await one.request(b"svc", b"x%d" % (number + turn), timeout=PATIENCE) for turn in range(3)]

    for function, workers in ((upper, 1), (upper, 8), (lambda question: bus.carried_out(slowly(question)), 4)):
        async with other.serve(b"svc", function, workers=workers):
            requester = [bus.spawn(ask(number)) for number in range(64)]
            answers = [await each for each in requester]
        assert answers == [[b"X%d" % (number + turn) for turn in range(3)] for number in range(64)]
