"""The verbs of a client: a table of scripts that the three clients play, each against a hub in another thread."""

from __future__ import annotations

import logging
import logging.handlers
import os
import socket
import warnings
from queue import SimpleQueue
from typing import Any

import pytest
from accounting import acting_as
from clients.drivers import Bus, script
from clients.fds.visits import STRANGER
from support import PATIENCE, HubThread, PlainDaemon, own_key

from sbuslib import Client, Limits, aio, blocking
from sbuslib.clients import hub_requests
from sbuslib.clients.basic_operations import MOST_POSTED
from sbuslib.errors import (
    AddressError,
    DisconnectedError,
    KeyFormatError,
    NoServerError,
    PayloadError,
    RefusedError,
    StateError,
    UsageError,
)
from sbuslib.limits import PACKET_BYTES, ClientLimits
from sbuslib.wire.packets import Message

SWIFT = ClientLimits(reconnect_pause=0.001, reconnect_pause_most=0.002)

# -- publishing and receiving -----------------------------------------------------------------------


@script
async def test_publish_and_receive(bus: Bus, server: HubThread) -> None:
    one, other = await bus.client(), await bus.client()
    await one.subscribe(b"a/*")
    b = await one.subscribe("b")
    await other.publish(b"a/1", b"x")
    await other.publish(b"c")
    await other.publish("b")
    assert await one.receive(timeout=PATIENCE) == Message(b"a/1", b"x")
    assert await one.receive(timeout=PATIENCE) == Message(b"b", b"")
    with pytest.raises(TimeoutError, match=r"0\.01"):
        await one.receive(timeout=0.01)
    with pytest.raises(TimeoutError):
        await one.receive(timeout=0)
    await b.unsubscribe()
    await one.sync()
    await other.publish(b"b", b"no")
    await other.publish(b"a/2", b"yes")
    assert (await one.receive(timeout=PATIENCE)).payload == b"yes"


