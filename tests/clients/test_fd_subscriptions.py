"""Frames and descriptors over real hubs: all three clients, other users, and offers that are not what they say."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from accounting import acting_as
from clients.drivers import Bus, script
from clients.fds.visits import STRANGER
from clients.makers import Make, spawn
from descriptors import ends, lingering
from support import PATIENCE, ROOT, HubThread
from worlds import World

from sbuslib import blocking
from sbuslib.clients.endpoint import Endpoint
from sbuslib.clients.fd_publishers import MOST_IN_PACKET
from sbuslib.clients.fds.in_flight import in_flight
from sbuslib.clients.fds.memory import MappedFrame, PacketFrame
from sbuslib.errors import DescriptorError, DisconnectedError
from sbuslib.wire.offers import MAGIC, TOKEN_BYTES, Offer, encode_offer

BIG = os.urandom(1_000_001)


@pytest.fixture
def shared(address: str) -> Iterator[HubThread]:
    """A hub to which other users may connect."""
    with HubThread(address, mode=0o777) as server:
        os.chmod(os.path.dirname(address), 0o755)
        yield server


@pytest.fixture
def stranger(shared: HubThread, make: Make) -> Endpoint:
    """A client of another user, with its descriptor store open."""
    with acting_as(STRANGER):
        client = make()
        client.frames.publish("opens/its/store", BIG)
    return client


def lost_one(frames: Any, reason: str) -> None:
    """The next one cannot be had, for this reason."""
    with pytest.raises(DescriptorError) as raised:
        frames.receive(timeout=PATIENCE)
    assert raised.value.reason == reason
    assert frames.lost == {reason: 1}


@script
async def test_a_frame_of_any_size_comes_as_a_buffer(bus: Bus, server: HubThread) -> None:
    sender, receiver = await bus.client(), await bus.client()
    async with receiver.frames.subscribe("camera/*") as frames:
        for data, meta in product((b"", b"small", MAGIC, BIG[:MOST_IN_PACKET], BIG[: MOST_IN_PACKET + 1]), (b"", b"m")):
            await sender.frames.publish("camera/1", memoryview(data), meta=meta)
            with await frames.receive(timeout=PATIENCE) as frame:
                assert (bytes(frame), frame.size, frame.key, frame.meta) == (data, len(data), b"camera/1", meta)
                assert frame.sender == sender.credentials
                assert isinstance(frame, MappedFrame if len(data) > MOST_IN_PACKET else PacketFrame)
        await sender.frames.publish("camera/1", BIG)
        async for frame in frames:
            frame.close()
            break
        with pytest.raises(TimeoutError):
            await frames.receive(timeout=0.001)


def test_frames_come_in_order_and_are_asked_for_together(server: HubThread, make: Make) -> None:
    sender, receiver = make(), make()
    with receiver.frames.subscribe("a/") as frames:
        for number in range(40):
            sender.frames.publish("a/1", BIG if number % 3 else b"x", meta=b"%d" % number)
            sender.publish("a/2", b"%d" % number)
        metas, plain = list[bytes](), list[bytes]()
        for frame in frames:
            with frame:
                (metas if frame.key == b"a/1" else plain).append(frame.meta or bytes(frame))
                if len(plain) == 40:
                    break
        assert metas == plain == [b"%d" % number for number in range(40)]


def test_many_receivers_have_one_frame(server: HubThread, make: Make) -> None:
    sender = make()
    receivers = [make().frames.subscribe("a") for _ in range(10)]
    sender.frames.publish("a", BIG)
    for frames in receivers:
        with frames.receive(timeout=PATIENCE) as frame:
            assert bytes(frame) == BIG
        frames.unsubscribe()


@script
async def test_a_descriptor_is_the_senders_as_well(bus: Bus, server: HubThread) -> None:
    sender, receiver = await bus.client(), await bus.client()
    here, there = socket.socketpair()
    with here, there:
        async with receiver.descriptors.subscribe("a") as descriptors:
            await sender.descriptors.publish("a", there, meta=b"m")
            found = await descriptors.receive(timeout=PATIENCE)
            assert (found.key, found.meta, found.sender) == (b"a", b"m", sender.credentials)
            with socket.socket(fileno=found.detach()) as copy:
                here.send(b"x")
                assert copy.recv(1) == b"x"
                there.send(b"y")
            assert here.recv(1) == b"y"


SENDER = """
import atexit, sys
from sbuslib.blocking import Client
from sbuslib.clients.fds import descriptor_store
descriptor_store.LINGER = 60.0
client = Client(sys.argv[1])
client.frames.publish("a", bytes(1_000_000))
if len(sys.argv) > 2:
    client.close()
