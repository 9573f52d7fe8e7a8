"""What crosses a link: no more than is wanted, by interest, by prune and graft, and within bounds."""

from __future__ import annotations

import msgspec
import pytest
from support import PATIENCE, WHOAMI, FakeHub, eventually
from worlds import FAST, World, key_of, received, settle

from sbuslib.wire.packets import Message


@pytest.mark.parametrize("uid", [None, 12_345])
def test_of_a_thousand_keys_the_one_that_is_wanted_goes_up(world: World, uid: int | None) -> None:
    world.hub("top", relays=[12_345])
    for name in ("a", "b", "c"):
        world.hub(name)
        if uid is not None:
            world.uids["top"] = uid
        world.relay(name, "top")
    world.uids.clear()
    assert {relay.statistics().mode for relay in world.relays.values()} == {"announce" if uid is None else "prune"}
    subscriber = world.client("top")
    subscriber.subscribe(b"key/500")
    settle(subscriber)
    tap = world.hubs["top"].tap()
    publishers = [world.client(name) for name in ("a", "b", "c")]
    rounds = 3
    for _ in range(rounds):
        for publisher in publishers:
            publisher.publish_many([(b"key/%d" % n, b"") for n in range(1_000)])
        settle(*publishers)
    for _ in range(3 * rounds):
        assert subscriber.receive(PATIENCE).key == b"key/500"
    keys = [tap.get(PATIENCE).key for _ in range(len(tap))]
    first = 3 * 1_000 if uid is not None else 3
    # Where keys are pruned, of each only what was sent before its prune arrived goes up: here, the first.
    assert len(keys) == first + 3 * (rounds - 1)
    assert set(keys[first:]) == {b"key/500"}
    subscriber.unsubscribe(b"key/500")
    settle(*publishers)
    for publisher in publishers:
        publisher.publish(b"key/500", b"")  # which may have to be pruned yet
    settle(*publishers)
    while len(tap):
        tap.get(PATIENCE)
    for publisher in publishers:
        publisher.publish_many([(b"key/%d" % n, b"") for n in range(1_000)])
    settle(*publishers)
    assert len(tap) == 0
    for relay in world.relays.values():
        statistics = relay.statistics()
        assert statistics.suppressed + statistics.forwarded == (rounds + 1) * 1_000 + 1
        assert statistics.lost == statistics.buffered == 0


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
        subscriber.subscribe(wanted)
        world.settle(subscriber)
        assert world.relays["left"].statistics().pruned == 0
        publisher.publish(b"room/1", b"1")
        assert subscriber.receive(PATIENCE).payload == b"1"
        subscriber.unsubscribe(wanted)
        world.settle(subscriber)


def test_the_oldest_prune_is_forgotten_by_a_graft(world: World) -> None:
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
        return relay.above.demand.pruned.keys() == [b"1", b"2", b"3"]

    eventually(forgotten)


def test_no_pattern_is_told_to_a_link_of_another_user(world: World) -> None:
    world.hub("top", relays=[12_345])
    world.client("top").subscribe(b"private/room")
    world.uids["top"] = 12_345
    spy = world.peer("top")
    world.client("top")  # of the same user, and no relay
    world.uids.clear()
    spy.send(b"CMSG interest/on", b"CMSG senders/on")
    world.client("top").subscribe(b"private/other")
    spy.publish(b"elsewhere")
    spy.publish(b"private/room")
    said = spy.pending()
    assert said[0] == b"CMSG interest/on\0prune"
    assert b"CMSG interest/prune\0elsewhere" in said
    assert not [packet for packet in said if b"private" in packet]


def test_a_relay_of_an_unknown_user_is_told_nothing_and_sends_everything_up(world: World) -> None:
    world.hub("top")
    world.hub("left")
    world.uids["top"] = 12_345
    relay = world.relay("left", "top")
    world.uids.clear()
    assert relay.statistics().mode == "plain"
    subscriber, publisher = world.client("top"), world.client("left")
    subscriber.subscribe(b"a")
    publisher.subscribe(b"b")
    assert publisher.sync("tree") == "tree"
    publisher.publish(b"a", b"1")
    subscriber.publish(b"b", b"2")
    assert (subscriber.receive(PATIENCE).payload, publisher.receive(PATIENCE).payload) == (b"1", b"2")
    publisher.publish(b"b", b"own")
    assert publisher.receive(PATIENCE).payload == b"own"
    settle(publisher)
    assert received(publisher) == []


