"""What goes to the hub above: it is kept while the hub above is away or slow."""

from __future__ import annotations

import gevent
import msgspec
from support import PATIENCE, FakeHub, eventually
from worlds import FAST, World


def test_messages_that_wait_for_the_hub_above_arrive_once_and_in_order(world: World) -> None:
    limits = msgspec.structs.replace(FAST, settle=0.3)
    world.hub("top", limits=limits)
    world.hub("left")
    relay = world.relay("left", "top")
    subscriber = world.client("top", reconnect=True)
    subscriber.subscribe(b"k")
    publisher = world.client("left")
    eventually(lambda: relay.statistics().announced == 1)
    publisher.publish(b"k", b"before")
    assert subscriber.receive(timeout=PATIENCE).payload == b"before"
    eventually(lambda: relay.above.up.acknowledged == 1)
    world.hubs["top"].stop(0)
    publisher.publish_many([(b"k", b"%d" % n) for n in range(1_000)])
    publisher.sync()
    waiting = gevent.spawn(lambda: [subscriber.receive(timeout=PATIENCE).payload for _ in range(1_000)])
    world.hub("top", limits=limits)
    assert waiting.get(timeout=PATIENCE) == [b"%d" % n for n in range(1_000)]
    statistics = relay.statistics()
    assert (statistics.epoch, statistics.lost, statistics.uncertain, statistics.waiting) == (2, {}, 0, 0)
    publisher.publish(b"k", b"after")
    assert subscriber.receive(timeout=PATIENCE).payload == b"after"


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
