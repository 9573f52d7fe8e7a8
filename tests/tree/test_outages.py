"""Links that break and masters that go: what is kept, what is lost and how that is told."""

from __future__ import annotations

import gevent
import msgspec
import pytest
from support import PATIENCE, WHOAMI, FakeHub, eventually
from worlds import FAST, World, received, settle

from sbuslib.core import context
from sbuslib.tree import uplink


def test_messages_published_while_the_master_is_away_arrive_once_and_in_order(world: World) -> None:
    limits = msgspec.structs.replace(FAST, settle=0.3)
    world.hub("top", limits=limits)
    world.hub("left")
    relay = world.relay("left", "top")
    subscriber = world.client("top", reconnect=True)
    subscriber.subscribe(b"k")
    publisher = world.client("left")
    eventually(lambda: relay.statistics().interest_down == 1)
    publisher.publish(b"k", b"before")
    assert subscriber.receive(PATIENCE).payload == b"before"
    eventually(lambda: relay.up is not None and relay.up.acknowledged == 1)
    world.hubs["top"].stop(0)
    publisher.publish_many([(b"k", b"%d" % n) for n in range(1_000)])
    publisher.sync()
    waiting = gevent.spawn(lambda: [subscriber.receive(PATIENCE).payload for _ in range(1_000)])
    world.hub("top", limits=limits)
    assert waiting.get(timeout=PATIENCE) == [b"%d" % n for n in range(1_000)]
    statistics = relay.statistics()
    assert (statistics.epoch, statistics.lost, statistics.uncertain, statistics.buffered) == (2, 0, 0, 0)
    publisher.publish(b"k", b"after")
    assert subscriber.receive(PATIENCE).payload == b"after"


def test_messages_published_in_an_outage_reach_subscribers_on_other_slaves(world: World) -> None:
    limits = msgspec.structs.replace(FAST, settle=0.3)
    world.hub("top", limits=limits)
    for name in ("left", "right", "below"):
        world.hub(name)
        world.relay(name, "right" if name == "below" else "top")
    publisher = world.client("left")
    subscribers = [world.client(name) for name in ("right", "below")]
    for subscriber in subscribers:
        subscriber.subscribe(b"k")
    settle(publisher, *subscribers)
    world.hubs["top"].stop(0)
    eventually(lambda: {world.relays[name].state for name in ("left", "right")} == {"outage"})
    publisher.publish_many([(b"k", b"%d" % n) for n in range(1_000)])
    publisher.sync()
    world.hub("top", limits=limits)
    for subscriber in subscribers:
        assert [subscriber.receive(PATIENCE).payload for _ in range(1_000)] == [b"%d" % n for n in range(1_000)]
    publisher.publish(b"k", b"after")
    assert [subscriber.receive(PATIENCE).payload for subscriber in subscribers] == [b"after"] * 2
    statistics = world.relays["left"].statistics()
    assert (statistics.epoch, statistics.lost, statistics.uncertain) == (2, 0, 0)


def test_messages_beyond_the_bound_are_lost_counted_and_told(world: World) -> None:
    world.hub("top")
    world.hub("left", limits=msgspec.structs.replace(FAST, link_buffer=10 * len(b"MSG k\0x")))
    relay = world.relay("left", "top")
    notices: list[object] = []
    publisher = world.client("left", on_notice=notices.append)
    world.hubs["top"].stop(0)
    eventually(lambda: relay.state == "outage")
    publisher.publish_many([(b"k", b"x")] * 25)
    publisher.sync()
    statistics = relay.statistics()
    assert (statistics.buffered, statistics.lost, statistics.uncertain) == (10, 15, 0)
    world.hub("top", limits=msgspec.structs.replace(FAST, settle=0.2))
    above: list[object] = []
    client = world.client("top", on_notice=above.append)
    client.subscribe(b"k")
    eventually(lambda: relay.statistics().forwarded == 10)
    eventually(lambda: (publisher.sync(), client.sync(), notices and above)[2])
    assert [(n.cause, n.count) for n in notices if hasattr(n, "cause")] == [("upstream", 15)]  # type: ignore[attr-defined]
    assert len(received(client)) == 10


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
        eventually(lambda: relay.up is not None and relay.up.acknowledged == acknowledged)
        link.close()
        eventually(lambda: relay.state != "joined")
        assert relay.statistics().uncertain == 25 - acknowledged
        again = daemon.accept_relay()
        world.client("left").publish(b"k", b"new")
        while not (packet := again.receive()).startswith(b"MSG"):
            pass
        assert packet == b"MSG k\0new"


