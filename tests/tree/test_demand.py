"""What the hub above wants, and which messages go up for that."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
from support import PATIENCE
from worlds import FAST, World, settle

from sbuslib.core.quotas import Account
from sbuslib.limits import Limits
from sbuslib.secrets import Credentials
from sbuslib.tree.demand import Demand


class Above:
    """The hub above, as a holder of patterns."""

    closed = False
    credentials = Credentials(gid=os.getgid(), uid=os.getuid(), pid=1)

    def __init__(self, limits: Limits) -> None:
        self.account = Account(self.credentials.uid, limits)


class Demanded:
    """What a hub above wants of a hub, and how that is heard of."""

    def __init__(self, world: World, export: list[bytes] | None = None, **numbers: int) -> None:
        limits = msgspec.structs.replace(FAST, **numbers)
        self.router: Any = world.hub("top", limits=limits).context.router
        self.told: list[tuple[bytes, bool]] = []
        self.above = Above(limits)
        self.demand = Demand(world.hubs["top"].context, self.above, export, lambda: True)  # type: ignore[arg-type]
        self.demand.want_all(True)
        self.settle()
        self.router.watch = lambda subscriber, account, pattern, wanted: self.told.append((pattern, wanted))

    def settle(self) -> None:
        """The hub above has said all that it wants."""
        for _ in self.demand.settle(everything=False):
            pass

    def wants(self, key: bytes) -> bool:
        return self.above in self.router.route(b"MSG %b\0" % key)


def test_an_announced_pattern_is_wanted_until_it_is_removed(world: World) -> None:
    one = Demanded(world)
    one.demand.announce(b"*/a")
    one.demand.announce(b"*/a")
    assert one.wants(b"1/a")
    assert not one.wants(b"1/b")
    one.demand.take_back(b"*/a")
    assert not one.wants(b"1/a")
    assert one.told == [(b"*/a", True), (b"*/a", False)]
    assert one.above.account.is_clear()


@pytest.mark.parametrize("pattern", [b"**/a", b"x" * 21, b"a/b/c/d"])
def test_a_pattern_beyond_the_limits_of_a_user_counts_as_the_empty_pattern(world: World, pattern: bytes) -> None:
    one = Demanded(world, user_pattern_steps=3, pattern_bytes=20, pattern_segments=3)
    one.demand.announce(b"*/a")
    one.demand.announce(pattern)
    assert one.wants(b"anything")
    assert one.told == [(b"*/a", True), (b"", True)]
    assert len(one.demand) == 1


def test_the_bytes_of_announced_patterns_are_bounded(world: World) -> None:
    one = Demanded(world, user_pattern_bytes=20)
    for _ in range(5):
        one.demand.announce(b"x" * 15)
        one.demand.take_back(b"x" * 15)
    one.demand.take_back(b"never announced, so that nothing is taken off")
    one.demand.announce(b"y" * 15)
    assert not one.wants(b"anything")
    one.demand.announce(b"z" * 6)
    assert one.wants(b"anything")
    assert one.told[-1] == (b"", True)


def test_what_is_announced_anew_after_an_outage_changes_nothing(world: World) -> None:
    one = Demanded(world, export=[b"room/"])
    for pattern in (b"room/1", b"room/2", b"*/x", b"hall"):
        one.demand.announce(pattern)
    one.told.clear()
    one.demand.begin_anew()
    one.demand.announce(b"room/1")
    one.demand.announce(b"*/x")
    assert one.wants(b"room/2")
    one.settle()
    assert one.told == [(b"room/2", False)]
    one.demand.end()
    assert one.above.account.is_clear()
    assert not one.router.count(one.above)


@pytest.mark.parametrize("uid", [None, 12_345])
def test_only_messages_that_the_hub_above_wants_go_up(world: World, uid: int | None) -> None:
    world.hub("top", relays=[12_345])
    for name in ("a", "b", "c"):
        world.hub(name)
        if uid is not None:
            world.uids["top"] = uid
        world.relay(name, "top")
    world.uids.clear()
    assert {relay.statistics().mode for relay in world.relays.values()} == {"announce" if uid is None else "prune"}
    subscriber = world.client("top")
    subscription = subscriber.subscribe(b"key/500")
    settle(subscriber)
    tap = world.hubs["top"].tap()
    publishers = [world.client(name) for name in ("a", "b", "c")]
    rounds = 3
    for _ in range(rounds):
        for publisher in publishers:
            publisher.publish_many([(b"key/%d" % n, b"") for n in range(1_000)])
        settle(*publishers)
    for _ in range(3 * rounds):
        assert subscriber.receive(timeout=PATIENCE).key == b"key/500"
    keys = [tap.receive(timeout=PATIENCE).key for _ in range(len(tap))]
    first = 3 * 1_000 if uid is not None else 3
    # Where keys are pruned, of each only what was sent before its prune arrived goes up: here, the first.
    assert len(keys) == first + 3 * (rounds - 1)
    assert set(keys[first:]) == {b"key/500"}
    subscription.unsubscribe()
    settle(*publishers)
    for publisher in publishers:
        publisher.publish(b"key/500", b"")  # which may have to be pruned yet
    settle(*publishers)
    while len(tap):
        tap.receive(timeout=PATIENCE)
    for publisher in publishers:
        publisher.publish_many([(b"key/%d" % n, b"") for n in range(1_000)])
    settle(*publishers)
    assert len(tap) == 0
    for relay in world.relays.values():
        statistics = relay.statistics()
        assert (statistics.lost, statistics.waiting) == ({}, 0)
