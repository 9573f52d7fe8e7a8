"""What a client knows, began and waits for while its hub is away, half there, or stands still."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import gevent
import pytest
from clients.drivers import Bus, FakeHub, script
from support import PATIENCE, HubThread, own_key

from sbuslib import Limits, blocking
from sbuslib.clients.connection import ClientConnection
from sbuslib.clients.recipes.request import Request, encode_question
from sbuslib.errors import NoServerError, StateError
from sbuslib.limits import ClientLimits
from sbuslib.shares import Served

SWIFT = ClientLimits(reconnect_pause=0.001, reconnect_pause_most=0.002)
Verb: TypeAlias = Callable[[Any], Awaitable[Any]]

ASKING: dict[str, Verb] = {
    "statistics": lambda client: client.hub.statistics(),
    "clients": lambda client: client.hub.clients(),
    "patterns": lambda client: client.hub.patterns(),
    "links": lambda client: client.hub.links(),
    "why": lambda client: client.hub.why("k"),
    "watch_interest": lambda client: client.hub.watch_interest("k"),
    "presence": lambda client: client.presence("k"),
    "present": lambda client: client.present("k"),
    "subscribe of users": lambda client: client.subscribe("k", users=[0]),
    "request": lambda client: client.request("svc"),
    "submit": lambda client: client.queue("q").submit("k"),
    "status": lambda client: client.queue("q").status(),
}
"""Verbs that some hubs cannot do."""

OTHERS: dict[str, Verb] = {
    "whoami": lambda client: client.hub.whoami(),
    "reload": lambda client: client.hub.reload(),
    "sync": lambda client: client.sync(),
    "sync of the tree": lambda client: client.sync("tree"),
    "subscribe": lambda client: client.subscribe("k"),
    "on_message": lambda client: client.subscribe("k", on_message=print),
    "last values first": lambda client: client.subscribe("k", last=True),
    "last": lambda client: client.last("k"),
    "serve": lambda client: client.serve("k", lambda request: b""),
    "work": lambda client: client.queue("q").work(print),
    "take": lambda client: client.queue("q").take(),
    "frames": lambda client: client.frames.subscribe("k"),
    "descriptors": lambda client: client.descriptors.subscribe("k"),
    "files": lambda client: client.files.receive("k"),
}
"""Verbs that every hub answers."""

SENDING: dict[str, Verb] = {
    "publish": lambda client: client.publish("k"),
    "publish_many": lambda client: client.publish_many([("k", b"")]),
    "frame": lambda client: client.frames.publish("k", b"x"),
    "large frame": lambda client: client.frames.publish("k", bytes(200_000)),
    "descriptor": lambda client: client.descriptors.publish("k", 0),
}
"""Verbs that have done their part once the kernel has the packet."""

LIMIT = 0.05
LIMITED: dict[str, Verb] = {
    "receive": lambda client: client.receive(timeout=LIMIT),
    "receive_many": lambda client: client.receive_many(timeout=LIMIT),
    "request": lambda client: client.request("svc", timeout=LIMIT),
    "plain request": lambda client: client.request("svc", timeout=LIMIT, secret=False),
    "submit": lambda client: client.queue("q").submit("k", timeout=LIMIT),
    "submit_many": lambda client: client.queue("q").submit_many([("k", b"")], timeout=LIMIT),
    "status": lambda client: client.queue("q").status(timeout=LIMIT),
    "peek": lambda client: client.queue("q").peek(timeout=LIMIT),
    "purge": lambda client: client.queue("q").purge(timeout=LIMIT),
    "send": lambda client: client.files.send("k", b"x", timeout=LIMIT),
}
"""Verbs with a time limit of their own."""


@contextmanager
def silent(address: str) -> Iterator[None]:
    """A listener that accepts and answers nothing, as systemd's of a service that starts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        yield
    os.unlink(address)


