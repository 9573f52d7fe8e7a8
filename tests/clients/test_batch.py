"""Batches: messages that a program publishes one by one, and that are sent many in one packet."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
from collections.abc import Callable
from typing import Any, TypeAlias

import gevent
import pytest
from clients.drivers import Bus, script
from clients.makers import run
from support import PATIENCE, FakeHub, HubThread, Peer, choose

import sbuslib
from sbuslib import Client, Hub, aio, blocking
from sbuslib.clients.batch import BatchPublisher
from sbuslib.errors import DisconnectedError, KeyFormatError, PayloadError, StateError
from sbuslib.limits import PACKET_BYTES, ClientLimits
from sbuslib.wire.batches import BATCH, Batch

Make: TypeAlias = Callable[..., Client]

FOUR = ClientLimits(batch_messages=4, batch_bytes=1_000)
"""Four short messages fill a packet."""


def greeted(fake: FakeHub, client: Make, features: bytes = b"batch/on", **options: Any) -> tuple[Client, Peer]:
    """A client of a fake hub, and the hub's end of the connection."""
    greeting = gevent.spawn(fake.greet, features)
    connected = client(**options)
    peer = greeting.get()
    if features:
        assert peer.receive() == b"CMSG batch/on\0"
    return connected, peer


def arrived(peer: Peer) -> list[list[bytes]]:
    """The payloads of each packet that the kernel has for this end, without letting anything else run."""
    packets = []
    while True:
        try:
            packet = os.read(peer.socket.fileno(), PACKET_BYTES)
        except BlockingIOError:
            break
        packets.append(Batch.parse(packet).payloads if packet.startswith(BATCH) else [packet.partition(b"\0")[2]])
    return packets


def test_the_kernel_has_a_message_when_publish_returns(fake: FakeHub, client: Make) -> None:
    made, peer = greeted(fake, client)
    for number in range(5):
        made.publish(b"k", b"%d" % number)
        assert arrived(peer) == [[b"%d" % number]]


def test_a_batch_is_sent_at_the_end_of_the_block_in_one_packet(fake: FakeHub, client: Make) -> None:
    made, peer = greeted(fake, client)
    with made.batch() as batch:
        for number in range(5):
            batch.publish(b"k/%d" % (number % 2), b"%d" % number)
        assert arrived(peer) == []
    assert arrived(peer) == [[b"0", b"1", b"2", b"3", b"4"]]


def test_a_batch_sends_when_a_packet_is_full(fake: FakeHub, client: Make) -> None:
    made, peer = greeted(fake, client, limits=FOUR)
    with made.batch() as batch:
        for number in range(10):
            batch.publish(b"k", b"%d" % number)
        assert arrived(peer) == [[b"0", b"1", b"2", b"3"], [b"4", b"5", b"6", b"7"]]
        batch.publish(b"k", bytes(1_000))  # as many bytes as a packet takes
        assert [payload for packet in arrived(peer) for payload in packet] == [b"8", b"9", bytes(1_000)]
    assert arrived(peer) == []


def test_a_hub_without_batches_gets_plain_packets(fake: FakeHub, client: Make) -> None:
    made, peer = greeted(fake, client, b"")
    with made.batch() as batch:
        for number in range(3):
            batch.publish(b"k", b"%d" % number)
    assert arrived(peer) == [[b"0"], [b"1"], [b"2"]]


def test_an_empty_batch_sends_nothing(fake: FakeHub, client: Make) -> None:
    made, peer = greeted(fake, client)
    with made.batch():
        pass
    assert arrived(peer) == []


def test_messages_published_beside_a_batch_are_sent_before_it(fake: FakeHub, client: Make) -> None:
    made, peer = greeted(fake, client)
    with made.batch() as batch:
        batch.publish(b"k", b"collected")
        made.publish(b"k", b"beside")
    assert arrived(peer) == [[b"beside"], [b"collected"]]


