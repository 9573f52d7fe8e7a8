"""A hub's place in a tree: which connections are links, and in whose turns the work for links is done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import PATIENCE, Peer, eventually
from worlds import RELAY, STRANGER, World, served

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
    eventually(lambda: link.cursor is not None and link.cursor.is_told)
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
