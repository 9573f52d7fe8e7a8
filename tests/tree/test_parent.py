"""The parent: how a hub leaves it so that nothing is lost, and the prefix that it gives."""

from __future__ import annotations

import contextlib
from time import time

import gevent
import msgspec
import pytest
from support import PATIENCE, WHOAMI, FakeHub, eventually, own_key
from worlds import FAST, World, greet_relay, join, key_of, receive_until, settle

from sbuslib.errors import DisconnectedError


def test_messages_are_uncertain_if_the_hub_that_is_left_does_not_acknowledge_them(world: World) -> None:
    with FakeHub(world.address("second")) as daemon:
        hub = world.hub("left")
        relay = world.relay("left", "second", wait=False)
        link = daemon.accept_relay()
        relay.wait(PATIENCE)
        publisher = world.client("left")
        for n in range(10):
            publisher.publish(b"k", b"%d" % n)
        publisher.sync()
        eventually(lambda: relay.statistics().up == 10)
        world.hub("first")
        hub.limits = msgspec.structs.replace(FAST, link_wait=0.01)  # to leave, and not to join
        relay.reconfigure(world.address("first"))
        eventually(lambda: relay.statistics().uncertain)
        hub.limits = FAST
        client = world.client("first")
        client.subscribe(b"k")
        eventually(lambda: world.is_at("first"))
        publisher.publish(b"k", b"10")
        assert client.receive(timeout=PATIENCE).payload == b"10"
        statistics = relay.statistics()
        assert (statistics.lost, statistics.uncertain) == ({}, 10)
        while link.receive():  # until the end
            pass


def test_all_links_of_a_hub_that_stops_leave_and_lose_nothing(world: World) -> None:
    world.chain("top", "left", "below")
    parent, below = world.client("top"), world.client("below")
    parent.subscribe(b"k")
    settle(parent, below)
    below.publish_many([(b"k", b"%d" % n) for n in range(2_000)])
    world.hubs["left"].stop(PATIENCE)
    below.publish_many([(b"k", b"%d" % n) for n in range(2_000, 2_100)])
    below.sync()
    for name in ("left", "below"):
        statistics = world.relays[name].statistics()
        assert (statistics.lost, statistics.uncertain) == ({}, 0)
    world.hub("left")
    world.relay("left", "top")
    for n in range(2_100):
        assert parent.receive(timeout=PATIENCE).payload == b"%d" % n


def test_who_does_not_leave_in_time_is_disconnected_and_may_join_again_later(world: World) -> None:
    with FakeHub(world.address("top")) as master:
        join(world, master)
        world.client("left").publish(b"k", b"1")
        tree = world.hubs["left"].tree
        below = [world.peer("left"), world.peer("left")]
        below[0].send(b"CMSG interest/on")
        while below[0].receive() != b"CMSG interest/on\0announce":
            pass
        assert not tree.leave_all(0.01)
        assert (world.relays["left"].state, tree.links) == ("outage", {})
        while below[0].receive():
            pass
        below[1].send(b"CMSG interest/on")
        assert not below[1].receive(), "no link joins meanwhile"
        tree.join_again()
        greet_relay(master.accept())
        world.relays["left"].wait(PATIENCE)


def test_a_hub_that_leaves_reports_its_losses_first(world: World) -> None:
    with FakeHub(world.address("top")) as master:
        link = join(world, master, link_notices=600.0)
        relay = world.relays["left"]
        relay.parent.up.losses.note("upstream", 5, time())
        leaving = gevent.spawn(relay.leave, PATIENCE)
        assert b" upstream 0 0 5 " in receive_until(link, b"CMSG interest/lost")
        packet = receive_until(link, b"CMSG hub/sync\0p")
        assert not leaving.ready()
        link.send(b"CMSG hub/sync\0%b\0passed" % packet.split(b"\0")[1])
        while link.receive():  # until it has nothing more to send
            pass
        link.close()
        assert leaving.get(timeout=PATIENCE)


def test_a_hub_that_leaves_waits_no_longer_for_one_that_goes_on_talking(world: World) -> None:
    with FakeHub(world.address("top")) as master:
        link = join(world, master)
        hub, relay = world.hubs["left"], world.relays["left"]
        link.send(b"CMSG interest/add\0k")
        eventually(lambda: len(relay.parent.interest) == 1)
        world.client("left").publish(b"k")
        receive_until(link, b"MSG k")
        world.hub("other")
        hub.limits = msgspec.structs.replace(FAST, link_wait=0.1)
        relay.reconfigure(world.address("other"))

        def talk() -> bool:
            link.send(b"CMSG interest/complete")
            return relay.statistics().uncertain == 1

        with contextlib.suppress(OSError):
            eventually(talk)
        hub.limits = FAST
        eventually(lambda: world.is_at("other"))


def test_a_prefix_outlives_an_outage_and_clients_are_told_of_a_new_one(world: World) -> None:
    world.chain("top", "left")
    notices: list[object] = []
    told = world.client("left", on_notice=notices.append)
    before = key_of(told)
    unreported = world.peer("left")
    unreported.send(WHOAMI)
    own = unreported.receive().split(b"\0")[1]
    unreported.subscribe(own + b"/box")
    world.hubs["top"].stop(0)
    eventually(lambda: world.relays["left"].state == "outage")
    assert key_of(told) == before
    world.hub("top")  # which gives the link another pid
    world.relays["left"].wait(PATIENCE)
    assert unreported.is_disconnected()
    eventually(lambda: (told.sync(), notices)[1])
    assert told.credentials != before
    assert told.credentials == key_of(told)
    told.subscribe(told.credentials + b"/box")
    world.client("top").publish(told.credentials + b"/box", b"found")
    assert told.receive(timeout=PATIENCE).payload == b"found"


def test_the_key_of_the_embedder_has_the_prefix(world: World) -> None:
    world.chain("top", "left")
    hub = world.hubs["left"]
    assert hub.whoami() == hub.context.router.namespace.prefix + own_key()
    inbox = hub.subscribe(hub.whoami() + b"/box")
    world.client("top").publish(hub.whoami() + b"/box", b"1")
    assert inbox.receive(timeout=PATIENCE).payload == b"1"
    world.relays.pop("left").stop()
    assert hub.whoami() == own_key()
    with pytest.raises(DisconnectedError):
        inbox.receive(timeout=PATIENCE)