@contextmanager
def hung(server: HubThread) -> Iterator[None]:
    """A hub that serves nobody meanwhile."""
    begun, end = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        end.wait(PATIENCE)

    hanging = threading.Thread(target=server.call, args=(hang,))
    hanging.start()
    begun.wait(PATIENCE)
    yield
    end.set()
    hanging.join()


def caller() -> object:
    """The thread, greenlet or task that runs."""
    with suppress(RuntimeError):
        return asyncio.current_task()
    return threading.get_ident(), gevent.getcurrent()


# -- what the hub can do --------------------------------------------------------------------------------


@script
async def test_what_the_last_hub_could_do_counts_until_the_next_one_has_said_otherwise(bus: Bus) -> None:
    with HubThread(bus.address, separator="."):
        clients = {name: await bus.client(reconnect=True, limits=SWIFT) for name in ASKING}
    with silent(bus.address):
        for name, client in clients.items():
            client.timeout = 0.01
            with pytest.raises(TimeoutError):
                await client.sync()
            with pytest.raises(TimeoutError):
                await ASKING[name](client)
            assert (client.hub.separator, bus.core(client).hub.can("presence")) == (b".", True)
            with pytest.raises(Exception, match="one segment"):
                client.queue("a.b")
            client.timeout = PATIENCE
    with HubThread(bus.address, separator="."):
        for name, client in clients.items():
            if name in ("request", "submit", "status"):
                with pytest.raises(NoServerError):
                    await ASKING[name](client)
            else:
                await ASKING[name](client)


@script
async def test_that_a_hub_cannot_do_something_is_said_of_that_hub_alone(bus: Bus) -> None:
    """Not of one that it has not reached yet, and at once of one that follows on a hub that could."""
    with FakeHub(bus.address):
        client = await bus.client(reconnect=True, limits=SWIFT)
        for verb in ASKING.values():
            with pytest.raises(StateError):
                await verb(client)
    os.unlink(bus.address)
    client.timeout = LIMIT
    with pytest.raises(TimeoutError):
        await client.sync()
    for verb in ASKING.values():
        with pytest.raises(TimeoutError):
            await verb(client)
    client.timeout = PATIENCE
    with HubThread(bus.address), pytest.raises(NoServerError):
        await client.request("svc")
    with FakeHub(bus.address):
        for verb in ASKING.values():
            with pytest.raises(StateError):
                await verb(client)
        assert await client.hub.is_wanted("k") is None
        assert await client.sync() == "local"
        assert (client.hub.features, client.hub.separator) == (None, b"/")


@script
async def test_a_watch_below_a_hub_that_knows_none_is_unknown(bus: Bus) -> None:
    with HubThread(bus.address):
        client = await bus.client(limits=SWIFT)
        watched = await client.hub.watch_interest("k")
        await client.subscribe("k")
        while not watched.wanted:
            await watched.receive(timeout=PATIENCE)
    with FakeHub(bus.address):
        while await watched.receive(timeout=PATIENCE) is not None:
            pass
        assert watched.wanted is None


# -- what failed to begin -------------------------------------------------------------------------------


@script
async def test_what_failed_to_begin_is_taken_back_at_once(bus: Bus, server: HubThread) -> None:
    beginnings: list[Verb] = [
        lambda client: client.subscribe("k"),
        lambda client: client.subscribe("k", on_message=print),
        lambda client: client.serve("k", print),
        lambda client: client.queue("q").work(print),
        lambda client: client.presence("k"),
        lambda client: client.present("k"),
        lambda client: client.hub.watch_interest("k"),
    ]
    with blocking.Client(server.address) as other, other.present("") as present:
        clients = [await bus.client(reconnect=False) for _ in beginnings]
        subscription = await clients[0].subscribe("old")
        held = server.call(server.hub.statistics).patterns
        with hung(server):
            for client, begin in zip(clients, beginnings, strict=True):
                client.timeout = 0.02
                with pytest.raises(TimeoutError):
                    await begin(client)
            with pytest.raises(TimeoutError):
                await subscription.add("new")
        other.sync()  # and of the clients nobody does anything any more
        while server.call(server.hub.statistics).patterns != held or present.members:
            other.sync()
        assert not any(client._connection.writer.unsaid for client in clients)


