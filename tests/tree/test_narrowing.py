"""What a link of a tenant gets of what it asks for, below a hub with rules."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import pytest
from support import PATIENCE, Peer, eventually
from worlds import FAST, World, settle

from sbuslib.policy import Policy, Rule, User

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
    world.hub("top", relays=[TENANT], authorize=policy(), limits=msgspec.structs.replace(FAST, user_patterns=20))

    def join() -> Peer:
        peer = world.link("top", TENANT)
        assert peer.receive() == b"CMSG interest/complete\0"
        return peer

    return join


def held(world: World) -> list[bytes]:
    """The patterns that the only link of the hub holds."""
    hub = world.hubs["top"]
    (connection,) = hub.tree.links
    return sorted(hub.context.router.plain_patterns_of(connection))


def test_what_several_patterns_have_in_common_stays_until_each_was_taken_back(
    world: World, link: Callable[[], Peer]
) -> None:
    tenant, quotas = link(), world.hubs["top"].context.quotas
    for packet, patterns in (
        (b"SUB ", [b"host/", b"tenants/ann/"]),
        (b"SUB */load", [b"host/", b"tenants/ann/"]),
        (b"SUB host/load", [b"host/", b"host/load", b"tenants/ann/"]),
        (b"SUB tenants/bob/", [b"host/", b"host/load", b"tenants/ann/"]),
        (b"UNSUB ", [b"host/", b"host/load"]),
        (b"UNSUB never", [b"host/", b"host/load"]),
        (b"UNSUB */load", [b"host/load"]),
        (b"UNSUB host/load", []),
    ):
        tenant.send(packet)
        tenant.barrier()
        assert held(world) == patterns
    assert quotas.account(TENANT).patterns == 0
    assert world.hubs["top"].statistics().dropped == {"subscription refused": 1}


def test_a_link_with_too_many_patterns_gets_all_that_it_may_read_until_it_ends(
    world: World, link: Callable[[], Peer]
) -> None:
    tenant, quotas = link(), world.hubs["top"].context.quotas
    patterns = [b"host/%d" % n for n in range(200)]
    tenant.subscribe(*patterns, b"")
    assert b"CMSG interest/widen\0" in tenant.pending()
    tenant.send(*(b"UNSUB " + pattern for pattern in [*patterns, b"host/", b"*/x"]))
    tenant.barrier()
    assert held(world) == [b"host/", b"tenants/ann/"]
    tenant.close()
    eventually(lambda: not quotas.account(TENANT).patterns)


def test_secrets_pass_whatever_the_rules_say(world: World) -> None:
    world.hub("top", relays=[TENANT], authorize=policy(Rule(users=frozenset({TENANT}))))
    world.hub("left")
    world.uids["top"] = TENANT
    world.relay("left", "top")
    world.uids.clear()
    parent, below = world.client("top"), world.client("left")
    for client in (parent, below):
        client.subscribe(client.hub.whoami() + b"/box")
    settle(parent, below)
    parent.publish(below.hub.whoami() + b"/box", b"down")
    below.publish(parent.hub.whoami() + b"/box", b"up")
    assert (below.receive(timeout=PATIENCE).payload, parent.receive(timeout=PATIENCE).payload) == (b"down", b"up")


def test_a_slave_works_below_a_hub_with_rules_and_when_these_change(world: World) -> None:
    hub = world.hub("top", relays=[TENANT], authorize=policy())
    world.hub("left")
    parent, below = world.client("top"), world.client("left")
    world.uids["top"] = TENANT
    relay = world.relay("left", "top")
    parent.subscribe(b"")
    everything = below.subscribe(b"", b"weather/", b"host/load")
    for epoch, subscribe, keys in (
        (1, (b"tenants/%u/", b"host/"), [b"host/load", b"host/x"]),
        (2, (b"weather/",), [b"weather/x"]),
        (3, (b"*/x", b"host/"), [b"host/load", b"host/x", b"weather/x"]),
        (4, (), []),
        (5, (b"",), [b"host/load", b"host/x", b"other", b"weather/x"]),
    ):
        rule = Rule(users=frozenset({TENANT}), publish=(b"tenants/%u/",), subscribe=subscribe)
        hub.reconfigure(relays=[TENANT], authorize=policy(RULES[0], rule))
        assert hub.reviewed(PATIENCE)
        eventually(lambda: (relay.epoch, relay.state) == (epoch, "joined"))  # noqa: B023
        settle(parent, below)
        for key in (b"weather/x", b"host/x", b"host/load", b"other"):
            parent.publish(key)
            assert parent.receive(timeout=PATIENCE).key == key
        settle(below)
        assert sorted(below.receive(timeout=PATIENCE).key for _ in keys) == keys
    below.publish(b"host/reboot")
    below.publish(b"tenants/ann/x")
    assert parent.receive(timeout=PATIENCE).key == b"tenants/ann/x"
    everything.unsubscribe()
    eventually(lambda: held(world) == [])
