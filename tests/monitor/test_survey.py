"""A look at a tree of hubs from one of them downwards, claims of hostile relays included."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from accounting import acting_as
from programs import Programs
from support import FakeHub, HubThread, Peer

from sbuslib.blocking import Client
from sbuslib.errors import StateError
from sbuslib.monitor import survey as surveys
from sbuslib.monitor.survey import SeenHub, SeenLink, survey

TENANT = 12_345

Claim = Callable[[str], SeenLink]


@pytest.fixture
def claim(folder: str) -> Iterator[Claim]:
    """Have a relay claim that its hub listens at some address; what a look from above makes of that."""
    with HubThread(f"{folder}/top") as top, Peer(top.hub.address) as relay:
        relay.send(b"CMSG interest/on")

        def claim(address: str) -> SeenLink:
            relay.send(b"CMSG interest/address\0" + os.fsencode(address))
            relay.barrier()
            (seen,) = survey(top.hub.address).children
            assert seen.link.address == address
            return seen

        yield claim


def shape(seen: SeenHub) -> dict[str, object]:
    """The names of the hubs, one below the other."""
    return {os.path.basename(one.link.address): None if one.hub is None else shape(one.hub) for one in seen.children}


def test_a_tree_is_seen_whole_and_what_it_would_carry(programs: Programs) -> None:
    programs.start("top")
    for name, parent in (("left", "top"), ("right", "top"), ("leaf", "left")):
        programs.start(name, parent)
        programs.wait_until_joined(name)
    with Client(programs.address("leaf")) as client, Client(programs.address("top")) as publisher:
        client.subscribe(b"room/")
        assert client.sync("tree") == "tree"
        publisher.publish(b"room/1")
        client.receive(timeout=20)
        seen = survey(programs.address("top"))
        assert shape(seen) == {"left": {"leaf": {}}, "right": {}}
        assert seen.parent is None
        left, right = seen.children
        assert (left.why, right.why) == ("", "")
        assert left.hub is not None
        (leaf,) = left.hub.children
        assert leaf.link.down == left.link.down == 1
        assert leaf.hub is not None
        assert leaf.hub.parent is not None
        assert leaf.hub.parent.down == 1
        assert leaf.hub.statistics.per_client == ()
        children = survey(programs.address("left"))
        assert children.parent is not None
        assert children.parent.address == programs.address("top")
        assert shape(children) == {"leaf": {}}


def test_so_many_hubs_are_asked_and_no_more(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["top", "a", "b", "c"]
    programs.start("top")
    for parent, name in pairwise(names):
        programs.start(name, parent)
    programs.wait_until_joined("c")
    monkeypatch.setattr(surveys, "DEEPEST", 3)
    assert shape(survey(programs.address("top"))) == {"a": {"b": {"c": None}}}
    monkeypatch.setattr(surveys, "MOST_HUBS", 2)
    assert shape(survey(programs.address("top"))) == {"a": {"b": None}}


def test_a_claim_to_be_another_hub_is_not_believed(claim: Claim, folder: str) -> None:
    with HubThread(f"{folder}/other") as other:
        seen = claim(other.hub.address)
        assert (seen.hub, seen.why) == (None, f"{other.hub.address}: another hub listens there")
    assert claim(f"{folder}/top").why == f"{folder}/top: another hub listens there", "the hub itself"


def test_a_claim_that_leads_nowhere_is_reported(claim: Claim) -> None:
    for address in ("/nowhere/at/all", "/dev/fd/0", "/dev/unix/abstract", "no path", "/etc/passwd", ""):
        seen = claim(address)
        assert (seen.hub, bool(seen.why), seen.link.state) == (None, True, "joined")
    assert seen.why == "it does not say where it listens"


def test_a_claim_to_a_descriptor_leaves_that_of_this_process_alone(claim: Claim, folder: str) -> None:
    with HubThread(f"{folder}/other") as other, Peer(other.hub.address) as peer:
        address = f"/dev/fd/{peer.socket.fileno()}"
        assert claim(address).why == f"{address}: a descriptor of another process"
        peer.barrier()


def test_hubs_that_do_not_answer_are_waited_for_a_few_times(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "SLOW", 1)
    with HubThread(f"{folder}/top") as top, FakeHub(f"{folder}/silent"), contextlib.ExitStack() as stack:
        for _ in range(3):
            relay = stack.enter_context(Peer(top.hub.address))
            relay.send(b"CMSG interest/on", b"CMSG interest/address\0" + os.fsencode(f"{folder}/silent"))
            relay.barrier()
        told = [seen.why for seen in survey(top.hub.address, timeout=1).children]
    assert told[0].startswith(f"{folder}/silent: nothing came in time")
    assert told[1:] == [f"not asked: hubs of user {os.getuid()} take too long"] * 2


def test_a_claim_to_the_address_of_another_user_is_not_believed(folder: str) -> None:
    os.chmod(folder, 0o755)
    with HubThread(f"{folder}/top", mode=0o777) as top, HubThread(f"{folder}/victim", mode=0o777) as victim:
        with acting_as(TENANT):
            relay = Peer(top.hub.address)
        with relay:
            relay.send(b"CMSG interest/on", b"CMSG interest/address\0" + os.fsencode(victim.hub.address))
            relay.barrier()
            (seen,) = survey(top.hub.address).children
            assert (seen.hub, seen.link.uid) == (None, TENANT)
            assert seen.why == f"{victim.hub.address}: its hub runs as user 0, not {TENANT}"
        with acting_as(TENANT), pytest.raises(StateError, match=r"not trusted .* ask for --trusted"):
            survey(top.hub.address)
