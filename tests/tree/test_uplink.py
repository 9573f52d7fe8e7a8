"""Messages to the parent: what is kept, lost, acknowledged or uncertain."""

from __future__ import annotations

import msgspec
import pytest
from support import PATIENCE, WHOAMI, FakeHub, eventually
from worlds import FAST, World, received, settle

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


def test_messages_beyond_the_bound_are_lost_counted_and_told(world: World) -> None:
    world.hub("top")
    world.hub("left", limits=msgspec.structs.replace(FAST, link_buffer=10 * len(b"MSG k\0x"), link_notices=0.01))
    relay = world.relay("left", "top")
    notices: list[object] = []
    publisher, before = world.client("left", on_notice=notices.append), world.client("top")
    before.subscribe(b"k")
    settle(publisher)
    world.hubs["top"].stop(0)
    eventually(lambda: relay.state == "outage")
    publisher.publish_many([(b"k", b"x")] * 25)
    publisher.sync()
    statistics = relay.statistics()
    assert (statistics.waiting, statistics.lost, statistics.uncertain) == (10, {"upstream": 15}, 0)
    world.hub("top", limits=msgspec.structs.replace(FAST, settle=0.2, link_notices=0.01))
    parent: list[object] = []
    client = world.client("top", on_notice=parent.append)
    client.subscribe(b"k")
    eventually(lambda: relay.statistics().up == 10)
    eventually(lambda: (publisher.sync(), client.sync(), notices and parent)[2])
    assert [(n.cause, n.count) for n in notices if hasattr(n, "cause")] == [("upstream", 15)]  # type: ignore[attr-defined]
    assert len(received(client)) == 10


def test_losses_are_told_while_the_hub_above_reads_too_slowly(world: World) -> None:
    with FakeHub(world.address("c")) as daemon:
        world.hub("left", limits=msgspec.structs.replace(FAST, link_packets=10, link_notices=0.01))
        relay = world.relay("left", "c", wait=False)
        daemon.accept_relay()
        relay.wait(PATIENCE)
        notices: list[object] = []
        publisher = world.client("left", on_notice=notices.append)
        publisher.publish_many([(b"k", b"x")] * 5_000)
        publisher.sync()
        lost = relay.statistics().lost
        assert lost
        eventually(lambda: (publisher.sync(), publisher.lost == lost)[1])
