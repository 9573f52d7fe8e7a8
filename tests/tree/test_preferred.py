"""Whether a hub that a relay prefers is there again, and stable."""

from __future__ import annotations

import msgspec
from support import PlainDaemon, eventually
from worlds import FAST, World, received, settle


def test_a_relay_goes_back_to_the_first_address_and_loses_nothing(world: World) -> None:
    world.hub("second")
    world.hub("left")
    relay = world.relay("left", "first", "second")
    publisher = world.client("left")
    below = world.client("left")
    below.subscribe(b"down")
    second = world.client("second")
    second.subscribe(b"up")
    settle(publisher, below, second)
    assert world.is_at("second")
    world.hub("first")
    first = world.client("first")
    first.subscribe(b"up")
    published = 0
    while not world.is_at("first"):
        for _ in range(20):
            publisher.publish(b"up", b"%d" % published)
            second.publish(b"down", b"")
            published += 1
        publisher.sync()
        second.sync()
    settle(publisher)
    here, there = ([int(message.payload) for message in received(client)] for client in (second, first))
    assert here, "it went on at the second while it waited"
    assert here + there == list(range(published))
    statistics = relay.statistics()
    assert (statistics.epoch, statistics.lost, statistics.uncertain, statistics.lost_above) == (2, 0, 0, 0)
    counts = world.hubs["second"].statistics()
    to_second = len(here)
    assert counts.delivered == to_second + len(received(below)), "what was sent down before it left came"


def test_a_relay_does_not_go_back_to_a_hub_that_closes_connections(world: World) -> None:
    world.hub("second")
    world.hub("left", limits=msgspec.structs.replace(FAST, link_pause_most=0.05))
    relay = world.relay("left", "first", "second")
    with PlainDaemon(world.address("first")) as daemon:
        for seen in range(1, 4):
            eventually(lambda seen=seen: daemon.accepted == seen)  # type: ignore[misc]
            daemon.disconnect()
    assert relay.epoch == 1
    assert world.is_at("second")


def test_a_relay_does_not_go_back_to_a_hub_that_is_now_below_its_own(world: World) -> None:
    for name in ("second", "left", "first"):
        world.hub(name, limits=msgspec.structs.replace(FAST, prefix_wait=0.001))
    world.hubs["first"].stop(0)
    relay = world.relay("left", "first", "second")
    world.hubs["first"].start()
    world.relay("first", "left")
    looks = world.hubs["first"].statistics
    before = looks().clients_total
    eventually(lambda: looks().clients_total > before + 2)
    assert relay.epoch == 1
    assert world.is_at("second")
