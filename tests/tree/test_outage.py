"""What is kept for the parent, and the count of what was lost."""

from __future__ import annotations

import msgspec
from support import PATIENCE, FakeHub, eventually
from worlds import FAST, World, received, settle


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
