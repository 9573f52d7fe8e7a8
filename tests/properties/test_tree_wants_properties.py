"""Each hub of a random tree is told exactly what the others want, once the tree is at rest.

The model is a dozen lines: a hub has to hold for a link what is wanted on the other side of that link.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support import PATIENCE, eventually
from worlds import World

from sbuslib import Client
from sbuslib.core import acceptor

pytestmark = pytest.mark.filterwarnings("ignore:.* is no wildcard here")

PATTERNS = [b"", b"a", b"a/", b"a/*", b"*/b", b"c/**", b"k/1", b"k/2"]
HUBS = 6


class Model:
    """A tree: which hub is above which, and what clients want on each."""

    def __init__(self) -> None:
        self.parent: dict[int, int] = {}
        self.wants: dict[int, Counter[bytes]] = {0: Counter()}

    def side(self, hub: int, without: int) -> set[int]:
        """The hubs that are reached from one without crossing to another."""
        reached = {hub}
        links = {*self.parent.items(), *((above, below) for below, above in self.parent.items())}
        while more := {b for a, b in links if a in reached and {a, b} != {hub, without}} - reached:
            reached |= more
        return reached

    def wanted(self, hub: int, other: int) -> set[bytes]:
        """What the neighbour of a hub has to hold for it: the empty pattern stands for all."""
        found = {p for one in self.side(hub, other) for p, times in self.wants[one].items() if times}
        return {b""} if b"" in found else found


class WantsMachine(RuleBasedStateMachine):
    """Hub ``0`` is the root. Hubs join, leave and come back, and clients come, subscribe and go."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="sbus-")
        self.patch = pytest.MonkeyPatch()
        self.world = World(self.folder)
        self.patch.setattr(acceptor, "peer_credentials", self.world.credentials)
        self.model = Model()
        self.clients: list[tuple[int, Client, Counter[bytes]]] = []

    def teardown(self) -> None:
        self.world.close()
        self.patch.undo()
        shutil.rmtree(self.folder)

    @initialize(above=st.lists(st.integers(0, HUBS), min_size=1, max_size=HUBS - 1))
    def plant(self, above: list[int]) -> None:
        self.world.hub("0")
        for place in above:
            self.join(place)

    @rule(place=st.integers(0, HUBS))
    def join(self, place: int) -> None:
        hubs = list(self.model.wants)
        if len(hubs) >= HUBS:
            return
        new, above = max(hubs) + 1, hubs[place % len(hubs)]
        self.world.hub(str(new))
        self.world.relay(str(new), str(above))
        self.model.parent[new], self.model.wants[new] = above, Counter()

    @rule(place=st.integers(0, HUBS))
    def depart(self, place: int) -> None:
        leaves = [hub for hub in self.model.wants if hub and hub not in self.model.parent.values()]
        if not leaves:
            return
        hub = leaves[place % len(leaves)]
        for one in [one for one in self.clients if one[0] == hub]:
            self.clients.remove(one)
            one[1].close()
        self.world.relays[str(hub)].stop()
        self.world.hubs[str(hub)].stop(0)
        del self.model.parent[hub], self.model.wants[hub]

    @rule(place=st.integers(0, HUBS))
    def break_a_link(self, place: int) -> None:
        if self.model.parent:
            relay = self.world.relays[str(list(self.model.parent)[place % len(self.model.parent)])]
            epoch = relay.epoch
            assert relay.parent.link is not None
            relay.parent.link.outbound.socket.shutdown(2)
            eventually(lambda: relay.epoch > epoch)

    @rule(place=st.integers(0, HUBS), patterns=st.lists(st.sampled_from(PATTERNS), max_size=3))
    def connect(self, place: int, patterns: list[bytes]) -> None:
        hub = list(self.model.wants)[place % len(self.model.wants)]
        client = self.world.client(str(hub))
        for pattern in patterns:
            client.subscribe(pattern)
        client.sync()
        self.clients.append((hub, client, Counter(patterns)))
        self.model.wants[hub].update(patterns)

    @rule(place=st.integers(0, 20))
    def disconnect(self, place: int) -> None:
        if self.clients:
            hub, client, patterns = self.clients.pop(place % len(self.clients))
            client.close()
            self.model.wants[hub].subtract(patterns)

    def held(self, hub: int, other: int) -> set[bytes]:
        """What a hub holds for a neighbour."""
        tree = self.world.hubs[str(hub)].tree
        patterns = tree.context.router.plain_patterns_of
        if self.model.parent.get(hub) == other:
            return set(patterns(self.world.relays[str(hub)].parent.up))
        for link in tree.links.values():
            if tree.addresses.get(link.outbound) == self.world.address(str(other)):
                return set(patterns(link.outbound))
        return set()

    @rule()
    def is_at_rest(self) -> None:
        for below, above in self.model.parent.items():
            self.world.relays[str(below)].wait(PATIENCE)
            for hub, other in ((below, above), (above, below)):
                due = self.model.wanted(other, hub)
                eventually(lambda: self.held(hub, other) == due)  # noqa: B023


TestWants = WantsMachine.TestCase
TestWants.settings = settings(
    max_examples=15, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
