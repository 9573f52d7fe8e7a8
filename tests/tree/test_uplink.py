"""What goes to the hub above: it is kept while the hub above is away or slow."""

from __future__ import annotations

import msgspec
from support import PATIENCE, FakeHub, eventually
from worlds import FAST, World


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
