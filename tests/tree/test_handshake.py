"""How a relay joins the parent, and which parents cannot be joined."""

from __future__ import annotations

import itertools

import gevent
import msgspec
import pytest
from support import PATIENCE, WHOAMI, FakeHub, PlainDaemon, eventually
from worlds import FAST, FEATURES, OWN, World, join, key_of, received, settle

from sbuslib.secrets import Namespace
from sbuslib.tree.handshake import LinkError, check_features, is_unknown
from sbuslib.wire.control import Features
from sbuslib.wire.packets import Message


@pytest.mark.promise("relay.md", "No secrets cross, in either direction")
def test_messages_and_no_secrets_pass_below_a_daemon_that_refuses_them(world: World) -> None:
    with PlainDaemon(world.address("top")) as daemon:
        for name in ("left", "right"):
            world.hub(name)
            world.relay(name, "top")
        parent, (left, right) = world.peer("top"), map(world.client, ("left", "right"))
        parent.subscribe(b"")  # such a daemon delivers secrets to that
        box = key_of(left) + b"/box"
        assert box.count(b"!/cred/") == 1, "there is no way to it from above"
        left.subscribe(b"k", box)
        right.subscribe(b"k")
        settle(left, right)

        # Up, over to the other, and to oneself once.
        right.publish(b"!/cred/1/2/3/box", b"secret of somebody")
        right.publish_many([(b"k", b"%d" % n) for n in range(100)])
        for client in (left, right):
            assert [client.receive(timeout=PATIENCE).payload for _ in range(100)] == [b"%d" % n for n in range(100)]
        world.client("left").publish(box, b"secret")
        assert left.receive(timeout=PATIENCE).payload == b"secret"
        assert [parent.receive() for _ in range(100)] == [b"MSG k\0%d" % n for n in range(100)] == daemon.published

        # And down.
        parent.publish(box, b"from above")
        parent.publish(b"k", b"down")
        assert [client.receive(timeout=PATIENCE).payload for client in (left, right)] == [b"down", b"down"]
        settle(left, right)
        assert (received(left), received(right)) == ([], [])
        for relay in world.relays.values():
            statistics = relay.statistics()
            assert (statistics.state, statistics.epoch, statistics.mode) == ("joined", 1, "plain")
            assert not statistics.secrets
        assert daemon.accepted == 3, "no relay asks it for secrets, or it would have to join again"


def test_another_daemon_at_the_same_address_is_asked_for_secrets_again(world: World) -> None:
    daemon = PlainDaemon(world.address("top"))
    world.hub("left")
    relay = world.relay("left", "top")
    assert not relay.statistics().secrets
    daemon.stop()
    eventually(lambda: relay.state == "outage" and relay.statistics().secrets)  # nobody listens there any more
    world.hub("top", reuse=True)
    relay.wait(PATIENCE)
    client = world.client("left")
    client.subscribe(key_of(client) + b"/box")
    settle(client)
    world.client("top").publish(key_of(client) + b"/box", b"found")
    assert client.receive(timeout=PATIENCE).payload == b"found"


