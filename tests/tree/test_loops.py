"""Hubs that would stand above themselves."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from support import eventually
from worlds import FAST, World, received, settle


def joined(world: World) -> set[str]:
    return {name for name, relay in world.relays.items() if relay.state == "joined"}


def test_a_hub_does_not_join_itself(world: World) -> None:
    world.hub("a", limits=msgspec.structs.replace(FAST, prefix_wait=0.01))
    relay = world.relay("a", "a", wait=False)
    eventually(lambda: relay.state == "loop")
    client = world.client("a")
    client.subscribe(b"k")
    client.publish(b"k", b"once")
    assert [message.payload for message in received(client)] == [b"once"]


@pytest.mark.parametrize("order", [*itertools.permutations("ab"), *itertools.permutations("abc")])
@pytest.mark.parametrize("at_once", [True, False])
def test_hubs_that_join_in_a_ring_leave_one_link_open(world: World, order: tuple[str, ...], at_once: bool) -> None:
    names = sorted(order)
    for name in names:
        # One of them never has a hub above it, and its clients need not wait for that.
        world.hub(name, limits=msgspec.structs.replace(FAST, prefix_wait=0.01))
    for name in order:
        world.relay(name, names[(names.index(name) + 1) % len(names)], wait=False)
        if not at_once:
            eventually(lambda: world.relays[name].state in ("joined", "loop"))  # noqa: B023
    eventually(lambda: len(joined(world)) == len(names) - 1)
    clients = [world.client(name) for name in names]
    for client in clients:
        client.subscribe(b"k")
    settle(*clients)
    assert len(joined(world)) == len(names) - 1
    for client in clients:
        client.publish(b"k")
    settle(*clients)
    assert [len(received(client)) for client in clients] == [len(names)] * len(names)


@pytest.mark.parametrize("order", list(itertools.permutations("bcd")))
def test_a_diamond_is_no_loop(world: World, order: tuple[str, ...]) -> None:
    for name in "abcd":
        world.hub(name)
    above = {"b": "a", "c": "a", "d": "bc"}
    for name in order:
        world.relay(name, *above[name], wait=False)
    eventually(lambda: joined(world) == set("bcd"))
    clients = [world.client(name) for name in "abcd"]
    for client in clients:
        client.subscribe(b"k")
    settle(*clients)
    clients[0].publish(b"k")
    settle(*clients)
    assert [len(received(client)) for client in clients] == [1] * 4
    world.hubs["b"].stop(0)
    eventually(lambda: world.relays["d"].statistics().upstream == world.address("c") and "d" in joined(world))


def test_joining_again_while_the_old_link_is_still_known_is_no_loop(world: World) -> None:
    world.chain("top", "left")
    dead = world.peer("top")  # what an earlier link of the same hub may leave behind
    dead.send(b"CMSG interest/on")
    world.relays["left"].stop()
    world.relay("left", "top")
    assert world.relays["left"].state == "joined"


def test_a_path_that_changes_above_is_checked_again(world: World) -> None:
    for name in "abc":
        world.hub(name)
    world.relay("c", "b")
    world.relay("b", "a")
    eventually(lambda: len(world.hubs["c"].tree.path) == 3)
    relay = world.relay("a", "c", wait=False)
    eventually(lambda: relay.state == "loop")
    world.relays["b"].stop()
    eventually(lambda: relay.state == "joined")


def test_a_tree_that_is_too_deep_is_no_loop(world: World, caplog: pytest.LogCaptureFixture) -> None:
    limits = msgspec.structs.replace(FAST, path_hubs=3, prefix_wait=0.01)
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        world.hub(name, limits=limits)
    for below, above in zip(names[1:], names, strict=False):
        relay = world.relay(below, above, wait=False)
        eventually(lambda: relay.state in ("joined", "deep"))  # noqa: B023
    assert joined(world) == set("bce")
    (told,) = [record.message for record in caplog.records]
    assert told.endswith("3 hubs are above this one, and a path may have 3 (path_hubs): it stays apart")
    clients = [world.client(name) for name in "de"]
    for client in clients:
        client.subscribe(b"k")
    settle(*clients)  # they are a tree of their own
    clients[0].publish(b"k")
    settle(*clients)
    assert [len(received(client)) for client in clients] == [1, 1]
    world.relays["b"].stop()  # the tree above is less deep now
    eventually(lambda: joined(world) == set("cd") and world.relays["e"].state == "deep")


def test_a_tree_that_becomes_too_deep_lets_the_lowest_hubs_go(world: World) -> None:
    limits = msgspec.structs.replace(FAST, path_hubs=3)
    for name in "abcd":
        world.hub(name, limits=limits)
    world.relay("c", "b")
    world.relay("d", "c")
    world.relay("b", "a")
    eventually(lambda: world.relays["d"].state == "deep")
    assert joined(world) == set("bc")


def test_a_hub_that_stood_apart_is_in_an_outage_once_the_hub_above_has_gone(world: World) -> None:
    for name in "ab":
        world.hub(name, limits=msgspec.structs.replace(FAST, prefix_wait=0.01))
    world.relay("b", "a")
    relay = world.relay("a", "b", wait=False)
    eventually(lambda: relay.state == "loop")
    world.relays["b"].stop()
    world.hubs["b"].stop(0)
    eventually(lambda: relay.state in ("connecting", "outage"))
    assert world.client("a").sync("tree") == "partial"
