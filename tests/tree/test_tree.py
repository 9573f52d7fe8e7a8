"""A hub's place in a tree: which connections are links, whose turns their work is done in, and their statistics."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import gevent
import msgspec
import pytest
from support import PATIENCE, FakeHub, Peer, eventually
from worlds import FAST, RELAY, STRANGER, World, served, settle

from sbuslib import Client, Hub, aio
from sbuslib.core import reporting
from sbuslib.errors import PeerError, StateError
from sbuslib.statistics import LinkPage, LinkStatistics
from sbuslib.tree import tree
from sbuslib.tree.child_link import ChildLink
from sbuslib.tree.interest import Changes


@pytest.mark.parametrize("user", [None, RELAY], ids=["announce", "prune"])
def test_links_are_told_in_turns_of_the_user_who_subscribes(
    world: World, stranger: Peer, monkeypatch: pytest.MonkeyPatch, user: int | None
) -> None:
    raw = world.link("top", user)
    hub = world.hubs["top"]
    (link,) = hub.tree.links.values()
    patterns = [b"b/%d" % n for n in range(50)]
    if user == RELAY:
        for key in patterns:
            raw.publish(key)
        assert sum(packet.startswith(b"CMSG interest/prune") for packet in raw.pending()) == 50
        patterns = [b"b/*"]
    eventually(lambda: link.cursor is not None and link.cursor.is_level)
    told: list[int | None] = []
    encode = ChildLink.encode

    def watched(self: ChildLink, changes: Changes) -> list[bytes]:
        running = hub.context.running.scheduler._running
        told.extend([running.uid if running is not None else None] * len(changes))
        return encode(self, changes)

    monkeypatch.setattr(ChildLink, "encode", watched)
    stranger.subscribe(*patterns)
    eventually(lambda: len(told) == 50)
    assert set(told) == {STRANGER}


def test_the_first_link_of_a_while_is_told_what_changed_since_the_last(world: World) -> None:
    world.chain("top", "left")
    world.relays["left"].stop()
    receiver, publisher = world.client("top"), world.client("left")
    eventually(lambda: not world.hubs["top"].tree.links)
    receiver.subscribe(b"k")
    receiver.sync()
    world.relay("left", "top")
    publisher.publish(b"k", b"1")
    assert receiver.receive(timeout=PATIENCE).payload == b"1"


def test_a_plain_relay_is_no_link(world: World) -> None:
    hub = world.hub("top", relays=[RELAY])
    plain = [world.peer_of("top", STRANGER) for _ in range(20)]
    for peer in plain:
        peer.send(b"CMSG interest/on")
        assert served(peer) == b"plain"
    assert not hub.tree.links
    assert hub.context.router.watch is None, "a subscription calls nothing"
    client = world.client("top")
    client.subscribe(b"k")
    assert client.sync("tree") == "tree"
    assert [peer.pending() for peer in plain] == [[]] * 20


def test_a_plain_relay_is_told_of_a_new_path(world: World) -> None:
    world.hub("above")
    world.hub("top")
    plain = world.peer_of("top", STRANGER)
    plain.send(b"CMSG interest/on")
    assert served(plain) == b"plain"
    world.relay("top", "above")
    told = [packet for packet in plain.pending() if packet.startswith(b"CMSG hub/features")]
    assert world.hubs["above"].hub_id in told[-1], "or a ring of such relays would not be found out"


def test_a_user_who_is_not_trusted_may_have_a_few_links(world: World, make_link: Callable[[], Peer]) -> None:
    links = [make_link() for _ in range(tree.LINKS_OF_A_USER)]
    refused = world.peer_of("top", STRANGER)
    refused.send(b"CMSG notices/on", b"CMSG interest/on")
    assert [refused.receive(), refused.receive()] == [b"CMSG notice/kicked\0too many links", b""]
    links[0].send(b"CMSG interest/on")  # said twice, it means nothing
    links[0].barrier()
    links.pop().close()
    eventually(lambda: world.hubs["top"].tree._links_of[STRANGER] == len(links))
    make_link()


TENANT, NEIGHBOUR = 12_345, 23_456


def ask(peer: Peer, payload: bytes) -> LinkPage:
    peer.send(b"CMSG hub/links\0" + payload)
    while not (packet := peer.receive()).startswith(b"CMSG hub/links\0"):
        assert packet, "disconnected"
    return msgspec.json.decode(packet.partition(b"\0")[2], type=LinkPage)


def below(world: World, name: str) -> LinkStatistics:
    (link,) = (link for link in world.hubs[name].statistics().per_link if link.direction == "child")
    return link


def parent(world: World, name: str) -> LinkStatistics:
    link = world.hubs[name].statistics().per_link[0]
    assert link.direction == "parent"
    return link


def test_both_ends_of_a_link_tell_the_same_of_it(world: World) -> None:
    world.chain("top", "left")
    upper, lower = world.client("top"), world.client("left")
    upper.subscribe(b"up/")
    lower.subscribe(b"down/", b"down/2")
    settle(upper, lower)
    for n in range(5):
        lower.publish(b"up/%d" % n)
    upper.publish(b"down/1")
    assert [upper.receive(timeout=PATIENCE).key for _ in range(5)][-1] == b"up/4"
    assert lower.receive(timeout=PATIENCE).key == b"down/1"
    one, other = below(world, "top"), parent(world, "left")
    assert (one.up, other.up) == (5, 5)
    assert (one.down, other.down) == (1, 1)
    assert (one.state, other.state) == ("joined", "joined")
    assert (one.mode, other.mode) == ("announce", "announce")
    assert one.credentials == other.credentials == world.hubs["left"].whoami().decode().rsplit("/!/", 1)[0]
    assert other.hub == world.hubs["top"].hub_id.decode()
    assert (len(one.hub), one.epoch > 0) == (16, True)
    assert (one.address, other.address) == (world.address("left"), world.address("top"))
    assert (other.epoch, other.patterns) == (1, 2)
    assert one.patterns == 3, "and one for secrets"
    assert (one.lost, one.uncertain, one.waiting, other.lost, other.uncertain, other.waiting) == ({}, 0, 0, {}, 0, 0)


def test_what_a_hub_below_says_of_losses_stays_within_64_bits(world: World) -> None:
    world.hub("top")
    peer = world.link("top")
    for n in range(20):
        for cause in (b"upstream", b"uncertain"):
            peer.send(b"CMSG interest/lost\0hub%d %b 0 0 999999999999999 1.0" % (n, cause))
    peer.barrier()
    link = below(world, "top")
    assert (link.lost, link.uncertain) == ({"upstream": 10**15 - 1}, 10**15 - 1)
    assert world.client("top").hub.links()[0].uncertain == 10**15 - 1


def test_a_link_tells_how_far_it_lags(world: World) -> None:
    world.hub("top", limits=msgspec.structs.replace(FAST, sync_wait=0.2))  # the link is asked within that time
    peer = world.link("top")
    assert below(world, "top").lag == 0
    assert world.client("top").sync("tree") == "partial"
    link = below(world, "top")
    assert (link.state, link.lag > 0.01) == ("lagging", True)
    (question,) = (one for one in peer.pending() if one.startswith(b"CMSG interest/sync"))
    peer.send(question + b"\0tree")
    peer.barrier()
    assert (below(world, "top").state, below(world, "top").lag) == ("joined", 0)


def test_a_link_above_tells_for_how_long_it_waits_for_an_acknowledgement(world: World) -> None:
    with FakeHub(world.address("top")) as master:
        world.hub("left")
        relay = world.relay("left", "top", wait=False)
        master.accept_relay()
        relay.wait(PATIENCE)
        assert parent(world, "left").lag == 0
        world.client("left").publish(b"k")
        eventually(lambda: parent(world, "left").lag)
        assert (parent(world, "left").mode, parent(world, "left").hub) == ("plain", "")


@pytest.mark.parametrize(("uid", "mode"), [(None, "announce"), (TENANT, "prune"), (NEIGHBOUR, "plain")])
def test_a_hub_tells_which_links_carry_a_key(world: World, uid: int | None, mode: str) -> None:
    world.hub("top", relays=[TENANT])
    world.hub("left")
    world.hub("right")
    if uid is not None:
        world.uids["top"] = uid
    world.relay("left", "top")
    world.relay("right", "top", export=[b"out/"])
    world.uids.clear()
    world.client("left").subscribe(b"in/")
    world.client("top").subscribe(b"out/1")
    upper, left, right = map(world.client, ("top", "left", "right"))
    settle(upper, left, right)

    def carried(client: Any, key: bytes) -> list[bool]:
        return [one.carries for one in client.hub.why(key).links]

    assert carried(upper, b"in/1") == [True, False]
    assert carried(upper, b"other") == [False, False]
    assert carried(left, b"out/1") == [True]
    assert carried(right, b"other") == [False], "it is not exported"
    assert carried(right, b"out/2") == [mode != "announce"]
    assert {link.mode for link in upper.hub.links()} == {mode}


@pytest.mark.parametrize(
    ("said", "hub", "epoch"),
    [
        (b"0123456789abcdef 7", "0123456789abcdef", 7),
        (b"0123456789abcdef " + b"9" * 18, "0123456789abcdef", 10**18 - 1),
        (b"0123456789abcdef " + b"9" * 20, "", 0),
        (b"0123456789abcdef -1", "", 0),
        (b"x" * 16 + b" 7", "", 0),
        (b"", "", 0),
    ],
)
def test_who_a_hub_below_is_fits_the_statistics(world: World, said: bytes, hub: str, epoch: int) -> None:
    world.hub("top")
    relay = world.peer("top")
    relay.send(b"CMSG interest/on\0" + said)
    relay.barrier()
    (link,) = world.client("top").hub.links()
    assert (link.hub, link.epoch) == (hub, epoch)


def test_where_a_hub_below_listens_is_what_it_says(world: World) -> None:
    world.hub("top")
    relay, client = world.peer("top"), world.peer("top")
    client.send(b"CMSG interest/address\0/run/victim")
    relay.send(b"CMSG interest/address\0too early", b"CMSG interest/on", b"CMSG interest/address\0" + b"x" * 257)
    client.barrier()
    relay.barrier()
    assert below(world, "top").address == ""
    for said in (b"", b"x" * 256, b"/run/\xff\n", b"/run/bus"):
        relay.send(b"CMSG interest/address\0" + said)
        relay.barrier()
        assert below(world, "top").address == said.decode(errors="replace")
    assert world.client("top").hub.links()[0].address == "/run/bus"
    relay.close()
    eventually(lambda: not world.hubs["top"].tree.addresses)


def test_a_relative_address_is_told_as_an_absolute_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.hub("top")
    monkeypatch.chdir(world.folder)
    world.hubs["left"] = Hub("./left", limits=FAST)
    world.hubs["left"].start()
    world.relay("left", "top")
    eventually(lambda: below(world, "top").address == world.address("left"))


def test_each_of_many_links_is_told_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "LINKS_PAGE", 3)
    world.hub("over")
    world.hub("top")
    world.relay("top", "over")
    client = world.client("top")
    peers = [world.peer("top") for _ in range(10)]
    for peer in peers[::2]:
        peer.send(b"CMSG interest/on")
        peer.barrier()
    told = client.hub.links()
    assert [link.direction for link in told] == ["parent", *["child"] * 5]
    assert [link.number for link in told] == [0, 2, 4, 6, 8, 10]
    assert [link.number for link in client.hub.links(most=4)] == [0, 2, 4, 6]
    assert client.hub.statistics().per_link == (), "they are too many for a page"
    assert len(world.hubs["top"].statistics().per_link) == 6

    async def ask_too() -> list[LinkStatistics]:
        async with aio.Client(world.address("top")) as asking:
            return await asking.hub.links()

    found: list[LinkStatistics] = []
    thread = threading.Thread(target=lambda: found.extend(asyncio.run(ask_too())))
    thread.start()
    eventually(lambda: not thread.is_alive())
    assert [link.number for link in found] == [link.number for link in told]


def test_links_are_told_to_the_trusted_only(world: World) -> None:
    world.hub("top", mode=0o777)
    stranger = world.peer_of("top", NEIGHBOUR)
    stranger.send(b"CMSG hub/links\x000")
    assert stranger.receive() == b"CMSG hub/links\0"
    friend = world.peer("top")
    for payload in (b"", b"0", b"7", b"9" * 18):
        assert ask(friend, payload) == LinkPage(links=(), next=None)
    for payload in (b"-1", b"x", b"9" * 19, b"0\0a/!/b", b"0\0!/x"):
        peer = world.peer("top")
        peer.send(b"CMSG hub/links\0" + payload)
        assert peer.is_disconnected()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", StateError),
        (b'{"links": [], "next": 7}', PeerError),
        (b'{"links": [], "next": 0}', PeerError),
        (b'{"links": [], "next": -1}', PeerError),
        (b"[" * 100_000, PeerError),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(world: World, answer: bytes, error: type[Exception]) -> None:
    with FakeHub(world.address("top")) as hub:
        asked = gevent.spawn(Client, world.address("top"))
        link = hub.greet(b"hub/links id=1 path=1")
        with asked.get(timeout=PATIENCE) as client:
            asking = gevent.spawn(client.hub.links)
            link.receive()
            link.send(b"CMSG hub/links\0" + answer)
            with pytest.raises(error):
                asking.get(timeout=PATIENCE)
