"""What links are told, within bounds."""

from __future__ import annotations

import pytest
from support import Peer, eventually
from worlds import World

from sbuslib.tree import propagation
from sbuslib.tree.propagation import InterestPropagation
from sbuslib.wire import control

ADD, REMOVE = b"CMSG interest/add\0", b"CMSG interest/remove\0"


def link_to(world: World, *patterns: bytes) -> Peer:
    link = world.link("top")
    link.subscribe(*patterns)
    return link


def told(world: World) -> InterestPropagation:
    return world.hubs["top"].tree.propagation


class Held:
    """What a link holds of the patterns that it was told."""

    def __init__(self, link: Peer) -> None:
        self.link = link
        self.patterns: set[bytes] = set()

    def read(self) -> set[bytes]:
        for packet in self.link.pending():
            if packet.startswith(ADD):
                self.patterns.update(packet.removeprefix(ADD).split(b"\0"))
            elif packet.startswith(REMOVE):
                self.patterns.difference_update(packet.removeprefix(REMOVE).split(b"\0"))
        return self.patterns


def test_a_link_that_reads_late_is_told_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_CHANGES_BYTES", 1_000)  # a packet for each pattern
    world.hub("top")
    link = link_to(world)
    patterns = {b"%d/" % n + bytes([97 + n % 26]) * 1_000 for n in range(3_000)}
    client = world.peer("top")
    client.subscribe(*patterns)
    eventually(lambda: told(world)._full)
    held = Held(link)
    eventually(lambda: held.read() == patterns)


def test_what_a_client_subscribed_to_before_it_became_a_link_is_not_told_to_it(world: World) -> None:
    world.hub("top")
    other = Held(link_to(world))
    link = world.peer("top")
    link.subscribe(b"mine", b"everybody's")
    eventually(lambda: other.read() == {b"mine", b"everybody's"})
    link.send(b"CMSG interest/on")
    held = Held(link)
    world.peer("top").subscribe(b"everybody's")
    eventually(lambda: held.read() == {b"everybody's"})
    link.send(b"UNSUB mine")
    eventually(lambda: other.read() == {b"everybody's"})


def test_all_links_together_are_told_a_bounded_number_of_patterns(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(propagation, "TOLD_PATTERNS", 300)
    world.hub("top")
    links = [Held(link_to(world, *(b"%d/%d" % (n, m) for m in range(20)))) for n in range(10)]
    client = world.peer("top")
    client.subscribe(*(b"room/%d" % n for n in range(100)))
    client.barrier()
    eventually(lambda: all(held.read() == {b""} for held in links))
