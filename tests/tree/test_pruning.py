"""Keys that a hub below is told not to send, and when it is told to send them again."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from support import PATIENCE, Peer, eventually
from worlds import FAST, World

from sbuslib.tree import pruning
from sbuslib.tree.pruning import KeyTable


@pytest.mark.parametrize(("most", "most_bytes"), [(3, 1_000), (1_000, 3)])
def test_the_table_of_keys_forgets_the_oldest(most: int, most_bytes: int) -> None:
    table = KeyTable(most, most_bytes)
    assert [table.add(key) for key in (b"a", b"b", b"a", b"c")] == [[], [], [], []]
    assert table.add(b"d") == [b"a"]
    assert table.all_keys() == [b"b", b"c", b"d"]
    assert table.discard(b"c")
    assert not table.discard(b"c")
    assert len(table) == table.bytes == 2
    assert b"d" in table


def test_the_table_of_pruned_keys_is_bounded(world: World, make_link: Callable[[], Peer]) -> None:
    link = make_link()
    for n in range(6_000):
        link.publish(b"key/%d" % n)
        if n % 64 == 0:
            link.pending()
    (only,) = world.hubs["top"].tree.links.values()
    assert only.pruned is not None
    assert len(only.pruned) <= FAST.pruned_keys
    client = world.client("top")
    client.subscribe(b"key/*")
    table = only.pruned
    eventually(lambda: (link.pending(), len(table))[1] == 0)


def test_all_keys_are_grafted_when_too_many_patterns_come_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "SEARCHES", 4)
    monkeypatch.setattr(pruning, "SEARCHED_A_STEP", 1)
    world.hub("top", relays=[12_345])
    world.uids["top"] = 12_345
    link = world.peer("top")
    link.send(b"CMSG interest/on")
    assert link.receive() == b"CMSG interest/on\0prune"
    world.uids.clear()
    for n in range(50):
        link.publish(b"key/%d" % n)
    assert sum(packet.startswith(b"CMSG interest/prune") for packet in link.pending()) == 50
    (only,) = world.hubs["top"].tree.links.values()
    client = world.client("top")
    client.subscribe(*(b"other/*/%d" % n for n in range(8)))
    assert len(world.hubs["top"].tree.telling.pruning.searches) <= 4
    eventually(lambda: only.pruned is not None and not len(only.pruned))
    assert sum(packet.startswith(b"CMSG interest/graft") for packet in link.pending()) == 50


def test_a_pruned_key_that_somebody_wants_again_is_grafted(world: World) -> None:
    world.hub("top", relays=["12345"])
    world.hub("left")
    world.uids["top"] = 12_345
    world.relay("left", "top")
    world.uids.clear()
    publisher, subscriber = world.client("left"), world.client("top")
    for wanted in (b"room/1", b"room/*", b""):
        publisher.publish(b"room/1", b"nobody")
        eventually(lambda: world.relays["left"].statistics().pruned == 1)
        subscription = subscriber.subscribe(wanted)
        world.settle(subscriber)
        assert world.relays["left"].statistics().pruned == 0
        publisher.publish(b"room/1", b"1")
        assert subscriber.receive(timeout=PATIENCE).payload == b"1"
        subscription.unsubscribe()
        world.settle(subscriber)


def test_the_oldest_key_of_a_full_table_is_grafted(world: World) -> None:
    world.hub("top", relays=[12_345], limits=msgspec.structs.replace(FAST, pruned_keys=3))
    world.hub("left")
    world.uids["top"] = 12_345
    relay = world.relay("left", "top")
    world.uids.clear()
    publisher = world.client("left")
    for n in range(3):
        publisher.publish(b"%d" % n)
    eventually(lambda: relay.statistics().pruned == 3)

    def forgotten() -> bool:
        publisher.publish(b"3")
        publisher.sync()
        return relay.above.demand.pruned.all_keys() == [b"1", b"2", b"3"]

    eventually(forgotten)
