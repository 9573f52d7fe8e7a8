"""What a link gets of what it asks for: over real links, and against a model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support import PATIENCE, Peer, eventually
from worlds import FAST, World, settle

from sbuslib import Hub
from sbuslib.errors import PacketError
from sbuslib.matcher import matches
from sbuslib.policy import Policy, Rule, User
from sbuslib.secrets import Credentials
from sbuslib.tree.narrowing import Narrowed

TENANT = 12_345
RULES = [
    Rule(users=frozenset({os.getuid()}), publish=(b"",), subscribe=(b"",)),
    Rule(users=frozenset({TENANT}), publish=(b"tenants/%u/",), subscribe=(b"tenants/%u/", b"host/")),
]


def policy(*rules: Rule) -> Policy:
    return Policy(rules or RULES, lambda uid: User(b"ann" if uid == TENANT else b"", frozenset()))


@pytest.fixture
def link(world: World) -> Callable[[], Peer]:
    """A raw link of a tenant, below a hub with rules."""
    world.hub("top", relays=[TENANT], authorize=policy())
    return lambda: join(world)


def join(world: World) -> Peer:
    peer = world.peer_of("top", TENANT)
    peer.send(b"CMSG interest/on")
    assert peer.receive() == b"CMSG interest/on\0prune"
    assert peer.receive() == b"CMSG interest/complete\0"
    return peer


def held(world: World) -> list[bytes]:
    """The patterns that the only link of the hub holds."""
    hub = world.hubs["top"]
    (connection,) = hub.tree.links
    return sorted(hub.context.router.plain_patterns_of(connection))


def test_what_a_link_asked_for_is_charged_until_it_ends(world: World, link: Callable[[], Peer]) -> None:
    tenant = link()
    tenant.subscribe(*(b"*/%d" % n for n in range(50)), *(b"nothing/%d" % n for n in range(50)))
    quotas = world.hubs["top"].context.quotas
    assert quotas.account(TENANT).patterns == 101
    assert world.hubs["top"].statistics().dropped == {"subscription refused": 50}
    tenant.close()
    eventually(lambda: not quotas.account(TENANT).patterns)
    assert quotas.account(TENANT).pattern_bytes == 0


def test_a_link_with_too_many_patterns_is_widened_to_what_it_may_read(world: World) -> None:
    world.hub("top", relays=[TENANT], authorize=policy(), limits=msgspec.structs.replace(FAST, user_patterns=20))
    tenant = join(world)
    tenant.subscribe(*(b"*/%d" % n for n in range(200)))
    assert b"CMSG interest/widen\0" in tenant.pending()
    assert held(world) == [b"host/", b"tenants/ann/"]
    assert world.hubs["top"].context.quotas.account(TENANT).patterns <= 23


def tenant_key(peer: Peer) -> bytes:
    peer.send(b"CMSG !/cred/whoami")
    while not (packet := peer.receive()).startswith(b"CMSG !/cred/whoami"):
        pass
    return packet.partition(b"\0")[2]


def test_a_link_learns_nothing_of_who_wants_a_key_outside_of_its_scope(world: World, link: Callable[[], Peer]) -> None:
    """The same packets come whether a neighbour wants the key or not, before, meanwhile and afterwards."""
    told = []
    for wanted in (False, True):
        tenant = link()
        tenant.send(b"CMSG notices/on")
        neighbour = world.client("top")
        if wanted:
            guess = neighbour.subscribe(b"tenants/bob/guess")
        for _ in range(3):
            tenant.publish(b"tenants/bob/guess")
        packets = tenant.pending()
        if not wanted:
            guess = neighbour.subscribe(b"tenants/bob/guess")
        guess.unsubscribe()
        neighbour.sync()
        for _ in range(3):
            tenant.publish(b"tenants/bob/guess")
        told.append([*packets, *tenant.pending()])
        tenant.close()
        neighbour.close()
    assert told[0] == told[1] == []
    # Of its own keys it is told.
    tenant = link()
    tenant.publish(b"tenants/ann/x")
    assert tenant.pending() == [b"CMSG interest/prune\0tenants/ann/x"]
    neighbour = world.client("top")
    neighbour.subscribe(b"tenants/*/x")
    assert tenant.receive() == b"CMSG interest/graft\0tenants/ann/x"


def test_secrets_pass_whatever_the_rules_say(world: World) -> None:
    world.hub("top", relays=[TENANT], authorize=policy(Rule(users=frozenset({TENANT}))))
    world.hub("left")
    world.uids["top"] = TENANT
    world.relay("left", "top")
    world.uids.clear()
    above, below = world.client("top"), world.client("left")
    for client in (above, below):
        client.subscribe(client.hub.whoami() + b"/box")
    settle(above, below)
    above.publish(below.hub.whoami() + b"/box", b"down")
    below.publish(above.hub.whoami() + b"/box", b"up")
    assert (below.receive(timeout=PATIENCE).payload, above.receive(timeout=PATIENCE).payload) == (b"down", b"up")


def test_a_slave_works_below_a_hub_with_rules(world: World) -> None:
    world.hub("top", relays=[TENANT], authorize=policy())
    world.hub("left")
    world.uids["top"] = TENANT
    relay = world.relay("left", "top")
    world.uids.clear()
    above, below = world.client("top"), world.client("left")
    above.subscribe(b"")
    everything = below.subscribe(b"")
    settle(above, below)
    above.publish(b"tenants/bob/x")
    above.publish(b"host/load", b"1")
    assert below.receive(timeout=PATIENCE).key == b"host/load"
    below.publish(b"host/reboot")
    below.publish(b"tenants/ann/x")
    assert [above.receive(timeout=PATIENCE).key for _ in range(3)] == [b"tenants/bob/x", b"host/load", b"tenants/ann/x"]
    assert relay.statistics().epoch == 1
    everything.unsubscribe()
    eventually(lambda: held(world) == [])


def test_a_link_keeps_what_its_user_may_read_when_rules_change(world: World, link: Callable[[], Peer]) -> None:
    hub, tenant, client = world.hubs["top"], link(), world.client("top")
    tenant.subscribe(b"", b"weather/", b"host/load")
    for subscribe, keys in (
        ((b"weather/",), {b"weather/x"}),
        ((b"*/x", b"host/"), {b"weather/x", b"host/x", b"host/load"}),
        ((), set()),
        ((b"",), {b"weather/x", b"host/x", b"host/load", b"other"}),
    ):
        hub.reconfigure(
            relays=[TENANT], authorize=policy(RULES[0], Rule(users=frozenset({TENANT}), subscribe=subscribe))
        )
        assert hub.reviewed(PATIENCE)
        for key in (b"weather/x", b"host/x", b"host/load", b"other"):
            client.publish(key)
        client.sync()
        assert {packet[4:-1] for packet in tenant.pending() if packet.startswith(b"MSG ")} == keys


def test_keys_that_a_link_may_not_publish_any_more_tell_nothing(world: World, link: Callable[[], Peer]) -> None:
    hub, tenant, neighbour = world.hubs["top"], link(), world.client("top")
    tenant.publish(b"tenants/ann/x")
    assert tenant.pending() == [b"CMSG interest/prune\0tenants/ann/x"]
    hub.reconfigure(relays=[TENANT], authorize=policy(RULES[0], Rule(users=frozenset({TENANT}), publish=(b"a",))))
    assert hub.reviewed(PATIENCE)
    assert tenant.receive() == b"CMSG interest/graft\0tenants/ann/x", "whether anybody wants it or not"
    neighbour.subscribe(b"tenants/ann/x")
    tenant.publish(b"tenants/ann/x")
    assert tenant.pending() == []


# -- against a model ------------------------------------------------------------------------------------

segment = st.sampled_from([b"a", b"b", b"*", b"a*", b""])
pattern = st.lists(segment, min_size=1, max_size=3).map(b"/".join)
bounds = st.none() | st.lists(pattern, max_size=3)
KEYS = [b"a", b"b", b"a/b", b"a/a", b"b/a", b"a/b/b", b"b/b/a", b"ab", b"ab/b", b"*", b"a/", b"c/c"]


class Connection:
    """What :class:`Narrowed` has to know of a link."""

    closed = False

    def __init__(self, hub: Hub) -> None:
        self.credentials = Credentials(gid=1, uid=TENANT, pid=1)
        self.account = hub.context.quotas.account(TENANT)


class NarrowingMachine(RuleBasedStateMachine):
    """Patterns come and go, and rules change: what is held matches all that may be read of it, and nothing else."""

    @initialize(bounds=bounds)
    def begin(self, bounds: list[bytes] | None) -> None:
        self.hub = Hub("/nowhere")  # which is never started
        self.connection = Connection(self.hub)
        self.asked: Counter[bytes] = Counter()
        self.narrowed = Narrowed(self.hub.context, self.connection)  # type: ignore[arg-type]
        self._rule(bounds)

    def _rule(self, bounds: list[bytes] | None) -> None:
        self.bounds = bounds
        rules = None if bounds is None else policy(Rule(everybody=True, subscribe=tuple(bounds)))
        self.hub.context.authorization.function = rules

    @rule(pattern=pattern)
    def subscribe(self, pattern: bytes) -> None:
        self.asked[pattern] += 1
        try:
            self.narrowed.subscribe(pattern)
        except PacketError as error:
            assert error.reason == "subscription refused"  # noqa: PT017

    @rule(pattern=pattern)
    def unsubscribe(self, pattern: bytes) -> None:
        assert self.narrowed.unsubscribe(pattern) is (self.asked[pattern] > 0)
        if self.asked[pattern]:
            self.asked[pattern] -= 1

    @rule(bounds=bounds)
    def change(self, bounds: list[bytes] | None) -> None:
        self._rule(bounds)
        for _ in self.narrowed.review():
            pass

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "hub"):
            return
        router = self.hub.context.router
        patterns = router.plain_patterns_of(self.connection)  # type: ignore[arg-type]
        for key in KEYS:
            may_read = self.bounds is None or any(matches(bound, key) for bound in self.bounds)
            wanted = any(matches(one, key) for one in +self.asked)
            got = any(matches(one, key) for one in patterns)
            assert got or not (wanted and may_read)
            assert may_read or not got
        account = self.hub.context.quotas.account(TENANT)
        if not +self.asked:
            assert patterns == []
            assert (account.patterns, account.pattern_bytes, account.shapes.steps) == (0, 0, 0)


TestNarrowing = NarrowingMachine.TestCase
