"""Hubs that come back: their old link is retired before the new one is used, and nobody takes another's place."""

from __future__ import annotations

import os

import gevent
import pytest
from support import Peer
from worlds import World, served

from sbuslib.tree import hub_identities
from sbuslib.tree.hub_identities import new_epoch, stable_id

ID = b"0123456789abcdef"
ANSWER = b"CMSG interest/on\0announce"


def say(peer: Peer, epoch: int, id_: bytes = ID) -> None:
    peer.send(b"CMSG interest/on\0%b %d 0" % (id_, epoch))


def join(world: World, epoch: int, id_: bytes = ID) -> Peer:
    """A link of a hub of this id, which has joined."""
    peer = world.peer("top")
    say(peer, epoch, id_)
    assert served(peer) == b"announce"
    return peer


def test_a_new_link_joins_after_all_that_came_over_the_old_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_identities, "RETIRE_WAIT", 60.0)
    world.hub("top")
    old, subscriber = join(world, 1), world.peer("top")
    subscriber.subscribe(b"k")
    new = world.peer("top")
    say(new, 2)
    new.barrier()
    assert ANSWER not in new.pending(), "the old link has not ended"
    for n in range(500):
        old.publish(b"k", b"%d" % n)
    old.close()
    assert served(new) == b"announce"
    assert subscriber.pending() == [b"MSG k\0%d" % n for n in range(500)]
    new.subscribe(b"k")
    assert not [packet for packet in new.pending() if packet.startswith(b"MSG")]


def test_an_old_link_whose_process_lives_on_is_ended_after_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_identities, "RETIRE_WAIT", 0.01)
    hub = world.hub("top")
    old = join(world, 1)
    new = join(world, 1)
    while old.receive():
        pass
    new.barrier()
    assert len(hub.tree.links) == 1
    assert hub.statistics().violations == {"its hub has joined again": 1}


def test_an_earlier_process_does_not_take_the_place_of_a_later_one(world: World) -> None:
    hub = world.hub("top")
    later, earlier = join(world, 2), world.peer("top")
    say(earlier, 1)
    assert earlier.is_disconnected()
    later.barrier()
    assert len(hub.tree.links) == 1


def test_of_several_links_that_wait_the_last_one_joins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_identities, "RETIRE_WAIT", 60.0)
    world.hub("top")
    old = join(world, 1)
    first, gone, last = (world.peer("top") for _ in range(3))
    say(first, 2)
    first.barrier()
    say(gone, 3)
    assert first.is_disconnected()
    gone.close()
    say(last, 4)
    last.barrier()
    old.close()
    assert served(last) == b"announce"


def test_two_links_of_one_hub_that_end_in_one_moment_are_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = world.hub("top")
    errors: list[object] = []
    monkeypatch.setattr(gevent.get_hub(), "handle_error", lambda context, *error: errors.append(error))
    old, new, last = (world.peer("top") for _ in range(3))
    say(old, 1)
    old.barrier()
    for peer in (new, last):
        say(peer, 1)
        peer.barrier()
    assert new.is_disconnected()
    first, second = list(hub.tree.hub_identities._said)
    for link in (first, second):
        hub.clients.close(link, "both at once")
    world.peer("top").barrier()
    assert (errors, hub.tree.hub_identities._relays) == ([], {})


def test_no_user_takes_the_place_of_a_hub_of_another(world: World) -> None:
    hub = world.hub("top", relays=[12_345])
    own = join(world, 1)
    other = world.peer_of("top", 12_345)
    say(other, 2)
    assert served(other) == b"prune"
    own.barrier()
    assert len(hub.tree.links) == 2


def test_the_id_stays_the_same_as_long_as_the_place_does(folder: str) -> None:
    other = os.path.join(folder, "other")
    os.mkdir(other)
    ids = [
        stable_id(f"{folder}/bus", b"none"),
        stable_id(f"{folder}/bus2", b"none"),
        stable_id(f"{other}/bus", b"none"),
        stable_id("/dev/unix/abstract/00", b"none"),
    ]
    assert len(set(ids)) == 4
    assert all(len(one) == 16 for one in ids)
    assert stable_id(f"{other}/../bus", b"none") == ids[0]
    assert stable_id(f"{folder}/nowhere/bus", b"none") == b"none"
    assert new_epoch() < new_epoch()
