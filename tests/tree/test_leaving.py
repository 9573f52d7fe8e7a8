"""How a hub leaves the one above it for another, so that nothing is lost."""

from __future__ import annotations

import msgspec
from support import PATIENCE, WHOAMI, FakeHub, eventually
from worlds import FAST, World


def test_messages_are_uncertain_if_the_hub_that_is_left_does_not_acknowledge_them(world: World) -> None:
    with FakeHub(world.address("second")) as daemon:
        world.hub("left", limits=msgspec.structs.replace(FAST, link_wait=0.05))
        relay = world.relay("left", "second", wait=False)
        link = daemon.accept_relay()
        relay.wait(PATIENCE)
        publisher = world.client("left")
        for n in range(10):
            publisher.publish(b"k", b"%d" % n)
        publisher.sync()
        eventually(lambda: relay.statistics().up == 10)
        world.hub("first")
        relay.reconfigure(world.address("first"))
        client = world.client("first")
        client.subscribe(b"k")
        eventually(lambda: world.is_at("first"))
        publisher.publish(b"k", b"10")
        assert client.receive(timeout=PATIENCE).payload == b"10"
        statistics = relay.statistics()
        assert (statistics.lost, statistics.uncertain) == ({}, 10)
        while link.receive():  # until the end
            pass


def test_settings_may_change_while_a_hub_is_left(world: World) -> None:
    with FakeHub(world.address("second")) as daemon:
        world.hub("left")
        relay = world.relay("left", "second", wait=False)
        link = daemon.accept_relay()
        relay.wait(PATIENCE)
        world.client("left").publish(b"k", b"1")  # which is not acknowledged yet
        eventually(lambda: relay.statistics().up == 1)
        world.hub("first")
        relay.reconfigure(world.address("first"))
        eventually(lambda: not relay.above.up.open)
        relay.reconfigure(world.address("second"))
        while not (packet := link.receive()).startswith(WHOAMI):
            assert packet
        link.send(WHOAMI + b"\0!/cred/1/2/3")
        while link.receive():
            pass
        link.close()
        daemon.accept_relay()
        eventually(lambda: relay.above.up.open)
        assert relay.statistics().uncertain == 0


def test_the_hub_that_is_left_may_end_the_link_first(world: World) -> None:
    with FakeHub(world.address("second")) as daemon:
        world.hub("left")
        relay = world.relay("left", "second", wait=False)
        link = daemon.accept_relay()
        relay.wait(PATIENCE)
        world.client("left").publish(b"k", b"1")  # which is never acknowledged
        eventually(lambda: relay.statistics().up == 1)
        world.hub("first")
        relay.reconfigure(world.address("first"))
        eventually(lambda: not relay.above.up.open)
        link.close()
        eventually(lambda: world.is_at("first"))
