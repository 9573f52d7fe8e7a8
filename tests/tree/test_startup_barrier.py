"""When a hub that was started knows what is wanted, and what becomes of messages that nobody wants then."""

from __future__ import annotations

from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support import PATIENCE, Peer, eventually
from worlds import FAST, World, settle

from sbuslib import Hub, Limits
from sbuslib.tree.startup_barrier import StartupBarrier

COMPLETE = b"CMSG interest/complete\0"
IDS = [b"%016x" % n for n in range(9)]


PATIENT = msgspec.structs.replace(FAST, settle=60.0)


def join(peer: Peer, id_: bytes, links: int) -> Peer:
    peer.send(b"CMSG interest/on\0%b 1 %d" % (id_, links))
    while not peer.receive().startswith(b"CMSG interest/on\0"):
        pass
    return peer


def be_quiet(hub: Hub) -> None:
    """No link has come for a while."""
    hub.tree.startup_barrier._quiet_at = 0.0
    hub.tree.startup_barrier.check()


def test_a_hub_waits_for_as_many_links_as_there_were_and_for_what_they_want(world: World) -> None:
    hub = world.hub("top", limits=PATIENT)
    first = join(world.peer("top"), IDS[0], 2)
    first.send(COMPLETE)
    first.barrier()
    be_quiet(hub)
    assert not hub.tree.has_settled, "another link is missing"
    second = join(world.peer("top"), IDS[1], 2)
    be_quiet(hub)
    assert not hub.tree.has_settled, "the other link has not told what it wants"
    second.send(COMPLETE)
    assert COMPLETE in [second.receive() for _ in range(2)], "before or after it is told how many they are"
    assert hub.tree.has_settled


def test_links_are_told_how_many_they_are_and_say_so_to_the_next_process(world: World) -> None:
    world.hub("top")
    for name in ("left", "right"):
        world.hub(name)
        world.relay(name, "top")
    relays = [world.relays[name] for name in ("left", "right")]
    eventually(lambda: [relay.parent.links_beside for relay in relays] == [2, 2])
    world.hubs["top"].stop(0)
    hub = world.hub("top")
    eventually(lambda: hub.tree.startup_barrier._expected == 2)
    relays[1].stop()
    eventually(lambda: relays[0].parent.links_beside == 1)


def test_a_hub_that_waits_for_links_counts_them_so_that_the_next_process_waits_too(world: World) -> None:
    hub = world.hub("top", limits=PATIENT)
    link = join(world.peer("top"), IDS[0], 2)
    link.send(COMPLETE)
    assert link.receive() == b"CMSG interest/links\0002", "it may be killed before the other is back"
    hub.tree.startup_barrier._end_at = 0.0
    be_quiet(hub)
    assert link.receive() == COMPLETE
    assert link.receive() == b"CMSG interest/links\0001", "it does not wait any longer"


def test_a_timer_that_ends_a_moment_early_does_not_make_the_wait_ten_times_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = chain([0.0] * 3, [0.9999], repeat(1.0001))
    monkeypatch.setattr("sbuslib.tree.startup_barrier.monotonic", lambda: next(clock))
    waits: list[float] = []  # seconds until each timer ends
    context: Any = SimpleNamespace(
        limits=Limits(settle=1.0),
        is_serving=True,
        running=SimpleNamespace(after=lambda seconds, call: waits.append(seconds)),
    )
    startup_barrier = StartupBarrier(context, list, lambda: True, lambda: None)
    startup_barrier.begin()
    startup_barrier._on_time()
    assert startup_barrier.done or waits[-1] < 0.1


def test_messages_that_were_kept_and_are_not_wanted_any_more_are_lost_and_told(world: World) -> None:
    world.hub("top")
    world.hub("left", limits=msgspec.structs.replace(FAST, link_notices=0.01))
    relay = world.relay("left", "top")
    notices: list[object] = []
    subscriber, publisher = world.client("top"), world.client("left", on_notice=notices.append)
    subscriber.subscribe(b"k")
    settle(publisher)
    publisher.publish(b"k", b"before")
    assert subscriber.receive(timeout=PATIENCE).payload == b"before"
    eventually(lambda: relay.parent.up.acknowledged == 1)
    world.hubs["top"].stop(0)
    eventually(lambda: relay.state != "joined")
    publisher.publish_many([(b"k", b"")] * 10 + [(b"nobody wanted this before", b"")] * 5)
    publisher.sync()
    world.hub("top")
    eventually(lambda: relay.state == "joined" and not relay.statistics().waiting)
    statistics = relay.statistics()
    assert (statistics.lost, statistics.uncertain) == ({"unwanted": 10}, 0)
    eventually(lambda: (publisher.sync(), publisher.lost.get("unwanted") == 10)[1])


def test_until_a_hub_above_was_ever_known_all_that_was_kept_in_vain_is_lost(world: World) -> None:
    world.hub("left", limits=msgspec.structs.replace(FAST, prefix_wait=0.001))
    relay = world.relay("left", "top", wait=False)
    publisher = world.client("left")
    publisher.publish_many([(b"k", b"")] * 10)
    publisher.sync()
    world.hub("top", limits=msgspec.structs.replace(FAST, settle=0.01))
    eventually(lambda: relay.statistics().lost == {"unwanted": 10})


def test_messages_that_were_kept_reach_subscribers_on_other_hubs_below(world: World) -> None:
    limits = msgspec.structs.replace(FAST, settle=0.3)
    world.hub("top", limits=limits)
    for name in ("left", "right", "below"):
        world.hub(name)
        world.relay(name, "right" if name == "below" else "top")
    publisher = world.client("left")
    subscribers = [world.client(name) for name in ("right", "below")]
    for subscriber in subscribers:
        subscriber.subscribe(b"k")
    settle(publisher, *subscribers)
    world.hubs["top"].stop(0)
    eventually(lambda: {world.relays[name].state for name in ("left", "right")} == {"outage"})
    publisher.publish_many([(b"k", b"%d" % n) for n in range(1_000)])
    publisher.sync()
    world.hub("top", limits=limits)
    for subscriber in subscribers:
        assert [subscriber.receive(timeout=PATIENCE).payload for _ in range(1_000)] == [b"%d" % n for n in range(1_000)]
    publisher.publish(b"k", b"after")
    assert [subscriber.receive(timeout=PATIENCE).payload for subscriber in subscribers] == [b"after"] * 2
    statistics = world.relays["left"].statistics()
    assert (statistics.epoch, statistics.lost, statistics.uncertain) == (2, {}, 0)


def test_a_hub_waits_for_links_that_come_but_not_for_ever(world: World) -> None:
    hub = world.hub("top", limits=PATIENT)
    link = join(world.peer("top"), IDS[0], 7)
    be_quiet(hub)
    assert not hub.tree.has_settled, "other links are missing"
    hub.tree.startup_barrier._end_at = 0.0
    be_quiet(hub)
    assert hub.tree.has_settled
    link.close()
    hub.stop(0)
    hub.start()
    link = join(world.peer("top"), IDS[0], 0)
    link.send(COMPLETE)
    link.barrier()
    assert not hub.tree.has_settled, "others may come"
    other = join(world.peer("top"), IDS[1], 0)
    be_quiet(hub)
    assert not hub.tree.has_settled, "it has not told what it wants"
    other.close()
    eventually(lambda: hub.tree.has_settled)
