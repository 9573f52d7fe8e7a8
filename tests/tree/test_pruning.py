"""Keys that a child is told not to send, and when it is told to send them again."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from support import PATIENCE, Peer, eventually
from worlds import FAST, OTHER, RELAY, World, received, settle

from sbuslib.keys.policy import Policy, Rule, User
from sbuslib.tree import child_link
from sbuslib.tree.child_link import ChildLink

PRUNE, GRAFT = b"CMSG interest/prune\0", b"CMSG interest/graft\0"


def said(link: Peer, what: bytes) -> list[bytes]:
    """The keys of which a raw link was told this."""
    return [packet[len(what) :] for packet in link.pending() if packet.startswith(what)]


def only_link(world: World) -> ChildLink:
    (link,) = world.hubs["top"].tree.links.values()
    return link


def test_a_pruned_key_that_somebody_wants_again_is_grafted(world: World) -> None:
    world.hub("top", relays=[RELAY])
    world.hub("left")
    world.uids["top"] = RELAY
    relay = world.relay("left", "top")
    publisher, subscriber = world.client("left"), world.client("top")
    for wanted in (b"room/1", b"room/*", b"room/", b""):
        publisher.publish(b"room/1", b"nobody")
        eventually(lambda: relay.statistics().pruned == 1)
        assert only_link(world).pruned == 1
        passed = relay.statistics().up
        publisher.publish(b"room/1", b"nobody")
        subscription = subscriber.subscribe(wanted)
        settle(subscriber, publisher)
        assert (relay.statistics().pruned, relay.statistics().up) == (0, passed)
        publisher.publish(b"room/1", b"1")
        assert subscriber.receive(timeout=PATIENCE).payload == b"1"
        subscription.unsubscribe()
        settle(subscriber)


def test_a_key_that_is_wanted_two_hubs_above_is_grafted_on_the_whole_way(world: World) -> None:
    world.hub("top", relays=[RELAY])
    world.hub("left", relays=[OTHER], limits=msgspec.structs.replace(FAST, pruned_keys=2))
    world.hub("low")
    world.uids |= {"top": RELAY, "left": OTHER}
    world.relay("left", "top")
    world.relay("low", "left")
    world.uids.clear()
    publisher, subscriber, beside = world.client("low"), world.client("top"), world.client("left")
    for n in range(4):  # of which the hub between remembers two
        publisher.publish(b"%d/x" % n)
        eventually(lambda: only_link(world).pruned == n + 1)  # noqa: B023
    for n in range(4):
        publisher.publish(b"%d/x" % n)
    settle(publisher)
    eventually(lambda: world.relays["low"].statistics().pruned)
    subscriber.subscribe(b"0/x", b"*/x")
    beside.subscribe(b"1/x")
    settle(subscriber, beside, publisher)
    settle(subscriber, beside, publisher)
    for n in range(4):
        publisher.publish(b"%d/x" % n)
    settle(publisher, subscriber, beside)
    assert [message.key for message in received(subscriber)] == [b"0/x", b"1/x", b"2/x", b"3/x"]
    assert [message.key for message in received(beside)] == [b"1/x"]


def test_keys_that_are_exported_from_now_on_are_sent_by_hubs_below(world: World) -> None:
    world.hub("top")
    world.hub("left", relays=[OTHER])
    world.hub("low")
    relay = world.relay("left", "top", export=[b"a/"])
    world.uids["left"] = OTHER
    world.relay("low", "left")
    world.uids.clear()
    subscriber, publisher = world.client("top"), world.client("low")
    subscriber.subscribe(b"")
    settle(subscriber, publisher)
    publisher.publish(b"b/1", b"nobody")
    eventually(lambda: world.relays["low"].statistics().pruned == 1)
    relay.reconfigure(world.address("top"), export=[b"b/"])
    eventually(lambda: world.relays["low"].statistics().pruned == 0)
    publisher.publish(b"b/1", b"1")
    assert subscriber.receive(timeout=PATIENCE).payload == b"1"


def test_the_pruned_keys_are_bounded_and_the_oldest_is_grafted(world: World) -> None:
    world.hub("top", relays=[RELAY], limits=msgspec.structs.replace(FAST, pruned_keys=3))
    link = world.link("top", RELAY)
    keys = [b"%d" % n for n in range(6)]
    for key in keys:
        link.publish(key)
    packets = link.pending()
    assert [packet[len(PRUNE) :] for packet in packets if packet.startswith(PRUNE)] == keys
    assert [packet[len(GRAFT) :] for packet in packets if packet.startswith(GRAFT)] == keys[:3]
    link.publish(b"0")
    assert [packet for packet in link.pending() if packet.startswith(PRUNE)] == [PRUNE + b"0"], "it is told again"
    assert list(world.hubs["top"].tree.propagation.pruning.by_key) == [b"4", b"5", b"0"]
    link.close()
    eventually(lambda: not world.hubs["top"].tree.propagation.pruning.by_key)


def test_only_so_many_keys_a_second_and_no_secret_or_long_ones_are_pruned(
    world: World, make_link: Callable[[], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = make_link()
    monkeypatch.setattr(child_link, "PRUNES_A_SECOND", 3)
    monkeypatch.setattr(child_link, "monotonic", lambda: 1_000.0)
    for key in (b"x" * 257, b"!/cred/1/2/3/x", b"a", b"b", b"a", b"c", b"d"):
        link.publish(key)
    assert said(link, PRUNE) == [b"a", b"b", b"c"]
    monkeypatch.setattr(child_link, "monotonic", lambda: 1_001.0)
    link.publish(b"d")
    assert said(link, PRUNE) == [b"d"]


def test_a_link_is_told_of_a_key_once_it_has_room(
    world: World, make_link: Callable[[], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = make_link()
    for room, told in ((0, []), (1, [b"a"])):
        monkeypatch.setattr(ChildLink, "room", room)
        link.publish(b"a")
        assert said(link, PRUNE) == told


def test_what_listens_in_and_the_link_itself_want_nothing(world: World, make_link: Callable[[], Peer]) -> None:
    link = make_link()
    with world.hubs["top"].tap() as tap:
        link.subscribe(b"a")
        link.publish(b"a")
        assert said(link, PRUNE) == [b"a"]
        assert tap.receive(timeout=PATIENCE).key == b"a"
        link.subscribe(b"*")
        link.barrier()
        assert said(link, GRAFT) == []


def test_many_patterns_need_few_looks_at_the_keys(world: World) -> None:
    world.hub("top", relays=[RELAY])
    link = world.link("top", RELAY)
    for n in range(500):
        link.publish(b"key/%d" % n)
        if n % 64 == 0:
            link.pending()
    link.pending()
    pruned = only_link(world).pruned
    client = world.client("top")
    client.subscribe(*(b"other/*/%d" % n for n in range(300)))
    settle(client)
    assert (only_link(world).pruned, said(link, GRAFT)) == (pruned, [])
    client.subscribe(*(b"other/*/x%d" % n for n in range(300)), b"*/7", b"key/9")
    settle(client)
    assert sorted(said(link, GRAFT)) == [b"key/7", b"key/9"]
    client.subscribe(b"key/*")
    eventually(lambda: only_link(world).pruned == 0)
    settle(client)
    assert len(said(link, GRAFT)) == pruned - 2


def test_nobody_waits_for_a_link_that_does_not_read(
    world: World, make_link: Callable[[], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = make_link()
    link.publish(b"a")
    assert said(link, PRUNE) == [b"a"]
    client = world.client("top")
    with monkeypatch.context() as patched:
        patched.setattr(ChildLink, "room", 0)
        client.subscribe(b"*")
        assert [client.sync("tree") for _ in range(3)] == ["tree"] * 3
    eventually(lambda: only_link(world).pruned == 0)
    assert client.sync("tree") == "tree"
    assert said(link, GRAFT) == [b"a"]


def test_a_link_learns_of_keys_that_it_may_publish_and_of_no_others(world: World) -> None:
    def policy(*publish: bytes) -> Policy:
        return Policy([Rule(everybody=True, publish=publish)], lambda uid: User(b"ann", frozenset()), b"/")

    hub = world.hub("top", relays=[RELAY], authorize=policy(b"ann/"))
    link, neighbour = world.link("top", RELAY), world.client("top")
    for key in (b"ann/x", b"bob/x"):
        link.publish(key)
    assert said(link, PRUNE) == [b"ann/x"]
    hub.reconfigure(relays=[RELAY], authorize=policy(b"bob/y"))
    assert hub.reviewed(PATIENCE)
    settle(neighbour)
    assert said(link, GRAFT) == [b"ann/x"], "whether anybody wants it or not"
    link.publish(b"ann/x")
    assert said(link, PRUNE) == []