# -- time limits ----------------------------------------------------------------------------------------


@script
async def test_each_time_limit_counts_from_the_call_while_the_hub_is_away(bus: Bus) -> None:
    with HubThread(bus.address):
        client = await bus.client(reconnect=True, limits=SWIFT)
    for is_silent in (False, True):
        if is_silent:
            half_there = silent(bus.address)
            half_there.__enter__()
        client.timeout = LIMIT
        for verb in (ASKING | OTHERS | SENDING).values():
            with pytest.raises(TimeoutError):
                await verb(client)
        client.timeout = 3_600.0
        for verb in LIMITED.values():
            with pytest.raises(TimeoutError):
                await verb(client)
        with pytest.raises(TimeoutError):
            await client.request_many("svc", wait=LIMIT)
        assert await client.hub.is_wanted("k", timeout=LIMIT) is None
    half_there.__exit__(None, None, None)
    client.timeout = PATIENCE
    with HubThread(bus.address) as server:
        await client.sync()
        assert server.call(server.hub.statistics).patterns == 0


@script
async def test_a_verb_has_one_time_limit_for_all_that_it_waits_for(
    bus: Bus, server: HubThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[float] = []
    until, me = ClientConnection.until, caller()

    async def noting(self: ClientConnection, ready: Any, deadline: float | None, what: str) -> None:
        if deadline is not None and caller() == me:
            deadlines.append(deadline)
        await until(self, ready, deadline, what)

    monkeypatch.setattr(ClientConnection, "until", noting)
    client = await bus.client(reconnect=True)
    subscription, taken = await client.subscribe("s"), await client.subscribe("s", on_message=print)
    service, worker = await client.serve("s", print), await client.queue("q").take()
    ending: dict[str, Verb] = {
        "unsubscribe": lambda client: taken.unsubscribe(),
        "add": lambda client: subscription.add("t"),
        "remove": lambda client: subscription.remove("s"),
        "stop": lambda client: service.stop(),
        "stop of a worker": lambda client: worker.stop(),
    }
    with hung(server):
        for verb in (ASKING | OTHERS | ending).values():
            client.timeout = LIMIT
            deadlines.clear()
            with pytest.raises(TimeoutError):
                await verb(client)
            assert max(deadlines) < deadlines[0] + LIMIT / 2
        client.timeout = 3_600.0
        for verb in LIMITED.values():
            with pytest.raises(TimeoutError):
                await verb(client)
        with pytest.raises(TimeoutError):
            await client.request_many("svc", wait=LIMIT)
        assert await client.hub.is_wanted("k", timeout=LIMIT) is None


@script
async def test_a_request_made_while_the_hub_is_away_reaches_a_server_that_comes_later(bus: Bus) -> None:
    """Once, though it is sent twice."""
    with HubThread(bus.address):
        client = await bus.client(reconnect=True, limits=SWIFT)
        with pytest.raises(NoServerError):
            await client.request("svc")
    with pytest.raises(TimeoutError):
        await client.receive(timeout=0)
    served: list[bytes] = []

    def answer(request: Request) -> bytes:
        served.append(request.payload)
        return request.payload.upper()

    asking = bus.spawn(request(client, b"x"))
    with HubThread(bus.address, limits=Limits(settle=PATIENCE)) as server:
        await client.sync()
        while not server.call(server.hub.statistics).published:
            await client.sync()
        serving = await bus.client()
        await serving.serve("svc", answer)
        assert await asking == b"X"
        assert server.call(server.hub.statistics).published >= 2
    assert served == [b"x"]


@pytest.mark.parametrize("id", [b"", b"mine"])
@script
async def test_a_submit_made_while_the_hub_is_away_is_sent_again_only_with_an_id(bus: Bus, id: bytes) -> None:
    """A service that was killed may have stored the jobs, and the next one knows a submit by its id alone."""
    with HubThread(bus.address):
        client = await bus.client(reconnect=True, limits=SWIFT)
        with pytest.raises(NoServerError):
            await client.queue("q").submit(b"job")
    with pytest.raises(TimeoutError):
        await client.receive(timeout=0)

    submitting = bus.spawn(submit(client, id))
    with HubThread(bus.address, limits=Limits(settle=PATIENCE)) as server:
        await client.sync()
        while not server.call(server.hub.statistics).published:
            await client.sync()
        service = await bus.client()
        await service.subscribe("queue/q/submit")
        with pytest.raises(TimeoutError):
            await submitting
        await client.sync()
        assert server.call(server.hub.statistics).published == 2 + bool(id), "the submit, and that it is given up"


async def submit(client: Any, id: bytes) -> None:
    await client.queue("q").submit(b"job", id=id, timeout=1.0)


async def request(client: Any, payload: bytes) -> Any:
    return await client.request("svc", payload, timeout=PATIENCE)


@script
async def test_a_server_serves_each_number_once(bus: Bus, server: HubThread, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[bytes] = []

    def answer(request: Request) -> bytes:
        served.append(request.payload)
        return b""

    monkeypatch.setattr("sbuslib.shares.SERVED_NUMBERS", 2)
    client, serving = await bus.client(), await bus.client()
    mine = own_key() + b"/reply/" + b"0123456789abcdef" * 2
    replies = await client.subscribe(mine)
    await serving.serve("svc", answer)
    while b"senders/on" not in serving._connection.session.choices.values():  # numbers are of senders
        await client.sync()
    await serving.sync()
    for number, is_served in ((1, True), (1, False), (2, True), (1, False), (3, True), (1, True)):
        await client.publish("svc", encode_question(number, None, mine, b"%d" % number))
        if is_served:  # at last, as the first one is forgotten by now
            await replies.receive(timeout=PATIENCE)
    assert served == [b"1", b"2", b"3", b"1"]


def test_numbers_of_strangers_push_out_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbuslib.shares.SERVED_NUMBERS", 2)
    monkeypatch.setattr("sbuslib.shares.SERVED_USERS", 2)
    served = Served()
    assert [served.is_new(user, b"x", 5) for user in (None, 1, 2, 1, 3)] == [True, True, True, False, True]
    assert [served.is_new(user, b"x", 5) for user in (None, 1, 3)] == [False, False, False]
    assert served.is_new(2, b"x", 5), "of three strangers the one that asked longest ago is forgotten"
    assert served.is_new(None, b"y", 5), "numbers are of a sender"


@script
async def test_callers_with_little_time_reach_a_hub_that_answers_late(bus: Bus) -> None:
    """Each goes on where the one before gave up, with the same connection."""
    with HubThread(bus.address):
        client = await bus.client(reconnect=True, limits=SWIFT)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(bus.address)
        listener.listen(1)
        for _ in range(20):
            assert await client.receive_many(timeout=0) == []
        client.timeout = 0.001
        with pytest.raises(TimeoutError):
            await client.publish("k")  # nobody has it
        listener.setblocking(False)
        greeted = listener.accept()[0]
        with greeted:
            assert [greeted.recv(100) for _ in range(2)] == [b"CMSG hub/features\0", b"CMSG !/cred/whoami\0"]
            greeted.send(b"CMSG !/cred/whoami\0!/cred/1/2/3")
            while not client.connected:
                assert await client.receive_many(timeout=0) == []
            assert (client.epoch, client.credentials) == (2, b"!/cred/1/2/3")
            await client.publish("k")
            assert greeted.recv(100) == b"MSG k\0"
    os.unlink(bus.address)
