"""Which of the messages that were sent up are acknowledged, and which are uncertain."""

from __future__ import annotations

import pytest
from support import PATIENCE, WHOAMI, FakeHub, eventually
from worlds import World, settle

from sbuslib.tree import uplink


def test_messages_without_acknowledgement_are_uncertain_and_not_sent_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink, "ACK_MESSAGES", 10)
    monkeypatch.setattr(uplink, "ACK_PAUSE", 60.0)
    with FakeHub(world.address("c")) as daemon:
        world.hub("left")
        relay = world.relay("left", "c", wait=False)
        link = daemon.accept_relay()
        relay.wait(PATIENCE)
        publisher = world.client("left")
        for n in range(25):
            publisher.publish(b"k", b"%d" % n)
            publisher.sync()
        messages = asked = acknowledged = 0
        while messages < 25:
            packet = link.receive()
            messages += packet.startswith(b"MSG k\0")
            if packet.startswith(WHOAMI) and messages:
                asked += 1
                if asked == 1:
                    acknowledged = messages
                    link.send(WHOAMI + b"\0!/cred/1/2/3")
        world.client("left").sync()
        eventually(lambda: relay.parent.up.acknowledged == acknowledged)
        link.close()
        eventually(lambda: relay.state != "joined")
        assert relay.statistics().uncertain == 25 - acknowledged
        again = daemon.accept_relay()
        world.client("left").publish(b"k", b"new")
        while not (packet := again.receive()).startswith(b"MSG"):
            pass
        assert packet == b"MSG k\0new"


def test_messages_that_a_killed_hub_had_not_passed_on_are_uncertain(world: World) -> None:
    world.chain("top", "left")
    slow, publisher = world.peer("top"), world.client("left")
    slow.subscribe(b"k")
    settle(publisher)
    relay = world.relays["left"]
    count = 5_000  # more than the kernel takes for one that does not read
    publisher.publish_many([(b"k", b"%d" % n) for n in range(count)])
    settle(publisher)
    assert world.hubs["top"].statistics().published == count, "the master has taken them all"
    kept = world.hubs["top"].statistics().waiting
    assert kept
    world.hubs["top"].stop(0)
    eventually(lambda: relay.state == "outage")
    assert kept <= relay.statistics().uncertain <= count
    assert len(list(iter(slow.receive, b""))) == count - kept
