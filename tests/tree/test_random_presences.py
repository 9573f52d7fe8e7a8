"""Random trees in which clients are present, watch, and go: at rest every watcher knows the set of those who are."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support import PATIENCE, eventually
from worlds import World

from sbuslib import Client
from sbuslib.core import acceptor
from sbuslib.matcher import matches
from sbuslib.tree import presences, uplink

EXAMPLES = int(os.environ.get("SBUS_PRESENCE_TREES", "15"))
TREE = {1: 0, 2: 0, 3: 1, 4: 1}
"""Hubs by the one above: three levels."""
HUBS = len(TREE) + 1

hubs = st.integers(0, HUBS - 1)
keys = st.sampled_from([b"a/1", b"a/2", b"b"])
patterns = st.sampled_from([b"", b"a/", b"a/*", b"b"])


class Watcher:
    """A client that watches, and what it has been told, event by event."""

    def __init__(self, client: Client, pattern: bytes) -> None:
        self.client = client
        self.pattern = pattern
        self.watch: Any = client.present(pattern)
        self.known: Counter[tuple[bytes, bytes]] = Counter(map(self._name, self.watch.members))
        for event in self.watch._core._watch.events:  # the members are ahead of events that wait
            self.known[self._name(event.member)] -= 1 if event.came else -1

    @staticmethod
    def _name(member: Any) -> tuple[bytes, bytes]:
        return member.key, member.info  # the credential key is another after an outage, and that is no event

    def take_events(self) -> None:
        """Take what waits. Nobody comes twice: each has an information of its own."""
        self.client.sync()
        while self.watch._core._watch.events:
            event = self.watch.receive(timeout=0)
            name = self._name(event.member)
            assert matches(self.pattern, event.member.key)
            assert self.known[name] == (not event.came), f"{name}: {event} comes twice, or out of order"
            self.known[name] += 1 if event.came else -1
        assert +self.known == Counter(map(self._name, self.watch.members))


class PresenceMachine(RuleBasedStateMachine):
    """Hub ``0`` is the root. The model is who is present: a set of key and information, by client."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="sbus-")
        self.patch = pytest.MonkeyPatch()
        self.world = World(self.folder)
        self.patch.setattr(uplink, "ACK_PAUSE", 0.001)
        self.patch.setattr(presences, "GIVEN_UP", 0.05)
        self.patch.setattr(acceptor, "peer_credentials", self.world.credentials)
        self.where: dict[Client, int] = {}
        self.present: dict[Client, dict[bytes, tuple[bytes, Any]]] = {}
        self.watchers: dict[Client, list[Watcher]] = {}
        self.numbers = count()

    def teardown(self) -> None:
        try:
            self.rest()
        finally:
            self.world.close()
            self.patch.undo()
            shutil.rmtree(self.folder)
        assert all(hub.context.quotas.is_clear() for hub in self.world.hubs.values())

    @initialize()
    def plant(self) -> None:
        for n in range(HUBS):
            self.start_hub(n)
            self.watch(n, b"")

    # -- the tree -----------------------------------------------------------------------------------

    def start_hub(self, n: int) -> None:
        self.world.hub(str(n))
        self.start_link(n)

    def start_link(self, n: int) -> None:
        if n in TREE:
            self.world.relay(str(n), str(TREE[n]), wait=False)

    @rule(n=hubs)
    def kill_or_restart_a_hub(self, n: int) -> None:
        if not self.world.hubs[str(n)].started:
            self.start_hub(n)
            return
        self.world.hubs[str(n)].stop(0)
        for client in [client for client, where in self.where.items() if where == n]:
            client.close()
            self.forget(client)

    @rule(n=st.integers(1, HUBS - 1))
    def break_a_link(self, n: int) -> None:
        joined = self.world.relays[str(n)].parent.joined
        if joined is not None:
            joined.outbound.socket.shutdown(2)

    @rule(n=st.integers(1, HUBS - 1))
    def cut_or_heal_a_link(self, n: int) -> None:
        if self.world.hubs[str(n)].started:
            relay = self.world.relays[str(n)]
            relay.stop() if relay.state != "stopped" else self.start_link(n)

    # -- clients ------------------------------------------------------------------------------------

    def connect(self, n: int) -> Client | None:
        if not self.world.hubs[str(n)].started or len(self.where) >= 12:
            return None
        client = self.world.client(str(n), on_notice=lambda notice: None)
        self.where[client], self.present[client], self.watchers[client] = n, {}, []
        return client

    def forget(self, client: Client) -> None:
        del self.where[client], self.present[client], self.watchers[client]

    @rule(n=hubs, some=st.sets(keys))
    def join(self, n: int, some: set[bytes]) -> None:
        client = self.connect(n)
        for key in some if client is not None else ():
            self.appear(client, key)

    def appear(self, client: Client | None, key: bytes) -> None:
        assert client is not None
        if key not in self.present[client]:
            info = b"%d" % next(self.numbers)
            self.present[client][key] = info, client.presence(key, info=info)

    @rule(data=st.data(), key=keys)
    def come_or_go(self, data: st.DataObject, key: bytes) -> None:
        if self.where:
            client = data.draw(st.sampled_from(list(self.where)))
            if key in self.present[client]:
                self.present[client].pop(key)[1].leave()
            else:
                self.appear(client, key)

    @rule(n=hubs, pattern=patterns)
    def watch(self, n: int, pattern: bytes) -> None:
        client = self.connect(n)
        if client is not None:
            self.watchers[client].append(Watcher(client, pattern))

    @rule(data=st.data(), pattern=patterns)
    def watch_more_or_less(self, data: st.DataObject, pattern: bytes) -> None:
        if self.where:
            client = data.draw(st.sampled_from(list(self.where)))
            if len(self.watchers[client]) > 1:
                self.watchers[client].pop().watch.close()
            else:
                self.watchers[client].append(Watcher(client, pattern))

    @rule(data=st.data())
    def kill_a_client(self, data: st.DataObject) -> None:
        if self.where:
            client = data.draw(st.sampled_from(list(self.where)))
            client._connection.socket.shutdown(2)
            client.close()  # or it would be present again
            self.forget(client)

    # -- at rest ------------------------------------------------------------------------------------

    @rule()
    def events_alternate(self) -> None:
        for watchers in self.watchers.values():
            for watcher in watchers:
                watcher.take_events()

    @rule()
    def rest(self) -> None:
        """All links are healed: each watcher knows the members of the model, and has heard of each in order."""
        for n in range(HUBS):
            if not self.world.hubs[str(n)].started:
                self.start_hub(n)
            elif n in TREE and self.world.relays[str(n)].state == "stopped":
                self.start_link(n)
        for n in TREE:
            self.world.relays[str(n)].wait(PATIENCE)
        for client in self.where:
            eventually(lambda: client.sync("tree") == "tree")  # noqa: B023

        model = Counter((key, info) for held in self.present.values() for key, (info, _) in held.items())
        for watchers in self.watchers.values():
            for watcher in watchers:
                due = Counter({name: 1 for name in model if matches(watcher.pattern, name[0])})

                def is_level() -> bool:
                    watcher.take_events()  # noqa: B023
                    return +watcher.known == due  # noqa: B023

                eventually(is_level)


TestPresences = PresenceMachine.TestCase
TestPresences.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
