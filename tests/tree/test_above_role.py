"""What comes from the parent."""

from __future__ import annotations

import pytest
from support import PATIENCE, WHOAMI, FakeHub, choose, eventually
from worlds import World, join, settle

RUBBISH = {
    b"nonsense": "unknown verb",
    b"MSG no end": "message without NUL",
    b"SUB k": "not for a relay",
    b"MSG a/!/b\0": "reserved token in a key",
    b"CMSG from\0": "wrapper without packet",
    b"CMSG from\0!/cred/1/2/3\0SUB k": "wrapped packet is no message",
    b"CMSG from\0somebody\0MSG k\0": "malformed sender",
    b"CMSG hub/features\0path=" + b",".join([b"1"] * 257): "path too long",
    b"CMSG interest/on\0master": "unknown mode",
    b"CMSG interest/sync\0" + bytes(65): "token too long",
    b"CMSG notice/lost\0nonsense": "malformed notice",
}


@pytest.mark.parametrize(("packet", "reason"), RUBBISH.items())
def test_a_wrong_packet_from_above_is_logged_once_and_does_not_end_the_link(
    world: World, caplog: pytest.LogCaptureFixture, packet: bytes, reason: str
) -> None:
    with FakeHub(world.address("top")) as master:
        link = join(world, master)
        client = world.client("left")
        client.subscribe(b"k")
        for _ in range(3):
            link.send(packet)
            link.send(b"MSG k\0")
            client.receive(timeout=PATIENCE)
        statistics = world.relays["left"].statistics()
        assert (statistics.state, statistics.epoch, statistics.mode) == ("joined", 1, "announce")
        assert statistics.dropped == {reason: 3}
        told = [record.message for record in caplog.records]
        assert len(told) == 1
        assert f": {reason}; user " in told[0]
        assert told[0].endswith(f", at {world.address('top')}")


def test_an_acknowledgement_counts_although_the_link_ends_right_after_it(world: World) -> None:
    with FakeHub(world.address("top")) as master:
        world.hub("left")
        relay = world.relay("left", "top", wait=False)
        link = master.accept()
        link.send(b"CMSG hub/features\0hub/sync id=1 path=1", WHOAMI + b"\0!/cred/1/2/3")
        link.send(b"CMSG hub/sync\0root\0local")
        relay.wait(PATIENCE)
        world.client("left").publish(b"k", b"1")
        while not (packet := link.receive()).endswith(b"\0passed"):
            pass
        link.send(packet)
        link.close()
        eventually(lambda: relay.state == "outage")
        assert (relay.statistics().up, relay.statistics().uncertain) == (1, 0)


def test_the_longest_message_comes_down_with_its_sender(world: World) -> None:
    world.chain("top", "left")
    client = world.client("top")
    choose(client, b"senders/on")
    client.subscribe(b"k")
    settle(client)
    payload = bytes(409_600 - len(b"MSG k\0"))
    world.client("left").publish(b"k", payload)
    message = client.receive(timeout=PATIENCE)
    assert message.payload == payload
    assert message.sender is not None