def test_a_wrong_message_raises_at_once_and_the_others_are_sent(fake: FakeHub, client: Make) -> None:
    made, peer = greeted(fake, client)
    wrong: list[tuple[Any, Any, type[Exception]]] = [
        (b"a\0", b"", KeyFormatError),
        ("\0", b"", KeyFormatError),
        ([b"k"], b"", KeyFormatError),
        (b"!/x", b"", KeyFormatError),
        (b"k", "text", PayloadError),
        (b"k", bytes(PACKET_BYTES), PayloadError),
    ]
    with made.batch() as batch:
        for _ in range(2):  # before the key is known, and after
            for key, payload, error in wrong:
                with pytest.raises(error):
                    batch.publish(key, payload)
            batch.publish(b"k", b"good")
    assert arrived(peer) == [[b"good", b"good"]]


def test_messages_collected_before_an_error_in_the_block_are_sent(fake: FakeHub, client: Make) -> None:
    made, peer = greeted(fake, client)

    def fail() -> None:
        with made.batch() as batch:
            batch.publish(b"k", b"0")
            batch.publish(b"k", b"%d" % (1 // 0))

    with pytest.raises(ZeroDivisionError):
        fail()
    assert arrived(peer) == [[b"0"]]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, gevent.Timeout, gevent.GreenletExit, asyncio.CancelledError])
def test_an_interrupt_drops_the_messages_that_were_collected(
    fake: FakeHub, client: Make, interrupt: type[BaseException]
) -> None:
    made, peer = greeted(fake, client, limits=FOUR)

    def work() -> None:
        with made.batch() as batch:
            for number in range(5):
                batch.publish(b"k", b"%d" % number)
            raise interrupt

    with pytest.raises(interrupt):
        work()
    assert arrived(peer) == [[b"0", b"1", b"2", b"3"]]


def test_a_payload_that_changes_later_is_copied(fake: FakeHub, client: Make) -> None:
    made, peer = greeted(fake, client)
    changing = bytearray(b"before")
    with made.batch() as batch:
        batch.publish(b"k", b"first")  # a key that is known from now on
        batch.publish(b"k", changing)  # type: ignore[arg-type]
        changing[:] = b"after!"
    assert arrived(peer) == [[b"first", b"before"]]


def test_an_error_while_sending_is_raised_by_the_publish_that_sends(fake: FakeHub, client: Make) -> None:
    made, peer = greeted(fake, client, limits=FOUR, timeout=0.01)
    with contextlib.suppress(BlockingIOError):
        while True:
            made.publish(b"k", bytes(10_000), flags=socket.MSG_DONTWAIT)
    with made.batch() as batch:
        for number in range(3):
            batch.publish(b"k", b"%d" % number)
        with pytest.raises(TimeoutError, match="takes no more"):
            batch.publish(b"k", b"3")
        arrived(peer)
        batch.publish(b"k", b"4")  # the next packet
    assert arrived(peer) == [[b"4"]]


def test_the_end_of_the_block_raises_where_the_connection_has_ended(fake: FakeHub, client: Make) -> None:
    made, peer = greeted(fake, client)
    peer.close()
    batch = made.batch().__enter__()
    batch.publish(b"k")
    with pytest.raises(DisconnectedError):
        batch.__exit__(None, None, None)


def test_a_batch_cannot_be_used_outside_its_block(fake: FakeHub, client: Make) -> None:
    made, peer = greeted(fake, client)
    made.publish(b"k")  # a key that is known
    batch = made.batch()
    for _ in range(2):
        with pytest.raises(StateError, match="with"):
            batch.publish(b"k", b"x")
        with batch:
            batch.publish(b"k", b"x")
            with pytest.raises(StateError, match="in use"), batch:
                pass
    assert arrived(peer) == [[b""], [b"x"], [b"x"]]


