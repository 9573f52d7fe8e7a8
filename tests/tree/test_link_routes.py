"""Who receives what comes over a link between two hubs."""

from __future__ import annotations

from support import PATIENCE
from worlds import World, received, settle


def test_messages_reach_every_hub_of_the_tree_once_and_in_order(world: World) -> None:
    world.chain("top", "left", "below")
    world.hub("right")
    world.relay("right", "top")
    clients = {name: world.client(name) for name in ("top", "left", "below", "right")}
    for client in clients.values():
        client.subscribe(b"room/")
        client.subscribe(b"")
    settle(*clients.values())
    for name, client in clients.items():
        client.publish_many([(b"room/%d" % n, name.encode()) for n in range(100)])
    settle(*clients.values())
    for client in clients.values():
        mine: dict[bytes, list[bytes]] = {}
        for _ in range(400):
            message = client.receive(timeout=PATIENCE)
            mine.setdefault(message.payload, []).append(message.key)
        assert all(keys == [b"room/%d" % n for n in range(100)] for keys in mine.values())
        assert len(mine) == 4
    settle(*clients.values())
    assert [received(client) for client in clients.values()] == [[], [], [], []]
