"""Random trees whose hubs and links come and go: at rest they deliver what one hub would."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from itertools import count

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support import PATIENCE, eventually
from worlds import FAST, OTHER, RELAY, World, settle

from sbuslib import Client, Subscription
from sbuslib.core import acceptor
from sbuslib.matcher import matches
from sbuslib.tree import uplink

pytestmark = pytest.mark.filterwarnings("ignore:.* is no wildcard here")

MOST_HUBS = 7
DEPTH = 3
LIMITS = msgspec.structs.replace(FAST, link_patterns=4, pruned_keys=2, prefix_wait=0.01)
"""So few patterns that interest is widened now and then, and so few keys that the oldest makes room. A client of a hub
whose parent is stopped waits for its credential key: many that wait for long take longer than a test may."""

segment = st.sampled_from([b"a", b"b", b"*", b"**"])
users = st.sampled_from([0, RELAY, OTHER])
"""Who runs a hub, as the one above sees it: somebody who is trusted, may relay, or is nobody to it."""
patterns = st.lists(segment, min_size=0, max_size=2).map(b"/".join) | st.sampled_from([b"a/", b"a/*/", b""])
wanted = st.lists(patterns, max_size=2)
keys = st.lists(st.sampled_from([b"a", b"b", b"*"]), min_size=1, max_size=2).map(b"/".join)


class TreeMachine(RuleBasedStateMachine):
    """Hub ``0`` is the root. The others join it as one of ``users``, and after an outage as the trusted one."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="sbus-")
        self.patch = pytest.MonkeyPatch()
        self.world = World(self.folder)
        self.patch.setattr(uplink, "ACK_PAUSE", 0.001)
        self.patch.setattr(acceptor, "peer_credentials", self.world.credentials)
        self.parent: dict[int, int] = {}
        self.clients: dict[Client, tuple[int, list[bytes], list[bytes]]] = {}
        self.subscribed: defaultdict[tuple[Client, bytes], list[Subscription]] = defaultdict(list)
        self.numbers = count()

    def teardown(self) -> None:
        self.world.close()
        self.patch.undo()
        shutil.rmtree(self.folder)

    # -- the tree -----------------------------------------------------------------------------------

    @initialize(hubs=st.lists(st.tuples(st.integers(0, MOST_HUBS), users, wanted), max_size=MOST_HUBS - 1))
    def plant(self, hubs: list[tuple[int, int, list[bytes]]]) -> None:
        depth = {0: 1}
        self.start_hub(0)
        self.connect(0, [])
        for n, (parent, user, wanted) in enumerate(hubs, 1):
            parents = [hub for hub in depth if depth[hub] < DEPTH]
            self.parent[n] = parents[parent % len(parents)]
            depth[n] = depth[self.parent[n]] + 1
            self.start_hub(n)
            self.join_anew(n, user)
            self.connect(n, wanted)

    @property
    def size(self) -> int:
        return len(self.parent) + 1

    def start_hub(self, n: int) -> None:
        self.world.hub(str(n), limits=LIMITS, relays=[RELAY])
        self.start_link(n)

    def start_link(self, n: int) -> None:
        if n in self.parent:
            self.world.relay(str(n), str(self.parent[n]), wait=False)

    def is_up(self, n: int) -> bool:
        return self.world.hubs[str(n)].started

    @rule(n=st.integers(0, MOST_HUBS))
    def kill_or_restart_a_hub(self, n: int) -> None:
        n %= self.size
        if not self.is_up(n):
            self.start_hub(n)
            return
        self.world.hubs[str(n)].stop(0)
        for client, (where, _, _) in list(self.clients.items()):
            if where == n:
                client.close()
                del self.clients[client]

    @rule(n=st.integers(1, MOST_HUBS))
    def break_a_link(self, n: int) -> None:
        relay = self.world.relays.get(str(n))
        if relay is not None and relay.parent.joined is not None:
            relay.parent.joined.outbound.socket.shutdown(2)

    @rule(n=st.integers(1, MOST_HUBS), user=users)
    def join_anew(self, n: int, user: int) -> None:
        if n in self.parent and self.is_up(n):
            self.world.uids[str(self.parent[n])] = user  # for whom the parent takes the next one that comes
            self.world.relays[str(n)].stop()
            self.start_link(n)
            if self.is_up(self.parent[n]):
                self.world.relays[str(n)].wait(PATIENCE) if self.reaches_the_root(n) else None
            self.world.uids.clear()

    def reaches_the_root(self, n: int) -> bool:
        while n in self.parent:
            n = self.parent[n]
            if not self.is_up(n):
                return False
        return True

    # -- clients ------------------------------------------------------------------------------------

    @rule(n=st.integers(0, MOST_HUBS), wanted=wanted)
    def connect(self, n: int, wanted: list[bytes]) -> None:
        n %= self.size
        if self.is_up(n) and len(self.clients) < 8:
            client = self.world.client(str(n), on_notice=lambda notice: None)
            self.clients[client] = (n, [], [])
            for pattern in wanted:
                self.subscribe(client, pattern)

    def subscribe(self, client: Client, pattern: bytes) -> None:
        self.subscribed[client, pattern].append(client.subscribe(pattern))
        self.clients[client][1].append(pattern)

    @rule(data=st.data(), pattern=patterns)
    def want(self, data: st.DataObject, pattern: bytes) -> None:
        if self.clients:
            self.subscribe(data.draw(st.sampled_from(list(self.clients))), pattern)

    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        held = [(client, pattern) for client, (_, some, _) in self.clients.items() for pattern in some]
        if held:
            client, pattern = data.draw(st.sampled_from(held))
            self.subscribed[client, pattern].pop().unsubscribe()
            self.clients[client][1].remove(pattern)

    @rule(data=st.data(), some=st.lists(keys, min_size=1, max_size=5))
    def publish_in_unrest(self, data: st.DataObject, some: list[bytes]) -> None:
        if self.clients:
            client = data.draw(st.sampled_from(list(self.clients)))
            client.publish_many([(key, b"unrest") for key in some])

    # -- at rest ------------------------------------------------------------------------------------

    def rest(self) -> None:
        for n in range(self.size):
            if not self.is_up(n):
                self.start_hub(n)
        for n in self.parent:
            eventually(lambda: self.world.relays[str(n)].state == "joined")  # noqa: B023
        relays = [self.world.relays[str(n)] for n in self.parent]
        for client in self.clients:
            eventually(lambda: client.sync("tree") == "tree")  # noqa: B023
        eventually(lambda: all(not relay.parent.up.waiting for relay in relays))
        for _ in range(DEPTH * 2):
            settle(*self.clients)
        eventually(lambda: all(relay.parent.step == "open" for relay in relays))

    @rule(some=st.lists(keys, min_size=1, max_size=6))
    def delivers_what_one_hub_would(self, some: list[bytes]) -> None:
        self.rest()
        for client in self.clients:
            client.sync()
            client._connection.session.inbox.clear()
        whoami = {client: client.hub.whoami() for client in self.clients}
        for client in self.clients:
            if not self.clients[client][2] or self.clients[client][2][-1] != whoami[client]:
                client.subscribe(whoami[client] + b"/box")
                self.clients[client][2].append(whoami[client])
        sent: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for n, client in enumerate(self.clients):
            name = b"%d" % n
            sent[name] = [(key, b"%b %d" % (name, next(self.numbers))) for key in some]
            sent[name] += [(key + b"/box", b"%b %d" % (name, next(self.numbers))) for key in whoami.values()]
            client.publish_many(sent[name])
        for client, (_, held, _) in self.clients.items():
            due = {
                name: [
                    (key, payload)
                    for key, payload in messages
                    if key == whoami[client] + b"/box"
                    or (not key.startswith(b"!") and any(matches(pattern, key) for pattern in held))
                ]
                for name, messages in sent.items()
            }
            got: dict[bytes, list[tuple[bytes, bytes]]] = {name: [] for name in sent}
            for _ in range(sum(map(len, due.values()))):
                message = client.receive(timeout=PATIENCE)
                got[message.payload.split()[0]].append((message.key, message.payload))
            assert got == due
        for client in self.clients:
            assert client.sync("tree") == "tree"
        for client in self.clients:
            client.sync()
            assert not client._connection.session.inbox, "a message came twice, or to somebody who did not want it"


TestTrees = TreeMachine.TestCase
TestTrees.settings = settings(
    max_examples=30, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
