"""What is presumed to be wanted stays presumed in the whole tree, and what is known stays known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support import PATIENCE, FakeHub, Peer, eventually
from worlds import FAST, OWN, RELAY, World, greet_relay, receive_until, served, settle

from sbuslib import Client
from sbuslib.tree.hub_identities import Hello
from sbuslib.wire import control


def watches(client: Client, *patterns: bytes) -> list[Any]:
    return [client.hub.watch_interest(pattern) for pattern in patterns]


def say(client: Client, watched: list[Any], *states: bool | None) -> None:
    """The watches say this in the end, and so does the hub where it is asked about a key."""
    eventually(lambda: client.sync() and [watch.wanted for watch in watched] == list(states))
    for watch, state in zip(watched, states, strict=True):
        if not watch.pattern.endswith((b"*", b"/")):
            assert client.hub.is_wanted(watch.pattern) is state


@pytest.mark.parametrize("pattern", [b"", b"camera/1"])
def test_a_watch_below_a_parent_that_wants_just_what_was_presumed_is_known(world: World, pattern: bytes) -> None:
    world.hub("left", limits=msgspec.structs.replace(FAST, prefix_wait=0.001))
    camera = world.client("left")
    watched = watches(camera, b"camera/1", b"camera/*")
    with FakeHub(world.address("top")) as parent:
        world.relay("left", "top", wait=False, export=[pattern])
        link = parent.accept()
        greet_relay(link)
        world.relays["left"].wait(PATIENCE)
        link.send(b"CMSG interest/add\0" + pattern, b"CMSG interest/sync\0t")
        receive_until(link, b"CMSG interest/sync\0t")
        camera.sync()  # the watches have been looked at, while all that may go up was presumed as well
        link.send(b"CMSG interest/complete")
        say(camera, watched, True, True)
        world.relays["left"].stop()


def test_what_a_hub_presumes_is_presumed_below_it_and_beside_what_is_known(world: World) -> None:
    """The hub in the middle may not know what is wanted above: that of another user."""
    world.hub("top", relays=[RELAY])
    world.hub("middle")
    world.uids["top"] = RELAY
    world.relay("middle", "top")
    world.uids.clear()
    world.hub("low")
    world.relay("low", "middle")
    world.hub("lowest")
    world.relay("lowest", "low")
    camera, viewer, beside = world.client("lowest"), world.client("top"), world.client("middle")
    settle(camera)
    watched = watches(camera, b"camera/1", b"camera/*", b"door")
    say(camera, watched, None, None, None)

    # Somebody whom this part of the tree knows.
    here = beside.subscribe(b"camera/1")
    settle(beside, camera)
    say(camera, watched, True, True, None)
    here.unsubscribe()
    settle(beside, camera)
    say(camera, watched, None, None, None)

    # What is presumed goes up all the same.
    seen = viewer.subscribe(b"camera/")
    settle(viewer, camera)
    camera.publish(b"camera/1", b"a picture")
    assert seen.receive(timeout=PATIENCE).payload == b"a picture"
    say(camera, watched, None, None, None)


def test_what_is_wanted_beyond_the_limits_of_a_link_is_presumed_in_the_whole_tree(world: World) -> None:
    few = msgspec.structs.replace(FAST, link_patterns=4)
    for name in ("top", "middle", "low"):
        world.hub(name, limits=few)
    world.relay("middle", "top")
    world.relay("low", "middle")
    above, below = world.client("top"), world.client("low")
    for one, other in ((above, below), (below, above)):
        watched = watches(other, b"a/1", b"b/1")
        settle(one, other)
        say(other, watched, False, False)
        many = [one.subscribe(b"a/%d" % number) for number in range(6)]
        settle(one, other)
        say(other, watched, None, None)
        other.publish(b"a/5", b"")
        assert many[5].receive(timeout=PATIENCE)
        for subscription in many[2:]:
            subscription.unsubscribe()
        settle(one, other)
        say(other, watched, True, False)
        for subscription in many[:2]:
            subscription.unsubscribe()
        settle(one, other)
        say(other, watched, False, False)


def test_what_a_link_may_not_hold_any_more_is_presumed_to_be_wanted_below(world: World) -> None:
    world.hub("top", relays=[RELAY], limits=msgspec.structs.replace(FAST, user_patterns=4))
    world.hub("low")
    world.uids["top"] = RELAY
    world.relay("low", "top")
    world.uids.clear()
    above, below = world.client("top"), world.client("low")
    many = [below.subscribe(b"a/%d" % number) for number in range(6)]
    settle(below, above)
    watched = watches(above, b"a/1", b"b/1")
    say(above, watched, None, None)
    above.publish(b"a/5", b"")
    assert many[5].receive(timeout=PATIENCE)


# -- hubs of before this word --------------------------------------------------------------------------------


def test_a_child_that_does_not_know_the_mark_is_sent_what_is_presumed_without_it(world: World) -> None:
    few = msgspec.structs.replace(FAST, link_patterns=2)
    world.hub("top", limits=few)
    old, new = Peer(world.address("top")), Peer(world.address("top"))
    for peer, words in ((old, frozenset[bytes]()), (new, control.BETWEEN_HUBS)):
        peer.send(b"CMSG interest/on\0" + Hello(b"%016d" % len(words), 1, 0, words).encode())
        assert served(peer) == b"announce"
    client = world.client("top")
    for number in range(4):
        client.subscribe(b"a/%d" % number)

    # Whatever else it was sent before.
    def wide(peer: Peer, pattern: bytes) -> bool:
        packet = receive_until(peer, b"CMSG interest/add")
        while pattern not in packet.split(b"\0")[1:]:
            packet = receive_until(peer, b"CMSG interest/add")
        return True

    assert wide(old, b"")
    assert wide(new, b"!/presumed/")
    old.close()
    new.close()


def test_a_parent_that_does_not_know_the_mark_gets_none_and_no_words(world: World) -> None:
    world.hub("left", limits=msgspec.structs.replace(FAST, link_patterns=2, prefix_wait=0.001))
    client = world.client("left")
    for number in range(4):
        client.subscribe(b"a/%d" % number)
    features = b"CMSG hub/features\0hub/sync interest/on monitor/on id=1 path=1"
    with FakeHub(world.address("top")) as old:
        world.relay("left", "top", wait=False)
        link = old.accept()
        link.send(features, OWN)
        hello = receive_until(link, b"CMSG interest/on\0")
        assert len(hello.split(b" ")) == 4, "the verb, and three words"
        link.send(b"CMSG interest/on\0announce")
        link.send(features, receive_until(link, b"CMSG hub/sync\0root\0"), b"CMSG interest/complete")
        seen = [receive_until(link, b"SUB ")]
        while seen[-1] != b"SUB ":
            seen.append(receive_until(link, b"SUB "))
        assert not any(b"presumed" in packet for packet in seen)
        world.relays["left"].stop()