def test_a_relay_joins_a_daemon_without_features(world: World) -> None:
    with FakeHub(world.address("c")) as daemon:
        world.hub("left")
        relay = world.relay("left", "c", wait=False)
        link = daemon.accept()
        hello = [link.receive() for _ in range(4)]
        assert hello == [b"CMSG hub/features\0", b"CMSG echo/off\0", b"CMSG notices/on\0", WHOAMI + b"\0"]
        link.send(WHOAMI + b"\0!/cred/1/2/3")
        assert [link.receive(), link.receive()] == [b"SUB !/cred/1/2/3/", WHOAMI + b"\0"]
        link.send(WHOAMI + b"\0!/cred/1/2/3")
        relay.wait(PATIENCE)
        client = world.client("left")
        assert key_of(client).startswith(b"!/cred/1/2/3/!/cred/")
        client.subscribe(b"a/")
        assert link.receive() == b"SUB a/"
        client.publish(b"x", b"1")
        assert link.receive() == b"MSG x\x001"
        assert link.receive() == WHOAMI + b"\0", "the acknowledgement that such a daemon can give"
        link.send(WHOAMI + b"\0!/cred/1/2/3", b"MSG a/1\x002")
        assert client.receive(PATIENCE) == Message(b"a/1", b"2")
        link.send(b"MSG !/cred/1/2/4/x\0stray", b"MSG a/!/b\0odd", b"nonsense", b"MSG a/2\0")
        assert client.receive(PATIENCE).key == b"a/2"
        assert sum(relay.statistics().dropped.values()) == 3
        link.close()
        eventually(lambda: relay.state == "outage")
        assert relay.statistics().uncertain == 0


def test_a_covered_pattern_is_not_announced(world: World) -> None:
    world.chain("top", "left")
    client = world.client("left")
    client.subscribe(*(b"room/%d/*" % n for n in range(500)))
    settle(client)
    assert world.relays["left"].statistics().interest_up == 500
    client.subscribe(b"room/")
    settle(client)
    eventually(lambda: world.relays["left"].statistics().interest_up == 1)
    link = next(iter(world.hubs["top"].tree.links))
    eventually(lambda: world.hubs["top"].context.router.count(link) == 2)  # with its secrets
    client.unsubscribe(b"room/")
    eventually(lambda: world.hubs["top"].context.router.count(link) == 501)


def test_a_link_with_too_many_patterns_subscribes_to_everything(world: World) -> None:
    world.hub("top", limits=msgspec.structs.replace(FAST, user_patterns=20))
    world.hub("left")
    relay = world.relay("left", "top")
    client = world.client("left")
    client.subscribe(*(b"%d" % n for n in range(50)))
    settle(client)
    publisher = world.client("top")
    publisher.publish_many([(b"%d" % n, b"") for n in range(50)])
    assert [client.receive(PATIENCE).key for _ in range(50)] == [b"%d" % n for n in range(50)]
    assert relay.statistics().epoch == 1
    eventually(lambda: relay.statistics().interest_up == 1)


def test_export_and_import_bound_what_crosses(world: World) -> None:
    world.hub("top")
    world.hub("left")
    world.relay("left", "top", export=[b"out/"], import_=[b"in/", b"both/"])
    top, left = world.client("top"), world.client("left")
    top.subscribe(b"")
    left.subscribe(b"")
    settle(top, left)
    for key in (b"out/1", b"in/1", b"both/1", b"other"):
        left.publish(key, b"left")
        top.publish(key, b"top")
    settle(top, left)
    assert {(m.key, m.payload) for m in received(top)} == {
        (b"out/1", b"left"),
        *((key, b"top") for key in (b"out/1", b"in/1", b"both/1", b"other")),
    }
    assert {(m.key, m.payload) for m in received(left)} == {
        *((key, b"top") for key in (b"in/1", b"both/1")),
        *((key, b"left") for key in (b"out/1", b"in/1", b"both/1", b"other")),
    }
    assert left.whoami().count(b"!/cred/") == 2
