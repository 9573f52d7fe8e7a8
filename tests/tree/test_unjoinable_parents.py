"""Which parents cannot be joined: those that are below, and those that are too deep."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from support import eventually
from worlds import FAST, World, received, settle

from sbuslib.secrets import Namespace
from sbuslib.tree.handshake import LinkError, check_features, is_unknown
from sbuslib.wire.control import Features


def features(*path: bytes, separator: bytes = b"/") -> Features:
    return Features(frozenset(), path[0], path, separator)


def test_another_separator() -> None:
    with pytest.raises(LinkError, match="separator"):
        check_features(features(b"2", separator=b"."), b"1", b"/", 3)


def test_ids_that_the_kernel_could_not_tell() -> None:
    for key in (b"!/cred/1/2/0", b"!/cred/65534/2/3", b"!/cred/1/2/3/!/cred/1/65534/3"):
        assert is_unknown(key, Namespace())
    for key in (b"!/cred/1/2/3", b"!/cred/0/0/1", b"!/cred/1/2/0/!/cred/1/2/3"):
        assert not is_unknown(key, Namespace())


def joined(world: World) -> set[str]:
    return {name for name, relay in world.relays.items() if relay.state == "joined"}


@pytest.mark.parametrize("order", ["a", *itertools.permutations("ab"), *itertools.permutations("abc")])
@pytest.mark.parametrize("at_once", [True, False])
def test_of_hubs_that_join_in_a_ring_one_stays_apart(world: World, order: tuple[str, ...], at_once: bool) -> None:
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
    parent = {"b": "a", "c": "a", "d": "bc"}
    for name in order:
        world.relay(name, *parent[name], wait=False)
    eventually(lambda: joined(world) == set("bcd"))
    clients = [world.client(name) for name in "abcd"]
    for client in clients:
        client.subscribe(b"k")
    settle(*clients)
    clients[0].publish(b"k")
    settle(*clients)
    assert [len(received(client)) for client in clients] == [1] * 4
    world.hubs["b"].stop(0)
    eventually(lambda: world.relays["d"].statistics().address == world.address("c") and "d" in joined(world))


def test_a_tree_that_is_too_deep_is_no_loop(world: World, caplog: pytest.LogCaptureFixture) -> None:
    limits = msgspec.structs.replace(FAST, path_hubs=3, prefix_wait=0.01)
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        world.hub(name, limits=limits)
    for below, parent in zip(names[1:], names, strict=False):
        relay = world.relay(below, parent, wait=False)
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