def test_a_hub_above_that_cannot_tell_our_process_is_joined_without_secrets(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.hub("top")
    world.hub("left")
    world._pids = itertools.count(0, 0)  # as for a process of another container, which has none here
    relay = world.relay("left", "top")
    world._pids = itertools.count(2_000)
    statistics = relay.statistics()
    assert (statistics.mode, statistics.secrets, statistics.epoch) == ("announce", False, 1)
    assert "does not know the ids of this process, so no secrets cross" in caplog.text
    client, parent = world.client("left"), world.client("top")
    assert key_of(client).count(b"!/cred/") == 1
    client.subscribe(b"k")
    settle(client)
    parent.publish(b"k", b"1")
    assert client.receive(timeout=PATIENCE).payload == b"1"


def test_open_questions_of_the_hub_above_are_bounded(world: World) -> None:
    with FakeHub(world.address("top")) as master:
        most = 8
        link = join(world, master, queued_answers=most)
        world.link("left")  # so that questions stay open
        for n in range(most + 5):
            link.send(b"CMSG interest/sync\0%d" % n)
            gevent.sleep(0)
        relay = world.relays["left"]
        eventually(lambda: relay.statistics().dropped == {"too many questions": 5})
        assert len(world.hubs["left"].tree.questions._rounds) == most


def test_a_reason_from_above_cannot_steer_a_terminal(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with FakeHub(world.address("top")) as master:
        link = join(world, master)
        link.send(b"CMSG notice/kicked\0\x1b[2Jgone\nsbus hub at ...")
        link.close()
        eventually(lambda: "the link ended" in caplog.text)
        (told,) = [record.message for record in caplog.records]
        assert told.endswith(r"the link ended: \x1b[2Jgone\nsbus hub at ...")


def test_a_relay_joins_a_daemon_without_features(world: World) -> None:
    with FakeHub(world.address("c")) as daemon:
        world.hub("left")
        relay = world.relay("left", "c", wait=False)
        link = daemon.accept()
        words = (b"hub/features", b"echo/off", b"notices/on", b"senders/on", b"!/cred/whoami")
        assert [link.receive() for _ in words] == [b"CMSG %b\0" % word for word in words]
        link.send(WHOAMI + b"\0!/cred/1/2/3")
        relay.wait(PATIENCE)
        client = world.client("left")
        assert key_of(client).count(b"!/cred/") == 1
        client.subscribe(b"a/")
        assert link.receive() == b"SUB a/"
        client.publish(b"x", b"1")
        assert link.receive() == b"MSG x\x001"
        assert link.receive() == WHOAMI + b"\0", "the acknowledgement that such a daemon can give"
        link.send(WHOAMI + b"\0!/cred/1/2/3", b"MSG a/1\x002")
        assert client.receive(timeout=PATIENCE) == Message(b"a/1", b"2")
        link.send(b"MSG !/cred/1/2/4/x\0stray", b"MSG a/!/b\0odd", b"nonsense", b"MSG a/2\0")
        assert client.receive(timeout=PATIENCE).key == b"a/2"
        assert sum(relay.statistics().dropped.values()) == 3
        link.close()
        eventually(lambda: relay.state == "outage")
        assert relay.statistics().uncertain == 0


LONG = b"!/cred/1/2/" + b"3" * 100_000
NO_KEYS = [b"", b"nonsense", b"!/cred/1/2", b"!/cred/1/2/3/", b"!/cred/1/2/-3", b"x!/cred/1/2/3", LONG]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        *(((FEATURES, WHOAMI + b"\0" + key), "its answer to whoami is no credential key") for key in NO_KEYS),
        ((b"CMSG hub/features\0interest/on path=" + b",".join([b"1"] * 257), OWN), "its features cannot be read: path"),
    ],
)
def test_a_hub_whose_greeting_makes_no_sense_is_not_joined(
    world: World, caplog: pytest.LogCaptureFixture, answers: tuple[bytes, ...], reason: str
) -> None:
    with FakeHub(world.address("top")) as master:
        world.hub("left", limits=msgspec.structs.replace(FAST, prefix_wait=0.001))
        relay = world.relay("left", "top", wait=False)
        for _ in range(2):
            link = master.accept()
            link.send(*answers)
            while link.receive():
                pass
        assert relay.epoch == 0
        assert key_of(world.client("left")).count(b"!/cred/") == 1
        (told,) = [record.message for record in caplog.records]  # the same reason once
        assert reason in told
        assert len(told) < 250


def test_new_credentials_that_are_none_end_the_link(world: World) -> None:
    with FakeHub(world.address("top")) as master:
        link = join(world, master)
        link.send(b"CMSG notice/credentials\0nonsense")
        while link.receive():
            pass
        assert world.relays["left"].state != "joined"


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