@script
async def test_a_batch_of_each_client_arrives_in_order(bus: Bus, server: HubThread) -> None:
    pairs = [(b"k/%d" % (number % 300), b"%d" % number) for number in range(3_000)]
    receiver, publisher = await bus.client(soft="block"), await bus.client()
    await receiver.subscribe(b"k/")
    async with publisher.batch() as batch:
        for key, payload in pairs:
            await batch.publish(key, payload)
    got = [await receiver.receive(timeout=PATIENCE) for _ in pairs]
    assert [(message.key, message.payload) for message in got] == pairs


def test_errors_and_interrupts_in_a_block_of_the_asyncio_client(server: HubThread, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as client:
            await client.subscribe(b"k")
            with pytest.raises(StateError):
                await client.batch().publish(b"k")

            async def work(payload: bytes, error: type[BaseException]) -> None:
                async with client.batch() as batch:
                    await batch.publish(b"k", payload)
                    raise error

            with pytest.raises(ZeroDivisionError):
                await work(b"sent", ZeroDivisionError)
            with pytest.raises(asyncio.CancelledError):
                await work(b"dropped", asyncio.CancelledError)
            async with client.batch() as batch:
                with pytest.raises(KeyFormatError):
                    await batch.publish(b"a\0")
                await batch.publish(b"k", b"last")
            assert [(await client.receive(timeout=PATIENCE)).payload for _ in range(2)] == [b"sent", b"last"]

    run(test())


@pytest.mark.parametrize("count", [1, 2, 3_000])
def test_a_batch_of_the_hub(hub: Hub, client: Make, count: int) -> None:
    """Some keys have other receivers than the rest, so the batch cannot be handed over whole."""
    pairs = [(b"k/%d" % (number % 300), b"%d" % number) for number in range(count)]
    everything, some = client(), client()
    everything.subscribe(b"k/")
    some.subscribe(b"k/1")
    inbox = hub.subscribe(b"k/")
    for publish in (False, True):
        if publish:
            assert hub.publish_many(iter(pairs)) == count
        else:
            with hub.batch() as batch:
                for key, payload in pairs:
                    batch.publish(key, payload)
        got = [everything.receive(timeout=PATIENCE) for _ in pairs]
        assert [(message.key, message.payload) for message in got] == pairs
        assert [inbox.receive(timeout=PATIENCE).payload for _ in pairs] == [payload for _, payload in pairs]
        wanted = [payload for key, payload in pairs if key == b"k/1"]
        assert [some.receive(timeout=PATIENCE).payload for _ in wanted] == wanted
    assert hub.statistics().published == 2 * count
    assert not len(inbox)


def test_a_batch_of_the_hub_is_handed_over_at_the_end_of_the_block(hub: Hub) -> None:
    inbox = hub.subscribe(b"k")
    with hub.batch() as batch:
        batch.publish(b"k", b"0")
        batch.publish(b"k", b"1")
        for key in (b"a\0", b"!/x"):
            with pytest.raises(KeyFormatError):
                batch.publish(key)
        assert len(inbox) == 0
    assert [inbox.receive(timeout=0).payload, inbox.receive(timeout=0).payload] == [b"0", b"1"]


def test_messages_of_a_hubs_batch_carry_their_sender(hub: Hub, client: Make) -> None:
    made = client()
    made.subscribe(b"k")
    choose(made, b"senders/on")
    made.sync()
    hub.publish_many([(b"k", b"0"), (b"k", b"1")])
    assert [made.receive(timeout=PATIENCE).sender for _ in range(2)] == [hub.whoami()] * 2


def test_the_clients_and_the_hub_publish_with_the_same_verbs() -> None:
    for verb in ("publish", "publish_many", "batch"):
        for kind in (sbuslib.Hub, sbuslib.Client, blocking.Client, aio.Client):
            found = list(inspect.signature(getattr(kind, verb)).parameters)
            assert found[:3] == {"publish": ["self", "key", "payload"], "publish_many": ["self", "messages"]}.get(
                verb, ["self"]
            )
    assert list(inspect.signature(BatchPublisher.publish).parameters) == ["self", "key", "payload"]
