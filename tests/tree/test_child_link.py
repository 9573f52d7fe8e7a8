"""Links to child hubs: what they may send, what they are sent, and how a tenant's subscriptions are narrowed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import gevent
import msgspec
import pytest
from accounting import connection_of
from support import PATIENCE, WHOAMI, Peer, choose, eventually
from worlds import FAST, World, key_of_link, received, settle

from sbuslib.keys.policy import Policy, Rule, User
from sbuslib.secrets import Credentials


@pytest.mark.parametrize(
    "sender",
    [
        b"!/cred/0/0/1",
        b"",
        b"%s/x",
        b"%s",
        b"%s/!/cred/1/2",
        b"%s0/!/cred/1/2/3",
        b"%s/!/cred/1/2/*",
        b"/%s/!/cred/1/2/3",
    ],
)
def test_a_forged_sender_ends_the_link(world: World, make_link: Callable[[], Peer], sender: bytes) -> None:
    victim = world.client("top")
    choose(victim, b"senders/on")
    victim.subscribe(b"k")
    link = make_link()
    key = key_of_link(link)
    forged = sender % key if b"%s" in sender else sender
    link.send(b"CMSG from\0%b\0MSG k\0forged" % forged)
    assert not [packet for packet in iter(link.receive, b"") if b"forged" in packet]
    assert received(victim) == []


def test_a_wrong_packet_of_a_link_is_dropped_and_does_not_end_the_link(
    world: World, make_link: Callable[[], Peer]
) -> None:
    link = make_link()
    key = key_of_link(link)
    client = world.client("top")
    client.subscribe(client.hub.whoami() + b"/box", b"k")
    for packet in (
        b"SUB " + client.hub.whoami() + b"/box",  # others' secrets
        b"SUB " + client.hub.whoami() + b"/",
        b"SUB !/cred///*/",
        b"SUB a/!/b",
        b"MSG a/!/b\0",
        b"CMSG from\0no packet",
        b"CMSG from\0%b/!/cred/1/2/3\0SUB x" % key,
        b"nonsense",
        b"CMSG notice/lost\0nonsense",
        b"CMSG notice/lost\0overflow 5 1.0",
        b"CMSG interest/sync\0what\0tree",
        b"SUB " + b"x" * 5_000,
    ):
        link.send(packet)
    assert key_of_link(link) == key
    client.publish(client.hub.whoami() + b"/box", b"mine")
    assert client.receive(timeout=PATIENCE).payload == b"mine"
    link.send(b"MSG k\0fine")
    assert client.receive(timeout=PATIENCE).payload == b"fine"
    assert not [packet for packet in link.pending() if b"mine" in packet]
    assert sum(world.hubs["top"].statistics().dropped.values()) >= 8


def test_a_packet_of_a_link_that_authorize_refuses_is_dropped(world: World) -> None:
    asked: list[tuple[str, bytes]] = []

    def authorize(credentials: Credentials, verb: str, key: bytes) -> bool:
        asked.append((verb, key))
        return credentials.uid != 12_345 or b"no" not in key.split(b"/")

    world.hub("top", relays=[12_345], authorize=authorize)
    world.uids["top"] = 12_345
    world.hub("left")
    relay = world.relay("left", "top")
    world.uids.clear()
    watcher, publisher = world.client("top"), world.client("left")
    choose(watcher, b"senders/on")
    watcher.subscribe(b"no/", b"yes/")
    settle(watcher)
    publisher.subscribe(b"no/1", b"yes/1")
    settle(publisher)
    for key in (b"no/1", b"yes/1", b"no/1", b"yes/2"):
        publisher.publish(key)
    choose(watcher, b"senders/off")  # from here on without wrappers
    settle(watcher)
    for key in (b"no/1", b"yes/3"):
        publisher.publish(key)
    assert [watcher.receive(timeout=PATIENCE).key for _ in range(3)] == [b"yes/1", b"yes/2", b"yes/3"]
    watcher.publish(b"no/1")
    watcher.publish(b"yes/1")
    settle(watcher)
    assert [message.key for message in received(publisher)] == [b"no/1", b"yes/1", b"no/1", b"no/1", b"yes/1"]
    dropped = world.hubs["top"].statistics().dropped
    assert dropped == {"publishing refused": 3, "subscription refused": 1}
    assert [link.dropped for link in world.hubs["top"].statistics().per_link] == [dropped]
    assert relay.statistics().epoch == 1
    assert ("publish", b"yes/1") in asked


def test_a_link_tells_many_losses_and_clients_get_one_notice(world: World) -> None:
    world.hub("top", limits=msgspec.structs.replace(FAST, link_notices=600.0))
    listener, link = world.peer("top"), world.link("top")
    listener.send(b"CMSG notices/on")
    listener.barrier()
    for n in range(5_000):
        link.send(b"CMSG interest/lost\0low upstream %d %d %d 1.0" % (n, n, n + 1))
    key_of_link(link)
    world.hubs["top"].tree.loss_reports.pass_on()
    notices = [int(packet.split()[2]) for packet in listener.pending()]
    assert len(notices) <= 2, "at once, and in a while"
    assert sum(notices) == 5_000


def test_a_link_that_asks_and_does_not_read_is_disconnected_once(world: World, make_link: Callable[[], Peer]) -> None:
    link, other = make_link(), make_link()
    client = world.client("top")
    waiting = gevent.spawn(client.sync, "tree")  # for the link, which does not answer
    with contextlib.suppress(OSError):
        while True:
            link.send(b"CMSG hub/sync\0x\0tree", b"CMSG hub/sync\0x\0passed", WHOAMI)
    assert waiting.get(timeout=PATIENCE) in ("tree", "partial")
    hub = world.hubs["top"]
    eventually(lambda: len(hub.tree.links) == 1)
    assert hub.statistics().violations == {"too many unread answers": 1}
    assert hub.context.quotas.connections.held(12_345) == hub.context.quotas.account(12_345).connections == 1
    assert key_of_link(other)


def test_no_pattern_is_told_to_a_link_of_another_user(world: World) -> None:
    world.hub("top", relays=[12_345])
    world.client("top").subscribe(b"private/room")
    spy = world.link("top", 12_345)
    world.client("top").subscribe(b"private/other")
    spy.publish(b"elsewhere")
    spy.publish(b"private/room")
    assert spy.pending() == [b"CMSG interest/complete\0", b"CMSG interest/prune\0elsewhere"]


def test_a_link_with_too_many_patterns_still_receives_all_that_it_wants(world: World) -> None:
    world.hub("top", limits=msgspec.structs.replace(FAST, user_patterns=20))
    world.hub("left")
    relay = world.relay("left", "top")
    client = world.client("left")
    client.subscribe(*(b"%d" % n for n in range(50)))
    settle(client)
    publisher = world.client("top")
    publisher.publish_many([(b"%d" % n, b"") for n in range(50)])
    assert [client.receive(timeout=PATIENCE).key for _ in range(50)] == [b"%d" % n for n in range(50)]
    assert relay.statistics().epoch == 1
    eventually(lambda: relay.statistics().patterns == 1)


def test_a_link_remembers_the_receivers_of_so_many_keys(world: World) -> None:
    hub = world.hub("top", limits=msgspec.structs.replace(FAST, cached_keys=5))
    world.peer("top").subscribe(b"")
    link = world.link("top")
    connection, most = connection_of(hub, link), list[int]()

    class Routes(dict[bytes, Any]):
        def __setitem__(self, header: bytes, receivers: Any) -> None:
            super().__setitem__(header, receivers)
            most.append(len(self))

    connection.routes = Routes()
    link.send(*(b"MSG %d\0" % number for number in range(12)))  # in one turn: between turns the router's bound does it
    key_of_link(link)
    assert (max(most), len(most)) == (5, 12)


def test_a_relay_may_be_trusted_by_its_group(world: World) -> None:
    world.hub("top", relays=[f"@{os.getgid()}"])
    world.hub("left")
    world.uids["top"] = 12_345
    assert world.relay("left", "top").statistics().mode == "prune"


TENANT = 12_345
RULES = [
    Rule(users=frozenset({os.getuid()}), publish=(b"",), subscribe=(b"",)),
    Rule(users=frozenset({TENANT}), publish=(b"tenants/%u/",), subscribe=(b"tenants/%u/", b"host/")),
]


def policy(*rules: Rule) -> Policy:
    return Policy(rules or RULES, lambda uid: User(b"ann" if uid == TENANT else b"", frozenset()), b"/")


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
    assert held(world) == [b"!/presumed/host/", b"!/presumed/tenants/ann/"]
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
