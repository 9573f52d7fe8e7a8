"""Batches: many messages that are sent in one packet."""

from __future__ import annotations

import inspect
import os
from typing import Any

import pytest
from clients.makers import MakeClient, fill, greeted
from support import PATIENCE, FakeHub, Peer

import sbuslib
from sbuslib import Client, Hub, aio, blocking
from sbuslib.errors import DisconnectedError, KeyFormatError, PayloadError
from sbuslib.limits import PACKET_BYTES, ClientLimits
from sbuslib.wire.batches import BATCH, Batch
from sbuslib.wire.packets import Message

FOUR = ClientLimits(batch_messages=4, batch_bytes=1_000)
"""Four short messages fill a packet."""


def batching(fake: FakeHub, client: MakeClient, **options: Any) -> tuple[Client, Peer]:
    """A client of a fake hub that takes batches, and the hub's end of the connection."""
    made, peer = greeted(fake, client, b"batch/on", **options)
    assert peer.receive() == b"CMSG batch/on\0"
    return made, peer


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


def test_the_kernel_has_a_message_when_publish_returns(fake: FakeHub, client: MakeClient) -> None:
    made, peer = batching(fake, client)
    for number in range(5):
        made.publish(b"k", b"%d" % number)
        assert arrived(peer) == [[b"%d" % number]]


def test_many_go_in_as_few_packets_as_they_fit(fake: FakeHub, client: MakeClient) -> None:
    made, peer = batching(fake, client, limits=FOUR)
    assert made.publish_many((b"k/%d" % (number % 2), b"%d" % number) for number in range(10)) == 10
    assert arrived(peer) == [[b"0", b"1", b"2", b"3"], [b"4", b"5", b"6", b"7"], [b"8", b"9"]]
    made.publish_many([(b"k", b"x"), (b"k", bytes(1_000))])  # as many bytes as a packet takes
    assert [payload for packet in arrived(peer) for payload in packet] == [b"x", bytes(1_000)]
    made.publish_many([])
    assert arrived(peer) == []


def test_a_hub_without_batches_gets_plain_packets(fake: FakeHub, client: MakeClient) -> None:
    made, peer = greeted(fake, client)
    made.publish_many([(b"k", b"%d" % number) for number in range(3)])
    assert arrived(peer) == [[b"0"], [b"1"], [b"2"]]


@pytest.mark.parametrize(
    ("key", "payload", "error"),
    [
        (b"a\0", b"", KeyFormatError),
        ("\0", b"", KeyFormatError),
        ([b"k"], b"", KeyFormatError),
        (b"!/x", b"", KeyFormatError),
        (b"k", "text", PayloadError),
        (b"k", bytes(PACKET_BYTES), PayloadError),
    ],
)
def test_what_comes_before_a_wrong_message_is_published(
    hub: Hub, client: MakeClient, key: Any, payload: Any, error: type[Exception]
) -> None:
    made, inbox = client(), hub.subscribe(b"k")
    for publisher in (made, hub):
        with pytest.raises(error):
            publisher.publish_many([(b"k", b"1"), (b"k", b"2"), (key, payload), (b"k", b"4")])
        made.sync()
        assert [inbox.receive(timeout=0).payload for _ in range(2)] == [b"1", b"2"]
        assert not len(inbox)


def test_an_error_while_sending_is_raised(fake: FakeHub, client: MakeClient) -> None:
    made, peer = batching(fake, client, limits=FOUR)
    fill(made)
    made.timeout = 0.01
    with pytest.raises(TimeoutError, match="takes no more"):
        made.publish_many([(b"k", b"x")] * 5)
    arrived(peer)
    made.timeout = PATIENCE
    made.publish_many([(b"k", b"y"), (b"k", b"z")])
    assert arrived(peer) == [[b"y", b"z"]]
    peer.close()
    with pytest.raises(DisconnectedError):
        made.publish_many([(b"k", b"y")])


@pytest.mark.parametrize("count", [1, 2, 3_000])
def test_a_batch_of_the_hub(hub: Hub, client: MakeClient, count: int) -> None:
    """Some keys have other receivers than the rest, so the batch cannot be handed over whole."""
    pairs = [(b"k/%d" % (number % 300), b"%d" % number) for number in range(count)]
    everything, some = client(senders=True), client()
    everything.subscribe(b"k/")
    some.subscribe(b"k/1")
    inbox = hub.subscribe(b"k/")
    for _ in range(2):
        assert hub.publish_many(iter(pairs)) == count
        got = [everything.receive(timeout=PATIENCE) for _ in pairs]
        assert got == [Message(*pair, hub.whoami()) for pair in pairs]
        assert [inbox.receive(timeout=PATIENCE).payload for _ in pairs] == [payload for _, payload in pairs]
        wanted = [payload for key, payload in pairs if key == b"k/1"]
        assert [some.receive(timeout=PATIENCE).payload for _ in wanted] == wanted
    assert hub.statistics().published == 2 * count
    assert not len(inbox)


def test_the_clients_and_the_hub_publish_with_the_same_verbs() -> None:
    for verb, parameters in (("publish", ["self", "key", "payload"]), ("publish_many", ["self", "messages"])):
        for kind in (sbuslib.Hub, sbuslib.Client, blocking.Client, aio.Client):
            assert list(inspect.signature(getattr(kind, verb)).parameters)[:3] == parameters
