"""What the parent wants, and which messages go up for that."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
from worlds import FAST, World

from sbuslib.core.quotas import Account
from sbuslib.secrets import Credentials
from sbuslib.tree.parent_interest import ParentInterest

PRESUMED = b"!/presumed/"


class Above:
    """The parent, as a holder of patterns."""

    credentials = Credentials(gid=os.getgid(), uid=os.getuid(), pid=1)


class Demanded:
    """What a parent wants of a hub, and how that is heard of."""

    def __init__(self, world: World, export: list[bytes] | None = None, **numbers: int) -> None:
        limits = msgspec.structs.replace(FAST, **numbers)
        self.router: Any = world.hub("top", limits=limits).context.router
        self.told: list[tuple[bytes, bool]] = []
        self.parent, self.account = Above(), Account(os.getuid(), limits)
        self.interest = ParentInterest(self.router, self.parent, self.account, export, lambda: True, 2)  # type: ignore[arg-type]
        self.interest.begin()
        self.settle()
        self.router.watch = lambda subscriber, account, pattern, wanted: self.told.append((pattern.name, wanted))

    def settle(self) -> None:
        """The parent has said all that it wants."""
        for _ in self.interest.settle(everything=False):
            pass

    def wants(self, key: bytes) -> bool:
        header = b"MSG %b\0" % key
        found = self.router.routes.get(header)  # as publishers do
        return self.parent in (self.router.route(header) if found is None else found)


def test_an_announced_pattern_is_wanted_until_it_is_removed(world: World) -> None:
    one = Demanded(world)
    one.interest.announce(b"*/a")
    one.interest.announce(b"*/a")
    assert one.wants(b"1/a")
    assert not one.wants(b"1/b")
    one.interest.take_back(b"*/a")
    assert not one.wants(b"1/a")
    assert one.told == [(b"*/a", True), (b"*/a", False)]
    assert one.account.is_clear()


@pytest.mark.parametrize("pattern", [b"**/a", b"x" * 21, b"a/b/c/d"])
def test_a_pattern_beyond_the_limits_of_a_user_counts_as_the_empty_pattern(world: World, pattern: bytes) -> None:
    one = Demanded(world, user_pattern_steps=3, pattern_bytes=20, pattern_segments=3)
    one.interest.announce(b"*/a")
    one.interest.announce(pattern)
    assert one.wants(b"anything")
    assert one.told == [(b"*/a", True), (PRESUMED, True)]
    assert len(one.interest) == 1


def test_what_is_announced_anew_after_an_outage_changes_nothing(world: World) -> None:
    one = Demanded(world, export=[b"room/"])
    for pattern in (b"room/1", b"*/x", b"hall", b"room/2"):
        one.interest.announce(pattern)
    one.told.clear()
    one.interest.begin_anew()
    one.interest.announce(b"room/1")
    one.interest.announce(b"*/x")
    one.interest.announce(b"hall")
    assert (one.wants(b"room/2"), one.wants(b"hall")) == (True, False), "what is not exported does not go up"
    one.settle()
    assert one.told == [(b"room/2", False)]
    one.interest.want_all(True)
    one.interest.set_export([b"hall"])
    assert (one.wants(b"room/1"), one.wants(b"hall")) == (False, True)
    told = [(PRESUMED + b"room/", True), (PRESUMED + b"hall", True), (PRESUMED + b"room/", False)]
    assert one.told[1:] == told, "those below are asked for no more than may go up"
    one.interest.end()
    assert one.account.is_clear()
    assert not one.router.count(one.parent)


def test_the_keys_that_nobody_above_wants_are_bounded(world: World) -> None:
    one = Demanded(world)
    one.interest.want_all(True)
    for key in (b"a", b"b", b"a", b"x" * 257, b"c"):
        one.interest.prune(key)
    assert [one.wants(key) for key in (b"a", b"b", b"c", b"x" * 257)] == [True, False, False, True], "the oldest goes"
    one.interest.graft(b"b")
    assert (one.wants(b"b"), one.wants(b"c")) == (True, False)
    assert one.interest.begin_anew()
    assert one.wants(b"c")


def test_what_another_link_has_announced_is_wanted_while_older_patterns_are_taken_back(world: World) -> None:
    one = Demanded(world)
    for number in range(20):
        one.interest.announce(b"old/%d" % number)
    one.interest.begin_anew()
    one.interest.announce(b"new")
    taking_back = one.interest.settle(everything=False)
    next(taking_back)
    one.interest.begin_anew()
    for _ in taking_back:
        pass
    assert one.wants(b"new"), "the third link has not said all that it wants"
    assert not one.wants(b"old/0")
    one.settle()
    assert not one.wants(b"new")
    assert one.account.is_clear()


def test_a_secret_goes_up_while_no_prefix_is_known(world: World) -> None:
    one = Demanded(world)
    assert not one.router.namespace.prefix
    assert one.wants(b"!/cred/1/2/3/x"), "it may be for somebody above"
    one.router.namespace.prefix = b"!/cred/9/9/9/"
    one.router.reconsider_all()
    assert not one.wants(b"!/cred/9/9/9/!/cred/1/2/3/x"), "it is for somebody here"
    assert one.wants(b"!/cred/1/2/3/x")


def test_a_key_is_wanted_or_presumed_to_be_or_neither(world: World) -> None:
    one = Demanded(world, export=[b"room/", b"hall"])
    told: list[Any] = []
    one.router.on_interest = lambda pattern, account: told.append(pattern and pattern.name)
    one.interest.want_all(True)
    one.interest.announce(b"hall")
    one.interest.announce(PRESUMED + b"*/2")
    one.interest.announce(b"!/monitor/room/1")
    wanted = one.router.is_wanted
    assert [wanted(key) for key in (b"hall", b"room/1", b"else/2")] == [True, None, False]
    assert [one.wants(key) for key in (b"hall", b"room/1", b"else/2")] == [True, True, False]
    one.interest.prune(b"room/1")
    assert wanted(b"room/1") is False
    told.clear()
    one.interest.want_all(False)
    assert told == [PRESUMED + b"room/", PRESUMED + b"hall"], "a presumption that ends is a change, too"
    assert [wanted(key) for key in (b"hall", b"room/1", b"room/2")] == [True, False, None]
    one.interest.take_back(PRESUMED + b"*/2")
    assert wanted(b"room/2") is False
    assert wanted(b"!/cred/1/2/3/x") is None, "who holds secrets above is never known"