@script
async def test_a_client_knows_its_credentials_and_its_hub(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    assert client.credentials == await client.hub.whoami() == own_key()
    assert (client.address, client.epoch, client.connected) == (bus.address, 1, True)
    assert client.hub.features.hub_id == server.hub.hub_id
    assert bus.address in repr(bus.core(client))
    assert client.socket.fileno() >= 0
    assert [await client.sync(), await client.sync("tree")] == ["local", "tree"]
    assert (await client.hub.statistics()).hub_id.encode() == server.hub.hub_id
    hub = bus.core(client).hub
    assert (hub.separator, hub.can("senders"), hub.can("fly")) == (b"/", True, False)


@pytest.mark.promise("how-to/from-redis.md", "A subscription is in force when `subscribe` returns")
@script
async def test_subscribe_is_in_force_when_it_returns(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    for number in range(50):
        await client.subscribe(b"k%d" % number)
        server.call(server.hub.publish, b"k%d" % number, b"")
        assert (await client.receive(timeout=PATIENCE)).key == b"k%d" % number


@script
async def test_many_are_published_in_order_whatever_their_sizes(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    await client.subscribe(b"")
    sizes = [100_000, 100_000, 10, 10, 100_000, 10, 10, 10, 130_000, 10, 10]
    pairs = [(b"k", b"%d " % number + bytes(size)) for number, size in enumerate(sizes)]
    assert await client.publish_many(pairs) == len(pairs)
    assert [(await client.receive(timeout=PATIENCE)).payload for _ in sizes] == [payload for _, payload in pairs]
    pairs = [(b"k%d" % (number % 7), b"%d" % number) for number in range(1_000)]
    text = [(key.decode() if number % 2 else key, payload) for number, (key, payload) in enumerate(pairs)]
    assert await client.publish_many(iter(text)) == 1_000
    got: list[Message] = []
    while len(got) < 1_000:
        some = await client.receive_many(most=300, timeout=PATIENCE)
        assert 0 < len(some) <= 300
        got += some
    assert [(message.key, message.payload) for message in got] == pairs
    assert await client.publish_many([]) == 0
    assert await client.receive_many(timeout=0) == []


@script
async def test_messages_that_go_together_go_with_the_last_or_when_they_are_many(bus: Bus, server: HubThread) -> None:
    client, other = await bus.client(), await bus.client()
    await other.subscribe(b"a")
    port = bus.core(client)._core
    for together in ([True, False], [True] * MOST_POSTED):
        payloads = [b"%d" % number for number in range(len(together))]
        for payload, others_come in zip(payloads, together, strict=True):
            await port.post(b"a", payload, together=others_come)
        await client.publish(b"a", b"later")
        found = [(await other.receive(timeout=PATIENCE)).payload for _ in range(len(together) + 1)]
        assert found == [*payloads, b"later"]


@script
async def test_the_longest_message_is_sent_and_a_longer_one_is_refused(bus: Bus, server: HubThread) -> None:
    client, told = await bus.client(), await bus.client(senders=True)
    await client.subscribe(b"k")
    await told.subscribe(b"k")
    payload = bytes(range(256)) * (PACKET_BYTES // 256)
    await client.publish(b"k", payload[: PACKET_BYTES - 6])
    assert (await client.receive(timeout=PATIENCE)).payload == payload[: PACKET_BYTES - 6]
    assert await told.receive(timeout=PATIENCE) == Message(b"k", payload[: PACKET_BYTES - 6], own_key())
    with pytest.raises(PayloadError):
        await client.publish(b"k", payload[: PACKET_BYTES - 5])


@script
async def test_flags_of_send_and_recv(bus: Bus, server: HubThread) -> None:
    client = await bus.client(senders=True)
    await client.subscribe(b"a")
    with pytest.raises(BlockingIOError):
        await client.receive(flags=socket.MSG_DONTWAIT)
    await client.publish(b"a", b"1", flags=socket.MSG_DONTWAIT)
    await client.publish(b"a", b"2")
    for _ in range(2):
        peeked = await client.receive(timeout=PATIENCE, flags=socket.MSG_PEEK)
        assert peeked == Message(b"a", b"1", own_key())
    assert (await client.receive(timeout=PATIENCE)).payload == b"1"
    await client.sync()
    assert (await client.receive(timeout=PATIENCE, flags=socket.MSG_PEEK)).payload == b"2"
    assert (await client.receive(flags=socket.MSG_DONTWAIT)).payload == b"2"
    with pytest.raises(TimeoutError):
        await client.receive(timeout=0.01, flags=socket.MSG_PEEK)


# -- errors -----------------------------------------------------------------------------------------


@script
async def test_a_refused_subscription_is_an_error_of_that_call_and_the_others_stay(bus: Bus, server: HubThread) -> None:
    for reconnect in (False, True):
        client = await bus.client(reconnect=reconnect, limits=SWIFT)
        kept = await client.subscribe(b"a")
        with pytest.raises(RefusedError, match="secret pattern of another"):
            await client.subscribe(b"b", b"!/cred/*/*/*/x")
        await client.publish(b"a", b"x")
        assert (await kept.receive(timeout=PATIENCE)).payload == b"x"
        assert await client.hub.whoami() == own_key()
        assert server.call(server.hub.statistics).patterns == 1
        await client.close()
        while server.call(server.hub.statistics).clients:
            pass
    assert server.call(server.hub.statistics).violations == {"secret pattern of another": 2}


@script
async def test_a_wrong_pattern_changes_nothing(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    for pattern in (b"\0", "\0", None, b"x" * PACKET_BYTES, "\ud800", 5):
        with pytest.raises(KeyFormatError):
            await client.subscribe(b"a", pattern)
    await client.publish(b"a", b"x")
    await client.sync()
    with pytest.raises(TimeoutError):
        await client.receive(timeout=0)
    assert server.call(server.hub.statistics).patterns == 0


@script
async def test_wrong_arguments_are_told_in_the_words_of_the_verb(bus: Bus, server: HubThread) -> None:
    client = await bus.client(limits=ClientLimits(offered_bytes=500_000))
    wrong: list[tuple[Any, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
        (client.subscribe, (), {}, UsageError, "at least one pattern"),
        (client.subscribe, (b"a",), {"on_message": 5}, UsageError, "called with each message: 5"),
        (client.sync, ("world",), {}, UsageError, "scope"),
        (client.publish, (b"a\0", b""), {}, KeyFormatError, "NUL"),
        (client.publish, (b"a", "text"), {}, PayloadError, "payload is bytes, not str"),
        (client.publish_many, (5,), {}, UsageError, "messages are pairs of key and payload, not 5"),
        (client.publish_many, ([(b"a", b""), 5],), {}, UsageError, "a message is a pair of key and payload, not 5"),
        (client.queue("q").submit_many, ([5],), {}, UsageError, "a message is a pair of key and payload, not 5"),
        (client.queue("q").work, (print,), {"trusted": ["a"]}, UsageError, "trusted are ids of users"),
        (client.descriptors.subscribe, ("a",), {"users": 5}, UsageError, "users are ids of users, not 5"),
        (client.files.send, ("a", b""), {"name": 5}, UsageError, "name is text, or None, not 5"),
        (client.hub.links, (), {"most": "x"}, UsageError, "most is at least 1, not 'x'"),
        (client.request, (b"x", "y"), {}, PayloadError, "payload is bytes, not str"),
        (client.request, (5,), {}, KeyFormatError, "key is bytes or str, not int"),
        (client.last, (5,), {}, KeyFormatError, "pattern is bytes or str, not int"),
        (client.queue("q").submit, (b"k", "text"), {}, PayloadError, "payload is bytes, not str"),
        (client.queue("q").work, (5,), {}, UsageError, "called with each job: 5"),
        (client.serve, ("q", None), {}, UsageError, "called with each question: None"),
        (client.receive_many, (), {"most": 0}, UsageError, "most is at least 1, not 0"),
        (client.receive_many, (), {"most": "5"}, UsageError, "most is at least 1, not '5'"),
        (client.receive, (), {"timeout": "5"}, UsageError, "timeout is seconds from 0 on, or None, not '5'"),
        (client.request, ("a",), {"timeout": float("nan")}, UsageError, "timeout is seconds from 0 on"),
        (client.serve, ("q\0", print), {}, KeyFormatError, "NUL"),
        (client.request, ("a",), {"timeout": -1}, UsageError, "timeout is seconds from 0 on, or None, not -1"),
        (client.request_many, ("a",), {"most": 5_000}, UsageError, "most is 1 to 4,096, not 5000"),
        (client.serve, ("q", print), {"workers": "x"}, UsageError, "workers is at least 1, not 'x'"),
        (client.queue("q").work, (print,), {"prefetch": 4_097}, UsageError, "prefetch is 1 to 4,096, not 4097"),
        (client.queue("q").work, (print,), {"prefetch": "x"}, UsageError, "prefetch is 1 to 4,096, not 'x'"),
        (client.queue("q").work, (print,), {"at_once": 0}, UsageError, "at_once is at least 1, not 0"),
        (client.frames.publish, ("a", "x"), {}, UsageError, "a frame is a buffer"),
        (client.frames.publish, ("a", b"x"), {"meta": "m"}, PayloadError, "meta is bytes, not str"),
        (client.frames.subscribe, ("a",), {"most": "x"}, UsageError, "most is at least 1, not 'x'"),
        (client.descriptors.publish, ("a", "x"), {}, UsageError, "a descriptor is a number, or has a fileno"),
        (client.frames.publish, ("a/!/b", b""), {}, KeyFormatError, "nobody may publish"),
        (client.frames.publish, ("a", b""), {"meta": bytes(5_000)}, PayloadError, "metadata"),
        (client.frames.publish, ("a", bytes(500_001)), {}, PayloadError, "offered_bytes"),
        (client.descriptors.publish, ("a", 1_000_000), {}, OSError, "Bad file descriptor"),
        (client.files.send, ("a/!/b", b""), {}, KeyFormatError, "nobody may publish"),
        (client.files.send, ("a", "/nowhere"), {}, FileNotFoundError, "/nowhere"),
        (client.files.send, ("a", b"x"), {"timeout": 0.01}, TimeoutError, "0 of 1 receivers"),
        (client.files.send, ("a", 5), {}, UsageError, "a file is a path, an open file, or bytes, not 5"),
        (client.files.send, ("a", b""), {"receivers": 0}, UsageError, "receivers is at least 1, not 0"),
        (client.files.send, ("a", b""), {"timeout": "x"}, UsageError, "timeout is seconds from 0 on"),
    ]
    for verb, arguments, options, error, text in wrong:
        with pytest.raises(error, match=text):
            await verb(*arguments, **options)
    for name, error, text in (
        (5, KeyFormatError, "not int"),
        *((name, UsageError, "name") for name in ("", "a/b", "!")),
    ):
        with pytest.raises(error, match=text):
            client.queue(name)
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"to": ""}, AddressError, "empty"),
        ({"hub_user": "no such user"}, UsageError, "no such user"),
        ({"soft": "never"}, UsageError, "soft is one of"),
        ({"timeout": "5"}, UsageError, "timeout is seconds from 0 on, or None, not '5'"),
        ({"limits": 5}, UsageError, "limits are ClientLimits, not 5"),
        ({"to": 5}, UsageError, "address is a path, or None, not 5"),
        ({"on_notice": 5}, UsageError, "a callback is a function, or None, not 5"),
    ]
    for given, error, text in refused:
        with pytest.raises(error, match=text):
            await bus.client(**given)
    await client.sync()


@script
async def test_a_client_that_awaits_nothing_says_which_takes_coroutine_functions(bus: Bus, server: HubThread) -> None:
    client, heard = await bus.client(), list[bytes]()

    async def handle(message: Message) -> bytes:
        heard.append(message.payload)
        return b""

    if bus.kind is aio.Client:
        async with client.serve("q", handle), client.subscribe("a", on_message=handle):
            await client.publish("a", b"x")
            assert await client.request("q", b"y") == b""
        assert sorted(heard) == [b"x", b"y"]
        return
    for verb, arguments, options in (
        (client.serve, ("q", handle), {}),
        (client.queue("q").work, (handle,), {}),
        (client.subscribe, ("a",), {"on_message": handle}),
    ):
        with pytest.raises(UsageError, match=r"are for sbuslib\.aio\.Client"):
            await verb(*arguments, **options)


@script
async def test_a_wrong_payload_is_refused_under_a_key_that_was_used_before(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    await client.subscribe(b"a")
    wrong: list[tuple[Any, Any, type[Exception]]] = [
        (b"a", bytes(PACKET_BYTES - 5), PayloadError),
        ("a", bytes(PACKET_BYTES - 5), PayloadError),
        (b"a", "text", PayloadError),
        (b"a", None, PayloadError),
        ([b"a"], b"", KeyFormatError),
    ]
    for key, payload, error in wrong:
        await client.publish(b"a", b"good")
        with pytest.raises(error):
            await client.publish(key, payload)
    for payload in (bytearray(b"1"), memoryview(b"2"), bytes(PACKET_BYTES - 6)):
        await client.publish(b"a", payload)
    got = [(await client.receive(timeout=PATIENCE)).payload for _ in range(8)]
    assert got == [b"good"] * 5 + [b"1", b"2", bytes(PACKET_BYTES - 6)]


@script
async def test_a_wildcard_of_another_broker_is_warned_of(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    hub_requests._warned_of.clear()
    for pattern, here in {
        "mqtt/#": "mqtt/",
        "n.*.x.>": r"n/\*/x/",
        "files/**": "files/",
        "#": "the empty pattern",
    }.items():
        with pytest.warns(UserWarning, match=f"is no wildcard here, .*: NATS and MQTT write it so; here it is {here}$"):
            await client.subscribe(pattern)
        with warnings.catch_warnings():  # once
            warnings.simplefilter("error")
            await client.subscribe(pattern)
    with pytest.warns(UserWarning, match="# is no wildcard here, in a/#/b: "):
        await client.subscribe("a/#/b")
    await client.subscribe("a#b/c")


@script
async def test_that_nobody_receives_a_key_is_said_at_once(bus: Bus) -> None:
    with HubThread(bus.address, limits=Limits(settle=0.2)) as server:
        client, other = await bus.client(), await bus.client()
        server.record()  # does not count
        with pytest.raises(NoServerError, match="svc: no client of this bus receives it"):
            await client.request("svc", b"x", timeout=None)  # the hub does not know it yet
        assert await client.hub.is_wanted("svc") is False
        assert await client.request_many("svc", wait=2 * PATIENCE) == []
        async with other.serve("svc", lambda question: question.payload):
            assert await client.hub.is_wanted(b"svc") is True
            assert await client.request("svc", b"x") == b"x"
        assert await client.hub.is_wanted(b"svc") is False
        watching = await other.subscribe(b"")  # who watches everything is no server, which the hub cannot know
        for seconds in (0, 0.1):
            with pytest.raises(TimeoutError, match="svc: no answer within"):
                await client.request("svc", timeout=seconds)
        assert (await watching.receive(timeout=PATIENCE)).key == b"svc"
        with pytest.raises(KeyFormatError):
            await client.hub.is_wanted(b"!/x")


@script
async def test_a_client_is_told_nothing_of_keys_that_it_may_not_publish_to(bus: Bus) -> None:
    def authorize(who: object, verb: str, key: bytes) -> bool:
        return verb == "subscribe" or key != b"closed"

    with HubThread(bus.address, authorize=authorize, limits=Limits(settle=0.02)) as server:
        client, other = await bus.client(), await bus.client()
        await other.subscribe(b"closed", b"open")
        while not server.call(lambda: server.hub.tree.has_settled):
            pass
        assert [await client.hub.is_wanted(key) for key in (b"closed", b"open", b"none")] == [None, True, False]
        await client.sync()
        assert server.call(server.hub.statistics).violations == {}


# -- subscriptions ----------------------------------------------------------------------------------


@script
async def test_a_subscription_has_a_queue_of_its_own(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    await client.subscribe(b"other")
    async with client.subscribe("room/") as rooms, client.subscribe(b"room/1") as first:
        await client.publish_many([(b"room/1", b"a"), (b"room/2", b"b"), (b"other", b"c"), (b"room/1", b"d")])
        assert [(await rooms.receive(timeout=PATIENCE)).payload for _ in range(3)] == [b"a", b"b", b"d"]
        assert [message.payload for message in await first.receive_many(most=1)] == [b"a"]
        assert [message.payload for message in await first.receive_many(timeout=PATIENCE)] == [b"d"]
        with pytest.raises(TimeoutError, match=r"no message within 0\.01 s"):
            await rooms.receive(timeout=0.01)
        assert (rooms.patterns, rooms.lost, rooms.closed) == ((b"room/",), {}, False)
    assert rooms.closed
    with pytest.raises(DisconnectedError, match="taken back"):
        await rooms.receive(timeout=PATIENCE)
    await rooms.unsubscribe()
    assert server.call(server.hub.statistics).patterns == 1
    assert (await client.receive(timeout=PATIENCE)).payload == b"c"
    with pytest.raises(TimeoutError):
        await client.receive(timeout=0)


@script
async def test_what_no_object_takes_is_the_clients(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    both, second = await client.subscribe(b"a", b"b"), await client.subscribe(b"b")
    await client.publish_many([(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", b"4")])
    await client.sync()
    assert (await client.receive(timeout=PATIENCE)).payload == b"1"
    assert (await second.receive(timeout=PATIENCE)).payload == b"2", "what was here goes to the object that is used"
    assert [(await client.receive(timeout=PATIENCE)).payload for _ in range(3)] == [b"2", b"3", b"4"]
    assert (await second.receive(timeout=PATIENCE)).payload == b"4"
    await client.publish(b"a", b"5")
    await client.sync()
    assert (await both.receive(timeout=PATIENCE)).payload == b"5"
    with pytest.raises(TimeoutError):
        await client.receive(timeout=0)
    unused = await client.subscribe(b"c")
    await unused.unsubscribe()
    await client.publish(b"c")
    await client.sync()
    with pytest.raises(TimeoutError):
        await client.receive(timeout=0)


@script
async def test_a_queue_is_bounded_and_counts_what_is_lost(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    async with client.subscribe(b"a") as subscription:
        core = bus.core(subscription)
        getattr(core, "_core", core)._mailbox._most = 5
        await client.publish_many([(b"a", b"%d" % number) for number in range(8)])
        await client.sync()
        assert subscription.lost == {"unread": 3}
        assert len(await subscription.receive_many()) == 5
        await client.publish(b"a", b"later")
        assert (await subscription.receive(timeout=PATIENCE)).payload == b"later"


@script
async def test_iteration_ends_with_the_subscription_and_with_the_client(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    subscription = await client.subscribe(b"a")
    got: list[bytes] = []
    await client.publish_many([(b"a", b"%d" % number) for number in range(5)])
    async for message in subscription:
        got.append(message.payload)
        if len(got) == 5:
            await subscription.unsubscribe()
    await client.subscribe(b"b")
    await client.publish_many([(b"b", b"%d" % number) for number in range(5)])
    async for message in client:
        got.append(message.payload)
        if len(got) == 10:
            await client.close()
    assert got == [b"%d" % number for number in range(5)] * 2


@script
async def test_on_message_calls_back_and_its_errors_are_logged(bus: Bus, server: HubThread) -> None:
    client, other = await bus.client(), await bus.client()
    heard: list[bytes] = []

    def hear(message: Message) -> None:
        heard.append(message.payload)
        if message.payload == b"bad":
            raise ValueError("the handler's own")

    logged: SimpleQueue[logging.LogRecord] = SimpleQueue()
    handler = logging.handlers.QueueHandler(logged)
    handler.prepare = lambda record: record  # type: ignore[method-assign]
    logging.getLogger("sbuslib.clients").addHandler(handler)
    try:
        async with client.subscribe("a", on_message=hear):
            await other.publish_many([(b"a", b"1"), (b"a", b"bad"), (b"a", b"2")])
            while len(heard) < 3:
                await client.sync()
        await other.publish(b"a", b"late")
        await other.sync()
    finally:
        logging.getLogger("sbuslib.clients").removeHandler(handler)
    assert heard == [b"1", b"bad", b"2"]
    record = logged.get(timeout=PATIENCE)
    assert record.getMessage() == "on_message failed at a message under a"
    assert record.exc_info
    with pytest.raises(TimeoutError):
        await client.receive(timeout=0)


@script
async def test_a_handler_may_take_its_own_subscription_back(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    heard: list[bytes] = []
    made: list[Any] = []

    async def once(message: Message) -> None:
        heard.append(message.payload)
        await made[0].unsubscribe()

    made.append(await client.subscribe(b"a", on_message=lambda message: bus.carried_out(once(message))))
    await client.publish(b"a", b"1")
    await made[0].wait()
    await client.publish(b"a", b"2")
    await client.sync()
    assert heard == [b"1"]


@script
async def test_drain_finishes_what_was_taken_and_closes(bus: Bus, server: HubThread) -> None:
    client, other = await bus.client(), await bus.client()
    heard: list[bytes] = []
    await client.subscribe(b"a", on_message=lambda message: heard.append(message.payload))
    await client.serve(b"svc", lambda question: question.payload.upper())
    assert await other.request(b"svc", b"x") == b"X"
    await other.publish_many([(b"a", b"%d" % number) for number in range(100)])
    await other.sync()
    await client.sync()
    await client.drain()
    assert not client.connected
    assert heard == [b"%d" % number for number in range(100)]


@script
async def test_a_client_with_a_small_batch_limit_sends_and_receives_the_same(bus: Bus, server: HubThread) -> None:
    client = await bus.client(limits=ClientLimits(batch=1))
    await client.subscribe(b"")
    pairs = [(b"k", b"%d" % number) for number in range(20)]
    await client.publish_many(pairs)
    assert [(await client.receive(timeout=PATIENCE)).payload for _ in pairs] == [payload for _, payload in pairs]


def test_clients_show_what_is_used_every_day() -> None:
    """What recipes are built on is not among it."""
    for kind in (blocking.Client, Client, aio.Client):
        shown = {name for name in dir(kind) if not name.startswith("_")}
        assert shown == {
            *("publish", "publish_many", "subscribe", "receive", "receive_many"),
            *("request", "request_many", "serve", "last", "queue", "frames", "descriptors", "files"),
            *("sync", "drain", "close", "connected", "lost", "hub", "address", "credentials", "socket", "fileno"),
            *("presence", "present", "timeout", "epoch"),
        }


# -- many patterns, and some users ------------------------------------------------------------------


@script
async def test_what_is_here_may_be_nothing(bus: Bus, server: HubThread) -> None:
    client = await bus.client()
    async with client.subscribe("a") as subscription:
        assert await client.receive_many(timeout=0) == await subscription.receive_many(timeout=0) == []
        await client.publish_many([(b"a", b"1"), (b"a", b"2")])
        await client.sync()
        assert [message.payload for message in await subscription.receive_many(timeout=0)] == [b"1", b"2"]
        with pytest.raises(TimeoutError):
            await subscription.receive_many(timeout=0.001)
    with pytest.raises(DisconnectedError, match="taken back"):
        await subscription.receive_many(timeout=0)


@script
async def test_one_subscription_has_thousands_of_patterns_and_knows_which_of_them_match(
    bus: Bus, server: HubThread
) -> None:
    client = await bus.client()
    statistics = server.hub.statistics
    async with client.subscribe(*(f"group/{number}/" for number in range(3_000))) as groups:
        assert await groups.receive_many(timeout=0) == []
        await groups.add("group/*/x", "late", "late", "")
        await groups.remove("group/7/", "late")
        assert server.call(statistics).patterns == len(groups.patterns) == 3_002
        await client.publish_many([(b"group/7/y", b""), (b"group/8/x", b""), (b"late", b"")])
        keys = [(await groups.receive(timeout=PATIENCE)).key for _ in range(3)]
        matched = bus.core(groups).matched
        assert [set(matched(key)) for key in keys] == [
            {b""},
            {b"", b"group/8/", b"group/*/x"},
            {b"", b"late"},
        ]
        await groups.remove("", "late")
        await client.publish_many([(b"late", b""), (b"group/7/y", b""), (b"group/9/y", b"")])
        await client.sync()
        assert [message.key for message in await groups.receive_many(timeout=0)] == [b"group/9/y"]
        with pytest.raises(UsageError, match="not subscribed to late"):
            await groups.remove("late")
        with pytest.raises(RefusedError):
            await groups.add("!/cred/0/0/1/of/another")
        assert matched("!/cred/0/0/1/of/another") == ()
        assert await client.receive_many(timeout=0) == [], "nothing of that is the client's"
    with pytest.raises(DisconnectedError):
        await groups.add("more")


@script
async def test_messages_of_strangers_are_dropped_before_the_handler_and_counted(bus: Bus) -> None:
    with HubThread(bus.address, mode=0o777):
        os.chmod(os.path.dirname(bus.address), 0o755)
        with acting_as(STRANGER):
            stranger = blocking.Client(bus.address)
        client = await bus.client()
        heard: list[bytes] = []
        async with (
            client.subscribe("a", on_message=lambda message: heard.append(message.payload), users=[]) as own,
            client.subscribe("a", users=[STRANGER]) as named,
            client.subscribe("a") as everybody,
        ):
            with stranger:
                stranger.publish("a", b"of a stranger")
                stranger.sync()
            await client.publish("a", b"own")
            await client.sync()
            both = [b"of a stranger", b"own"]
            assert [message.payload for message in await everybody.receive_many(timeout=0)] == both
            assert [message.payload for message in await named.receive_many(timeout=0)] == both
            assert (own.lost, named.lost) == ({"of another user": 1}, {})
        assert heard == [b"own"]
        assert await client.receive_many(timeout=0) == [], "what is dropped is not the client's"
        with pytest.raises(UsageError, match="last values have no senders"):
            await client.subscribe("a", users=[], last=True)
        with pytest.raises(UsageError, match="there is no user"):
            await client.subscribe("a", users=["no such user"])


def test_where_nobody_is_named_no_users_can_be_chosen(address: str) -> None:
    with PlainDaemon(address), Client(address) as client, pytest.raises(StateError, match="names no senders"):
        client.subscribe("a", users=[])