def test_messages_that_a_killed_master_had_not_passed_on_are_uncertain(world: World) -> None:
    world.chain("top", "left")
    slow, publisher = world.peer("top"), world.client("left")
    slow.subscribe(b"k")
    settle(publisher)
    relay = world.relays["left"]
    count = 5_000  # more than the kernel takes for one that does not read
    publisher.publish_many([(b"k", b"%d" % n) for n in range(count)])
    settle(publisher)
    assert world.hubs["top"].statistics().received == count, "the master has taken them all"
    kept = world.hubs["top"].statistics().queued
    assert kept
    world.hubs["top"].stop(0)
    eventually(lambda: relay.state == "outage")
    assert kept <= relay.statistics().uncertain <= count
    assert len(list(iter(slow.receive, b""))) == count - kept


def test_messages_that_were_passed_on_are_not_uncertain(world: World) -> None:
    world.chain("top", "left")
    slow, publisher = world.peer("top"), world.client("left")
    slow.subscribe(b"k")
    settle(publisher)
    relay = world.relays["left"]
    publisher.publish_many([(b"k", b"%d" % n) for n in range(5_000)])
    settle(publisher)
    for n in range(5_000):
        assert slow.receive() == b"MSG k\0%d" % n
    eventually(lambda: relay.up is not None and relay.up.acknowledged == 5_000)
    world.hubs["top"].stop(0)
    eventually(lambda: relay.state == "outage")
    assert relay.statistics().uncertain == 0


def test_a_reader_that_stopped_does_not_make_everything_uncertain(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "PASSED_WAIT", 0.01)
    world.hub("top")
    world.hub("left")
    relay = world.relay("left", "top")
    stopped, publisher = world.peer("top"), world.client("left")
    stopped.subscribe(b"k")
    settle(publisher)
    publisher.publish_many([(b"k", b"%d" % n) for n in range(5_000)])
    settle(publisher)
    assert world.hubs["top"].statistics().queued
    eventually(lambda: relay.up is not None and relay.up.acknowledged == 5_000)


def test_losses_at_a_slow_master_are_told_while_the_link_stays(world: World) -> None:
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
        eventually(lambda: (publisher.sync(), publisher.lost.get("upstream") == lost)[1])


def test_several_upstreams_are_tried_in_order(world: World) -> None:
    world.hub("left")
    relay = world.relay("left", "first", "second", wait=False)
    world.hub("second")
    relay.wait(PATIENCE)
    assert relay.statistics().upstream == world.address("second")
    world.hub("first")
    world.hubs["second"].stop(0)
    eventually(lambda: relay.state == "joined" and relay.statistics().upstream == world.address("first"))


def test_patterns_are_told_again_after_the_link_broke(world: World) -> None:
    world.chain("top", "left", "below")
    client = world.client("below")
    client.subscribe(b"k")
    settle(client)
    world.hubs["left"].stop(0)
    world.hub("left")
    world.relay("left", "top")
    world.relays["below"].wait(PATIENCE)
    settle(client)
    world.client("top").publish(b"k", b"1")
    assert client.receive(PATIENCE).payload == b"1"


def test_a_sync_in_an_outage_is_partial(world: World) -> None:
    world.chain("top", "left")
    client = world.client("left")
    assert client.sync("tree") == "tree"
    world.hubs["top"].stop(0)
    eventually(lambda: world.relays["left"].state == "outage")
    assert client.sync("tree") == "partial"
    assert client.sync() == "local"


def test_all_patterns_are_told_again_however_many(world: World) -> None:
    world.chain("top", "left")
    client = world.client("left")
    count = 3 * FAST.queued_answers  # more than may wait for the hub above at a time
    for n in range(count):
        client._say(lambda n=n: [b"SUB k/%d" % n], None)  # type: ignore[misc]
    settle(client)
    world.hubs["top"].stop(0)
    top = world.hub("top")
    eventually(lambda: top.statistics().patterns == count + 1)  # and the link's secrets
