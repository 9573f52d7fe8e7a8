"""Numbers that an operator sets, and waits: of each client, each verb and each part that takes a time limit."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from math import inf, nan
from typing import Any

import gevent
import msgspec
import pytest
from clients.drivers import Bus, script
from clients.verbs import ASKING, BEGINNING, RECEIVING, Limited
from support import HubThread

from sbuslib import Hub, Limits, Relay
from sbuslib.connecting import parse_url
from sbuslib.errors import NoServerError, UsageError
from sbuslib.kernel import sockets
from sbuslib.kernel.sockets import in_pieces, wait
from sbuslib.limits import CENTURY, ClientLimits, check_seconds
from sbuslib.tcp.large import send_large
from sbuslib.tcp.limits import TcpLimits
from sbuslib.tcp.peer import Peer

NO_SECONDS: tuple[Any, ...] = (nan, -1, -0.001, -inf, "1", b"")
LONG = (25 * 86_400.0, 10.0 * CENTURY, 10**300, inf)
"""More than fits into poll(2), into a lock."""

# -- what counts as seconds


def test_seconds_are_a_number_from_0_on_and_a_century_at_most() -> None:
    for seconds in NO_SECONDS:
        with pytest.raises(UsageError, match="wait is seconds from 0 on, or None, not"):
            check_seconds(seconds, "wait")
    assert [check_seconds(seconds, "wait") for seconds in (None, 0, 1.5, *LONG)] == [
        *(None, 0, 1.5, 25 * 86_400.0),
        *(CENTURY, CENTURY, CENTURY),
    ]


@pytest.mark.parametrize("kind", [Limits, ClientLimits, TcpLimits])
def test_no_limit_is_longer_than_a_century(kind: Any) -> None:
    times = [field.name for field in msgspec.structs.fields(kind) if isinstance(field.default, float)]
    assert times
    for name in times:
        for seconds in (nan, -1.0, inf, 1.1 * CENTURY):
            with pytest.raises(UsageError, match=name):
                kind(**{name: seconds})


# -- each verb of each client

receive = RECEIVING["receive"]


async def later(verb: Limited, client: Any, seconds: Any) -> Any:
    """To be called beside the script: the clients that block begin to wait when a verb is called."""
    return await verb(client, seconds)


@script
async def test_no_verb_takes_what_is_no_time(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    begun = [await begin(client) for begin in BEGINNING.values()]
    for seconds in NO_SECONDS:
        with pytest.raises(UsageError, match="timeout is seconds"):
            await bus.client(timeout=seconds)
        with pytest.raises(UsageError, match="timeout is seconds"):
            client.timeout = seconds
        for verb in (ASKING | RECEIVING).values():
            with pytest.raises(UsageError, match="is seconds from 0 on, or None, not"):
                await verb(client, seconds)
        for receiving in begun:
            with pytest.raises(UsageError, match="is seconds from 0 on, or None, not"):
                await receiving.receive(timeout=seconds)
        with pytest.raises(UsageError, match="timeout is seconds"):
            await client.files.send("k", b"", timeout=seconds)
        with pytest.raises(UsageError, match="timeout is seconds"):
            await client.files.receive("k", timeout=seconds)
    with pytest.raises(UsageError, match="timeout"):
        parse_url("sbus:///bus?timeout=nan")


@script
async def test_a_verb_waits_however_long_it_may(bus: Bus, server: HubThread) -> None:
    for seconds in LONG:
        client, other = await bus.client(timeout=seconds), await bus.client()
        for verb in ASKING.values():
            with suppress(NoServerError):
                await verb(client, seconds)

        await client.subscribe("k")
        for verb in RECEIVING.values():
            waiting = bus.spawn(later(verb, client, seconds))
            while not bus.core(client)._connection.leadership.taken:
                await other.sync()
            await other.publish("k")
            await waiting
        bus.core(client).close()  # or it would seem to serve the key


@script
async def test_of_callers_of_one_client_each_waits_however_long_it_may(bus: Bus, server: HubThread) -> None:
    client, other = await bus.client(), await bus.client()
    one, two = await client.subscribe("1"), await client.subscribe("2")
    for seconds in LONG:
        waiting = [bus.spawn(later(receive, subscription, seconds)) for subscription in (one, two)]
        while not (bus.core(client)._connection.leadership._followers):
            await other.sync()
        await other.publish_many([("1", b""), ("2", b"")])
        for each in waiting:
            await each


def test_a_wait_is_in_pieces() -> None:
    """As long as poll(2), or a lock, can wait at once."""
    waits: list[float] = []
    assert not in_pieces(waits.append, 0.0, 0.001)
    assert waits == [0.0]
    assert not in_pieces(waits.append, 0.005, 0.001)
    assert len(waits) > 5
    assert max(waits) <= 0.001
    assert in_pieces(lambda seconds: True, CENTURY, 0.001)
    reading, writing = os.pipe()
    os.write(writing, b"x")
    for seconds in (sockets.POLL_SECONDS, 25 * 86_400.0, CENTURY, None):
        assert wait(reading, select.POLLIN, seconds)
    os.close(reading)
    os.close(writing)


# -- what else waits


def test_no_part_of_a_program_takes_what_is_no_time(address: str, folder: str) -> None:
    """A timer of NaN would end all waits of an event loop, or its own turns."""
    with Hub(address) as hub, Hub(f"{folder}/low") as low, Relay(low, address) as relay, Peer("127.0.0.1:0") as peer:
        inbox, heard = hub.subscribe("k"), peer.subscribe("k")
        parts: dict[str, Callable[[Any], object]] = {
            "Hub.stop": hub.stop,
            "Hub.reviewed": hub.reviewed,
            "Inbox.receive": lambda seconds: inbox.receive(timeout=seconds),
            "Inbox.receive_many": lambda seconds: inbox.receive_many(timeout=seconds),
            "Relay.wait": relay.wait,
            "Relay.leave": relay.leave,
            "Peer.stop": peer.stop,
            "Peer.flush": peer.flush,
            "Peer.connect": lambda seconds: peer.connect("127.0.0.1:1", timeout=seconds),
            "Peer.wait_for_subscriber": lambda seconds: peer.wait_for_subscriber("k", timeout=seconds),
            "PeerInbox.receive": lambda seconds: heard.receive(timeout=seconds),
            "send_large": lambda seconds: send_large(peer, "k", b"", timeout=seconds),
        }
        for call in parts.values():
            for seconds in NO_SECONDS:
                with pytest.raises(UsageError, match="timeout is seconds from 0 on, or None, not"):
                    call(seconds)
        assert not hub.closed

        # However long it may be, it ends with what it waits for.
        for seconds in LONG:
            receiving = gevent.spawn(inbox.receive, timeout=seconds)
            gevent.sleep(0)
            hub.publish("k")
            receiving.get()
            relay.wait(seconds)
        low.stop(inf)