atexit.register(print, "ends", flush=True)
"""


@pytest.mark.parametrize("closes", [True, False])
def test_the_last_frame_of_a_program_that_ends_arrives(
    closes: bool, server: HubThread, make: Make, address: str
) -> None:
    command = [sys.executable, "-c", SENDER, address, *["close"] * closes]
    with make().frames.subscribe("a") as frames:
        sender = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)
        try:
            assert sender.stdout is not None
            assert sender.stdout.readline() == b"ends\n"
            with frames.receive(timeout=PATIENCE) as frame:
                assert frame.size == 1_000_000
        finally:
            sender.kill()
            sender.communicate()


def test_offers_that_are_not_what_they_say(server: HubThread, make: Make) -> None:
    """Each is counted with its cause, and the next one comes."""
    sender, receiver = make(), make()
    own = sender._core.descriptor_store

    def offered(kind: str, size: int, token: bytes | None = None) -> bytes:
        if token is None:
            with open(__file__, "rb") as file:
                token = own.offer_descriptor(file.fileno())
        return encode_offer(own.named(Offer(kind, size), token))  # type: ignore[arg-type]

    wrong = {
        "malformed": MAGIC + b"\xff\xff",
        "gone": offered("frame", 10, os.urandom(TOKEN_BYTES)),
        "no sealed memory": offered("frame", 10),
        "larger than is taken": offered("frame", 1 << 40),
        "no frame but a descriptor": offered("descriptor", 0),
        "no descriptor store": encode_offer(Offer("frame", 10, b"", os.urandom(TOKEN_BYTES))),
        "descriptor store in a folder that this client was not given": encode_offer(
            Offer("frame", 10, b"", os.urandom(TOKEN_BYTES), in_folder=True)
        ),
    }
    with receiver.frames.subscribe("a") as frames:
        for payload in wrong.values():
            sender.publish("a", payload)
            sender.frames.publish("a", BIG)
        found = []
        for _ in range(2 * len(wrong)):
            try:
                frames.receive(timeout=PATIENCE).close()
            except DescriptorError as error:
                found.append(str(error))
        assert found == [f"a: {reason}" for reason in wrong]
        assert frames.lost == dict.fromkeys(wrong, 1)


def test_slow_sockets_in_place_of_frames_delay_nobody(server: HubThread, make: Make) -> None:
    sender, receiver = make(), make()
    own = sender._core.descriptor_store
    with receiver.frames.subscribe("a") as frames, lingering() as (sock, other):
        token = own.offer_descriptor(sock.fileno())
        sender.publish("a", encode_offer(own.named(Offer("frame", 10), token)))
        lost_one(frames, "no sealed memory")
        own.take_back(token)
        sock.close()
        assert ends(other)


def test_a_stranger_that_hands_out_something_else_is_not_asked_for_a_while(
    shared: HubThread, make: Make, stranger: Endpoint
) -> None:
    receiver = make()
    own = stranger._core.descriptor_store
    with receiver.frames.subscribe("a") as frames, open(__file__, "rb") as file:
        token = own.offer_descriptor(file.fileno())
        stranger.publish("a", encode_offer(own.named(Offer("frame", 10), token)))
        lost_one(frames, "no sealed memory")
        stranger.frames.publish("a", BIG)
        with pytest.raises(DescriptorError, match="not asked for a while"):
            frames.receive(timeout=PATIENCE)


def test_frames_of_another_user_are_taken_and_descriptors_only_where_asked_for(
    shared: HubThread, make: Make, stranger: Endpoint
) -> None:
    receiver = make()
    with (
        receiver.frames.subscribe("a") as frames,
        receiver.descriptors.subscribe("b") as refused,
        receiver.descriptors.subscribe("b", users=[STRANGER]) as taken,
        open(__file__, "rb") as file,
    ):
        stranger.frames.publish("a", BIG)
        with frames.receive(timeout=PATIENCE) as frame:
            assert bytes(frame) == BIG
            assert frame.sender == stranger.credentials
        stranger.descriptors.publish("b", file)
        lost_one(refused, "descriptor of another user")
        taken.receive(timeout=PATIENCE).close()


def test_a_message_cannot_send_its_receivers_to_the_store_of_another(
    shared: HubThread, make: Make, stranger: Endpoint
) -> None:
    sender, receiver = make(), make()
    own = sender._core.descriptor_store
    sender.frames.publish("opens/its/store", BIG)
    with receiver.frames.subscribe("a") as frames:
        stranger.publish("a", encode_offer(own.named(Offer("frame", 10), os.urandom(TOKEN_BYTES))))
        lost_one(frames, "descriptor store of another user")
        assert not in_flight._answers


def test_frames_cross_relays_on_one_host(world: World) -> None:
    world.chain("top", "left")
    world.hub("right")
    world.relay("right", "top")
    sender, receiver = world.client("left"), world.client("right")
    with receiver.frames.subscribe("a") as frames:
        assert receiver.sync("tree") == "tree"
        sender.frames.publish("a", BIG)
        with frames.receive(timeout=PATIENCE) as frame:
            assert bytes(frame) == BIG
            assert frame.sender is not None
            assert frame.sender.count(b"!") == 2


def test_stores_in_a_folder(server: HubThread, make: Make, folder: str) -> None:
    sender, receiver, other = make(descriptor_folder=folder), make(descriptor_folder=folder), make()
    with receiver.frames.subscribe("a") as frames, other.frames.subscribe("a") as outside:
        sender.frames.publish("a", BIG)
        frames.receive(timeout=PATIENCE).close()
        lost_one(outside, "descriptor store in a folder that this client was not given")
        sender.close()
        assert not [name for name in os.listdir(folder) if name.startswith("fds-")]


def test_what_was_not_received_is_let_go(server: HubThread, make: Make) -> None:
    sender, receiver = make(), make()
    here, there = socket.socketpair()
    with here:
        with receiver.descriptors.subscribe("a") as descriptors:
            sender.descriptors.publish("a", there)
            sender.descriptors.publish("a", there)
            descriptors.receive(timeout=PATIENCE).close()
            there.close()
        sender.close()
        here.settimeout(PATIENCE)
        assert here.recv(1) == b""


def test_a_subscription_ends_as_others_do(server: HubThread, make: Make) -> None:
    client = make()
    frames = client.frames.subscribe("a")
    assert (frames.patterns, frames.closed) == ((b"a",), False)
    with pytest.raises(TimeoutError):
        frames.receive(timeout=0.001)
    frames.unsubscribe()
    assert frames.closed
    assert list(frames) == []
    with pytest.raises(DisconnectedError):
        frames.receive(timeout=PATIENCE)


def test_a_caller_that_gives_up_leaves_its_frames_to_the_next(server: HubThread, make: Make) -> None:
    class GivesUpError(Exception):
        pass

    sender, receiver = make(), make()
    descriptor_client = receiver._core.descriptor_client
    original = descriptor_client._exchange

    async def give_up(*_: object) -> Any:
        descriptor_client._exchange = original  # type: ignore[method-assign]
        raise GivesUpError

    with receiver.frames.subscribe("a") as frames:
        descriptor_client._exchange = give_up  # type: ignore[assignment,method-assign]
        for number in range(3):
            sender.frames.publish("a", BIG, meta=b"%d" % number)
        with pytest.raises(GivesUpError):
            frames.receive(timeout=PATIENCE)
        assert [frames.receive(timeout=PATIENCE).meta for _ in range(3)] == [b"0", b"1", b"2"]


def test_threads_share_a_subscription(server: HubThread, address: str) -> None:
    found: list[bytes] = []
    with (
        blocking.Client(address) as sender,
        blocking.Client(address) as receiver,
        receiver.frames.subscribe("a") as frames,
    ):

        def receive() -> None:
            for _ in range(5):
                with frames.receive(timeout=PATIENCE) as frame:
                    found.append(frame.meta)

        threads = [spawn(receiver, receive) for _ in range(4)]
        for number in range(20):
            sender.frames.publish("a", BIG, meta=b"%d" % number)
        for thread in threads:
            thread.join(PATIENCE)
    assert sorted(found, key=int) == [b"%d" % number for number in range(20)]
