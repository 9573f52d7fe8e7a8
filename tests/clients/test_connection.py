"""The connection of all three clients: its end, callers that share it, hubs that go away, reconnection."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import gevent.event
import pytest
from clients.drivers import Bus, FakeHub, script
from clients.makers import Make, StartsHub, Starved
from support import PATIENCE, HubThread, both_ways, own_key

from sbuslib import Limits, blocking
from sbuslib.clients import connection
from sbuslib.errors import AddressError, DisconnectedError, NoHubError, NoServerError, PeerError
from sbuslib.limits import ClientLimits
from sbuslib.wire.packets import Message

SWIFT = ClientLimits(reconnect_pause=0.001, reconnect_pause_most=0.002)


@script
async def test_what_no_hub_sends_ends_the_connection(bus: Bus) -> None:
    """Neither reading nor publishing goes on as if nothing had happened."""
    for packet in (b"SUB a", b"MSG a", b"nonsense", b"CMSG from\0x\0y"):
        with FakeHub(bus.address) as fake:
            client = await bus.client(reconnect=False)
            fake.say(packet)
            with pytest.raises(PeerError):
                await client.receive(timeout=PATIENCE)
            for _ in range(2):
                with pytest.raises(DisconnectedError, match="no hub sends"):
                    await client.receive(timeout=PATIENCE)
                with pytest.raises(DisconnectedError):
                    await client.publish(b"a")
                with pytest.raises(DisconnectedError):
                    await client.hub.whoami()
        os.unlink(bus.address)


@script
async def test_a_hub_that_says_nothing_or_hangs_up(bus: Bus) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(bus.address)
        listener.listen()
        with pytest.raises(TimeoutError):
            await bus.client(timeout=0.02)

        def hang_up() -> None:
            for _ in range(2):  # the first has given up
                listener.accept()[0].close()

        hanging_up = threading.Thread(target=hang_up)
        hanging_up.start()
        with pytest.raises(DisconnectedError):
            await bus.client()
        hanging_up.join()


@script
async def test_a_backlog_that_stays_full(bus: Bus) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first,
    ):
        listener.bind(bus.address)
        listener.listen(0)
        first.connect(bus.address)
        with pytest.raises(TimeoutError, match="backlog"):
            await bus.client(timeout=0.02)


@script
async def test_close(bus: Bus, server: HubThread) -> None:
    client, other = await bus.client(), await bus.client()
    await other.subscribe(b"")
    for number in range(100):
        await client.publish(b"a", b"%d" % number)
    await client.close()
    await client.close()
    assert not client.connected
    for verb in (client.receive, client.hub.whoami, client.sync, client.receive_many):
        with pytest.raises(DisconnectedError, match="closed"):
            await verb()
    for verb in (client.publish, client.subscribe, client.request):
        with pytest.raises(DisconnectedError, match="closed"):
            await verb(b"a")
    assert [message async for message in client] == []
    assert [(await other.receive(timeout=PATIENCE)).payload for _ in range(100)] == [b"%d" % n for n in range(100)]


@script
async def test_close_wakes_those_who_wait(bus: Bus, server: HubThread) -> None:
    client = await bus.client(timeout=None)
    subscription = await client.subscribe(b"a")

    async def fails(verb: Any) -> bool:
        with pytest.raises(DisconnectedError):
            await verb()
        return True

    async def iterate(over: Any) -> bool:
        return [message async for message in over] == []

    waiting = [bus.spawn(fails(client.receive)), bus.spawn(fails(subscription.receive)), bus.spawn(iterate(client))]
    await client.sync()
    await client.sync()
    await client.close()
    assert [await each for each in waiting] == [True] * 3


@script
async def test_what_came_before_the_hub_closed_is_received(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    await client.subscribe(b"a")
    for number in range(100):
        server.call(server.hub.publish, b"a", b"%d" % number)
    server.stop()
    assert [(await client.receive(timeout=PATIENCE)).payload for _ in range(100)] == [b"%d" % n for n in range(100)]
    with pytest.raises(DisconnectedError, match="hub closed"):
        await client.receive(timeout=PATIENCE)
    with pytest.raises(DisconnectedError):
        async for _ in client:
            pass
    for _ in range(2):
        with pytest.raises(DisconnectedError):
            await client.publish(b"a")


@pytest.fixture
def threads_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@script
async def test_several_share_one_client(bus: Bus, server: HubThread, threads_switch_often: None) -> None:
    """Each answer and each message reaches one of them."""
    client = await bus.client()
    await client.subscribe(b"a")

    async def take() -> list[bytes]:
        return [(await client.receive(timeout=PATIENCE)).payload for _ in range(250)]

    async def ask() -> list[bytes]:
        for _ in range(50):
            assert await client.hub.whoami() == own_key()
            assert await client.sync() == "local"
        return []

    async def say() -> list[bytes]:
        for number in range(0, 500, 2):
            await client.publish(b"a", b"%d" % number)
            await client.publish_many([(b"a", b"%d" % (number + 1))])
        return []

    running = [bus.spawn(work()) for work in (take, take, take, take, ask, ask, say, say)]
    got = [payload for each in running for payload in await each]
    assert sorted(got, key=int) == sorted([b"%d" % number for number in range(500)] * 2, key=int)


@script
async def test_reconnect_restores_everything(bus: Bus) -> None:
    epochs: list[int] = []
    options: dict[str, Any] = {"echo": False, "senders": True, "soft": "discard", "hard": "block", "order": "stack"}
    with HubThread(bus.address):
        client = await bus.client(
            reconnect=True, limits=SWIFT, on_reconnect=lambda who: epochs.append(who.epoch), **options
        )
        plain, taken_back = await client.subscribe(b"a"), await client.subscribe(b"a")
        secret = await client.subscribe(client.credentials + b"/x")
        await secret.unsubscribe()
        secret = await client.subscribe(client.credentials + b"/x")
        with pytest.raises(TimeoutError):
            await secret.receive(timeout=0)
        await taken_back.unsubscribe()
    for epoch in (2, 3):
        with HubThread(bus.address) as server, blocking.Client(bus.address) as other:
            await client.sync()
            assert epochs[-1] == client.epoch == epoch
            await client.publish(b"a", b"own")
            other.publish(b"a", b"1")
            other.publish(client.credentials + b"/x", b"2")
            assert await client.receive(timeout=PATIENCE) == Message(b"a", b"1", own_key())
            assert (await secret.receive(timeout=PATIENCE)).payload == b"2"
            rows = server.call(server.hub.statistics).per_client
            assert (2, "discard", "block", "stack") in {(row.patterns, row.soft, row.hard, row.order) for row in rows}
    assert plain.patterns == (b"a",)


@script
async def test_secrets_are_renewed_when_the_prefix_changes(bus: Bus, server: HubThread) -> None:
    notices: list[object] = []
    client, other = await bus.client(reconnect=True, on_notice=notices.append), await bus.client()
    subscription = await client.subscribe(client.credentials + b"/x")
    for prefix in (b"!/cred/1/2/3/", b"!/cred/4/5/6/!/cred/1/2/3/", b""):
        server.call(server.hub.tree.set_prefix, prefix)
        await client.sync()
        await client.sync()  # by now what it said on hearing of that is in force
        assert client.credentials == prefix + own_key()
        assert subscription.patterns == (prefix + own_key() + b"/x",)
        await other.publish(client.credentials + b"/x", prefix)
        await other.publish(b"!/cred/7/8/9/x", b"nobody's")
        assert (await subscription.receive(timeout=PATIENCE)).payload == prefix
    assert len(notices) == 3


@script
async def test_a_client_that_reconnects_waits_for_its_first_hub(bus: Bus) -> None:
    with StartsHub(bus.address) as starter:
        client = await bus.client(reconnect=True, limits=SWIFT)
        assert (client.connected, client.epoch) == (True, 1)
        assert await client.hub.whoami() == own_key()
    first = f"client of {bus.address}: waiting for a hub: no hub at {bus.address}: No such file or directory"
    assert starter.logged[0].startswith(first)
    with pytest.raises(NoHubError, match="No such file or directory"):
        await bus.client(reconnect=True, limits=SWIFT, timeout=0.02)
    with pytest.raises(NoHubError):
        await bus.client()
    with pytest.raises(AddressError):
        await bus.client(to="x" * 200, reconnect=True, timeout=None)


@script
async def test_the_state_of_the_connection_is_told(bus: Bus) -> None:
    told: list[object] = []
    options: dict[str, Any] = {
        "limits": SWIFT,
        "on_reconnect": lambda client: told.append((client.connected, client.epoch)),
        "on_disconnect": lambda client, error: told.append((client.connected, str(error))),
    }
    with HubThread(bus.address):
        client, other = await bus.client(reconnect=True, **options), await bus.client(**options)
        assert (client.connected, told) == (True, [])
    with HubThread(bus.address):
        assert await client.hub.whoami() == own_key()
        assert told == [(False, f"{bus.address}: the hub closed the connection"), (True, 2)]
        told.clear()
        for verb in (other.hub.whoami, other.hub.whoami):
            with pytest.raises(DisconnectedError):
                await verb()
        assert not other.connected
        assert told == [(False, f"{bus.address}: the hub closed the connection")], "once"
        told.clear()

        async def wait() -> None:
            with suppress(DisconnectedError):
                await client.receive()

        waiting = bus.spawn(wait())
        await client.sync()
        await client.sync()
        await client.close()
        await waiting
        assert not client.connected
        assert told == [], "the application knows that it closed the client"


@script
async def test_a_hub_that_stays_away(bus: Bus) -> None:
    with HubThread(bus.address):
        client, other = await bus.client(reconnect=True, limits=SWIFT), await bus.client()
    client.timeout = 0.05
    for verb in (client.hub.whoami, lambda: client.publish(b"a"), lambda: client.receive(timeout=0.05)):
        with pytest.raises(TimeoutError):
            await verb()
    for verb in (
        lambda: client.receive(flags=socket.MSG_DONTWAIT),
        lambda: client.publish(b"a", flags=socket.MSG_DONTWAIT),
    ):
        with pytest.raises(BlockingIOError):
            await verb()
    with HubThread(bus.address):
        client.timeout = PATIENCE
        assert await client.hub.whoami() == own_key()
        with pytest.raises(DisconnectedError):
            await other.receive(timeout=PATIENCE)
        with pytest.raises(DisconnectedError):
            await other.publish(b"a")


@script
async def test_what_serves_or_watches_outlives_its_hub(bus: Bus) -> None:
    heard: list[bytes] = []
    with HubThread(bus.address):
        serving, watching = await bus.client(limits=SWIFT), await bus.client(limits=SWIFT)
        told, once = await bus.client(limits=SWIFT, reconnect=False), await bus.client(limits=SWIFT)
        await serving.serve(b"svc", lambda question: question.payload.upper())
        await watching.subscribe(b"a", on_message=lambda message: heard.append(message.payload))
        await told.subscribe(b"a", on_message=lambda message: heard.append(b"never"))
    assert (serving._connection._reconnect, told._connection._reconnect) == (True, False)
    with HubThread(bus.address) as server:
        while server.call(server.hub.statistics).patterns < 2:
            await serving.sync()
            await watching.sync()
        requester = await bus.client()
        assert await requester.request(b"svc", b"x") == b"X"
        await requester.publish(b"a", b"1")
        while not heard:
            await watching.sync()
        for client in (told, once):
            with pytest.raises(DisconnectedError):
                await client.sync()
        await serving.drain()
        await watching.drain()
    assert heard == [b"1"]


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


@script
async def test_what_failed_to_begin_in_time_is_not_in_force(bus: Bus, server: HubThread) -> None:
    client, other = await bus.client(), await bus.client()
    started: list[object] = []
    with hung(server):
        client.timeout = 0.02
        beginnings: list[Callable[[], Any]] = [
            lambda: client.subscribe(b"k"),
            lambda: client.subscribe(b"k", on_message=started.append),
            lambda: client.serve(b"k", started.append),
            lambda: client.queue("q").work(started.append),
        ]
        for begin in beginnings:
            with pytest.raises(TimeoutError):
                await begin()
        await other.publish_many([(b"k", b"")] * 100)
        client.timeout = PATIENCE
    await client.sync()
    assert server.call(server.hub.statistics).patterns == 0
    with pytest.raises(NoServerError):
        await other.request(b"k", timeout=PATIENCE)
    with pytest.raises(TimeoutError):
        await client.receive(timeout=0)
    assert (started, client.lost) == ([], {})


@script
async def test_what_a_caller_gave_up_to_tell_the_hub_is_told_by_the_next(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    kept, other = await client.subscribe(b"a"), await client.subscribe(b"b")
    core = bus.core(client)
    client.timeout, core._connection.socket = 0.01, Starved(core._connection.socket, b"UNSUB", 1e9)
    with pytest.raises(TimeoutError, match="takes no more"):
        await other.unsubscribe()
    client.timeout, core._connection.socket = PATIENCE, core._connection.socket._socket
    with pytest.raises(TimeoutError):
        await client.receive(timeout=0)
    assert not core._connection.writer.unsaid
    await client.sync()
    assert server.call(server.hub.statistics).patterns == 1
    assert not kept.closed


@script
async def test_what_is_taken_back_while_the_hub_is_away_does_not_come_back_with_it(bus: Bus) -> None:
    with HubThread(bus.address):
        client = await bus.client(reconnect=True, limits=SWIFT)
        plain, kept = await client.subscribe(b"a"), await client.subscribe(b"b")
        served = await client.serve(b"c", lambda question: b"")
        watched = await client.subscribe(b"d", on_message=print)
        queued = await client.subscribe(b"e")
        with pytest.raises(TimeoutError):
            await queued.receive(timeout=0)
    client.timeout = 0.02
    with pytest.raises(TimeoutError):
        await client.sync()
    for end in (plain.unsubscribe, served.stop, watched.unsubscribe, queued.unsubscribe):
        await end()
    with pytest.raises(TimeoutError):
        await client.subscribe(b"f")
    client.timeout = PATIENCE
    with HubThread(bus.address) as server:
        await client.sync()
        assert server.call(server.hub.statistics).patterns == 1
    assert kept.patterns == (b"b",)


@script
async def test_what_is_taken_back_does_not_wait_for_a_hub_of_whose_end_nobody_knew(bus: Bus) -> None:
    for begin in ("read", "watch", "serve"):
        with HubThread(bus.address):
            client = await bus.client(reconnect=True, limits=SWIFT, timeout=0.5)
            if begin == "serve":
                begun = await client.serve(b"k", lambda question: b"")
            else:
                begun = await client.subscribe(b"k", on_message=print if begin == "watch" else None)
            if begin == "read":
                with pytest.raises(TimeoutError):
                    await begun.receive(timeout=0)
        await (begun.stop if begin == "serve" else begun.unsubscribe)()
        client.timeout = PATIENCE
        with HubThread(bus.address) as server:
            await client.sync()
            assert server.call(server.hub.statistics).patterns == 0
        await client.close()


@script
async def test_the_client_counts_messages_that_the_hub_lost(bus: Bus) -> None:
    with HubThread(bus.address, limits=Limits(queued_packets=10)) as small:
        client = await bus.client()
        alone = await client.subscribe(b"k")
        with blocking.Client(bus.address) as publisher:
            publisher.publish_many([(b"k", bytes(4_000))] * 2_000)
            publisher.sync()
        lost = small.call(small.hub.statistics).lost
        for _ in range(2_000 - lost["overflow"]):
            await alone.receive(timeout=PATIENCE)
        await client.sync()
        assert client.lost == alone.lost == lost


@script
async def test_sending_waits_while_the_kernel_has_no_memory(
    bus: Bus, server: HubThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MEMORY_PAUSE", 0.001)
    reader, client = await bus.client(), await bus.client()
    await reader.subscribe(b"k")
    subscription = await client.subscribe(b"j")
    core = bus.core(client)
    for about, verb in ((b"MSG", lambda: client.publish(b"k", b"x")), (b"UNSUB", subscription.unsubscribe)):
        core._connection.socket = Starved(core._connection.socket, about, 3)
        await verb()
    await client.sync()
    assert (await reader.receive(timeout=PATIENCE)).payload == b"x"
    assert server.call(server.hub.statistics).patterns == 1
    client.timeout = 0.01
    core._connection.socket = Starved(core._connection.socket, b"", 1e9)
    for verb in (client.publish, client.subscribe):
        with pytest.raises(TimeoutError, match="takes no more"):
            await verb(b"k")
    with pytest.raises(BlockingIOError):
        await client.publish(b"k", b"x", flags=socket.MSG_DONTWAIT)


@script
async def test_a_question_that_was_not_sent_takes_no_answer_of_another(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    core = bus.core(client)
    client.timeout, core._connection.socket = 0.01, Starved(core._connection.socket, b"CMSG", 1e9)
    with pytest.raises(TimeoutError, match="takes no more"):
        await client.hub.statistics()
    client.timeout, core._connection.socket = PATIENCE, core._connection.socket._socket
    assert (await client.hub.statistics()).patterns == 0
    assert [one.number for one in await client.hub.clients()] == [1]


@script
async def test_sending_goes_on_where_a_receiver_makes_room(bus: Bus, server: HubThread) -> None:
    reader, writer = await bus.client(soft="block"), await bus.client()
    await reader.subscribe(b"k")

    async def send() -> int:
        sent: int = await writer.publish_many([(b"k", bytes(50_000))] * 300)
        return sent

    sending = bus.spawn(send())
    assert [len((await reader.receive(timeout=PATIENCE)).payload) for _ in range(300)] == [50_000] * 300
    assert await sending == 300
    assert server.call(server.hub.statistics).lost == {}


@script
async def test_sending_waits_for_a_hub_that_does_not_read(bus: Bus) -> None:
    """Until its time is over, the client closed, or the hub gone."""
    for end in ("timeout", "close", "hub"):
        with FakeHub(bus.address + end, reads=False) as fake:
            client = await bus.client(to=bus.address + end)
            waits, waiting = bus.core(client)._connection.runtime, threading.Event()
            with suppress(BlockingIOError):
                while True:
                    await client.publish(b"k", bytes(10_000), flags=socket.MSG_DONTWAIT)
            client.timeout = 0.01 if end == "timeout" else None
            if end == "timeout":
                for verb in (client.publish, client.subscribe):
                    with pytest.raises(TimeoutError, match="takes no more"):
                        await verb(b"k")
                continue

            async def wait(fd: int, events: int, timeout: float | None, w: Any = waits, told: Any = waiting) -> bool:
                told.set()
                there: bool = await type(w).wait(w, fd, events, timeout)
                return there

            async def send(client: Any = client) -> bool:
                with pytest.raises(DisconnectedError):
                    await client.publish(b"k", bytes(10_000))
                return True

            waits.wait = wait
            sending = bus.spawn(send())
            while not waiting.is_set():
                await waits.sleep(0.001)
            if end == "close":
                await client.close()
            else:
                fake.__exit__()
            assert await sending


@script
async def test_notices_are_told_to_a_client_that_receives_with_flags(bus: Bus, server: HubThread) -> None:
    notices: list[object] = []
    client = await bus.client(on_notice=notices.append)
    await client.sync()  # by now the hub knows that it wants notices
    server.call(server.hub.tree.set_prefix, b"!/cred/1/2/3/")
    while not notices:
        with pytest.raises(BlockingIOError):
            await client.receive(flags=socket.MSG_DONTWAIT)
    assert len(notices) == 1


def test_a_descriptor_to_poll_tells_of_what_is_inside(make: Make, address: str) -> None:
    def readable(seconds: float = 0) -> bool:
        return bool(select.select([one], [], [], seconds)[0])

    with HubThread(address) as server:
        one = make(reconnect=True, limits=SWIFT)
        with pytest.raises(TimeoutError):
            one.receive(timeout=0)
        with one.subscribe(b"queue") as queue:
            one.subscribe(b"inbox")
            assert not readable()
            for receiver, key in ((one, b"inbox"), (queue, b"queue")):
                server.call(server.hub.publish, key, b"1")
                assert readable(PATIENCE)
                one.sync()  # it is inside now
                server.call(server.hub.publish, key, b"2")
                one.sync()
                assert readable()
                assert [receiver.receive(timeout=0).payload for _ in range(2)] == [b"1", b"2"]
                with pytest.raises(TimeoutError):
                    receiver.receive(timeout=0)
                assert not readable()
        gate: Any = threading.Event() if isinstance(one, blocking.Client) else gevent.event.Event()
        with one.subscribe(b"work", on_message=lambda message: gate.wait(PATIENCE)):
            for payload in (b"1", b"2"):
                server.call(server.hub.publish, b"work", payload)
            one.sync()
            assert not readable(), "what waits for a handler is not to be received"
            gate.set()

    assert readable(PATIENCE), "the hub has gone"
    with pytest.raises(TimeoutError):
        one.receive(timeout=0)
    assert not readable()
    with HubThread(address) as server:
        one.sync()
        server.call(server.hub.publish, b"inbox", b"3")
        assert readable(PATIENCE), "the same descriptor"
        assert one.receive(timeout=0).payload == b"3"
    poll = select.poll()
    poll.register(one.fileno(), select.POLLIN)
    one.close()
    assert poll.poll(0), "receive would say so at once"
    with pytest.raises(DisconnectedError):
        one.fileno()


@both_ways
def test_an_exception_that_comes_after_the_kernel_gave_packets_loses_none(
    make: Make, address: str, monkeypatch: pytest.MonkeyPatch, syscalls: str
) -> None:
    """As of a signal handler, which runs once the system call has returned."""
    with HubThread(address), blocking.Client(address) as publisher:
        client = make(address)
        client.subscribe(b"k")
        client.sync()
        buffer = client._connection._buffer
        assert buffer is not None
        receive = buffer.receive

        def interrupted(*arguments: Any) -> list[int]:
            receive(*arguments)
            monkeypatch.setattr(buffer, "receive", receive)
            raise KeyboardInterrupt

        for number in range(40):
            publisher.publish(b"k", b"%d" % number)
        publisher.sync()
        monkeypatch.setattr(buffer, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.receive(timeout=PATIENCE)
        came = [client.receive(timeout=PATIENCE).payload for _ in range(40)]
        assert came == [b"%d" % number for number in range(40)]
        assert not client.lost
