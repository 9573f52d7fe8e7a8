"""Steps over all three clients: what goes into a mailbox, what into the inbox, and how a pattern ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from clients.makers import Make, MakeClient, run
from support import PATIENCE, HubThread

from sbuslib import Hub, aio
from sbuslib.errors import KeyFormatError
from sbuslib.patterns.steps import Call, Close, Mailbox, Open, Publish, PublishMany, Steps, Sync, Wait, take
from sbuslib.wire.packets import Message


def echo_once(mailbox: Mailbox, shout: Callable[[bytes], Any]) -> Steps[list[bytes]]:
    """Send three messages to oneself, and hand the payloads to a function of the application."""
    heard: list[bytes] = []
    yield from Open(mailbox)
    try:
        yield from Publish(b"in/1", b"a")
        yield from PublishMany([(b"in/2", b"b"), (b"in/3", b"c")])
        assert (yield from Sync()) == "local"
        while len(heard) < 3:
            message = yield from take(mailbox, PATIENCE)
            assert message is not None
            heard.append((yield from Call(shout, message.payload)))
        assert (yield from take(mailbox, 0.01)) is None
        assert not (yield from Wait(lambda: False, 0.01))
    finally:
        yield from Close(mailbox)
    assert (yield from take(mailbox)) is None
    return heard


def test_a_pattern_runs_over_the_clients_that_block(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"other", b"in/2")
    client.publish(b"other", b"1")
    assert client.perform(echo_once(Mailbox(b"in/"), bytes.upper)) == [b"A", b"B", b"C"]
    # Nothing else that came is lost, and what the application wants itself comes into the inbox, too.
    assert client.receive(PATIENCE) == Message(b"other", b"1")
    assert client.receive(PATIENCE) == Message(b"in/2", b"b")
    client.publish(b"in/1")
    client.publish(b"other", b"2")
    assert client.receive(PATIENCE) == Message(b"other", b"2")


def test_a_pattern_runs_over_asyncio_where_functions_may_be_awaited(server: HubThread, address: str) -> None:
    async def shout(payload: bytes) -> bytes:
        return payload.upper()

    async def test() -> None:
        async with aio.Client(address) as client:
            await client.subscribe(b"other")
            await client.publish(b"other", b"1")
            for function in (shout, bytes.upper):
                assert await client.perform(echo_once(Mailbox(b"in/"), function)) == [b"A", b"B", b"C"]
            assert await client.receive(PATIENCE) == Message(b"other", b"1")
            with pytest.raises(KeyFormatError):
                await client.perform(echo_once(Mailbox(b"in\0"), shout))

    run(test())


def test_an_error_of_a_step_reaches_the_pattern(server: HubThread, make: Make) -> None:
    client, mailbox = make(), Mailbox(b"a")

    def pattern() -> Steps[str]:
        with pytest.raises(KeyFormatError):
            yield from Publish(b"\0", b"")
        try:
            yield from Open(Mailbox(b"\0"))
        except KeyFormatError:
            yield from Open(mailbox)
        with pytest.raises(ZeroDivisionError):
            yield from Call(lambda: 1 // 0)
        yield from Close(mailbox)
        return "done"

    assert client.perform(pattern()) == "done"


def test_a_caller_that_gives_up_has_its_pattern_clean_up(server: HubThread, address: str) -> None:
    from sbuslib import Client

    with Client(address) as client:
        mailbox = Mailbox(b"a")

        def pattern() -> Steps[None]:
            yield from Open(mailbox)
            try:
                yield from take(mailbox)
            finally:
                yield from Close(mailbox)

        with pytest.raises(gevent.Timeout), gevent.Timeout(0.01):
            client.perform(pattern())
        assert mailbox.closed
        client.subscribe(b"a")
        client.publish(b"a", b"x")
        assert client.receive(PATIENCE).payload == b"x"


def test_closing_a_mailbox_ends_who_waits_for_it(server: HubThread, make: Make) -> None:
    client, mailbox = make(), Mailbox(b"a")
    heard: list[bytes] = []

    def pattern() -> Steps[None]:
        while (message := (yield from take(mailbox))) is not None:
            heard.append(message.payload)

    client.open_mailbox(mailbox)
    waiting = [client.spawn(lambda: client.perform(pattern())) for _ in range(3)]
    client.publish(b"a", b"x")
    client.sync()
    client.close_mailbox(mailbox)
    for one in waiting:
        one.join(PATIENCE)
    assert heard == [b"x"]


def test_a_mailbox_is_bounded() -> None:
    mailbox = Mailbox(b"", messages=3, size=10)
    for payload in (b"12345", b"1234567", b"12345", b"", b""):
        mailbox.put(Message(b"k", payload))
    assert mailbox.lost == 2
    assert [mailbox.take() for _ in range(4)] == [Message(b"k", b"12345")] * 2 + [Message(b"k", b""), None]
    mailbox.put(Message(b"k", b"1234567890"))
    assert len(mailbox.messages) == 1


def test_patterns_work_with_a_client_of_a_hub_in_the_same_process(hub: Hub) -> None:
    with hub.client() as client:
        assert client.perform(echo_once(Mailbox(b"in/"), bytes.upper)) == [b"A", b"B", b"C"]
        hub.publish(b"x")


def test_a_mailbox_outlives_a_reconnection(address: str, client: MakeClient) -> None:
    mailbox = Mailbox(b"a")
    with Hub(address):
        one = client(reconnect=True)
        one.open_mailbox(mailbox)
    with Hub(address):
        one.publish(b"a", b"x")  # which may find that the hub has gone, and connects again
        one.sync()
        one.publish(b"a", b"y")
        while (message := one.perform(take(mailbox, PATIENCE))) != Message(b"a", b"y"):
            assert message == Message(b"a", b"x")
