"""What a slave can do that speaks the protocol and means no good."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import gevent
import msgspec
import pytest
from support import PATIENCE, WHOAMI, FakeHub, Peer, eventually
from worlds import FAST, World, received, settle

from sbuslib.secrets import Credentials
from sbuslib.tree import pruning, tree
from sbuslib.wire.control import Notice


@pytest.fixture
def slave(world: World) -> Callable[[], Peer]:
    """A raw link of a user that is configured as a relay, past its greeting."""
    world.hub("top", relays=[12_345], limits=msgspec.structs.replace(FAST, sync_wait=0.05))

    def join() -> Peer:
        world.uids["top"] = 12_345
        peer = world.peer("top")
        peer.send(b"CMSG interest/on")
        assert peer.receive() == b"CMSG interest/on\0prune"
        world.uids.clear()
        return peer

    return join


def own(peer: Peer) -> bytes:
    peer.send(WHOAMI)
    while not (packet := peer.receive()).startswith(WHOAMI):
        pass
    return packet.split(b"\0")[1]


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
def test_a_forged_sender_ends_the_link(world: World, slave: Callable[[], Peer], sender: bytes) -> None:
    victim = world.client("top")
    victim.senders()
    victim.subscribe(b"k")
    link = slave()
    key = own(link)
    forged = sender % key if b"%s" in sender else sender
    link.send(b"CMSG from\0%b\0MSG k\0forged" % forged)
    assert not [packet for packet in iter(link.receive, b"") if b"forged" in packet]
    assert received(victim) == []


def test_a_sender_named_by_a_slave_has_the_key_of_the_slave_in_front(world: World, slave: Callable[[], Peer]) -> None:
    client = world.client("top")
    client.senders()
    client.subscribe(b"k")
    link = slave()
    key = own(link)
    link.send(b"CMSG from\0%b/!/cred/1/2/3\0MSG k\0a" % key, b"MSG k\0b")
    assert client.receive(PATIENCE).sender == key + b"/!/cred/1/2/3"
    assert client.receive(PATIENCE).sender == key


def test_a_wrong_packet_of_a_link_is_dropped_and_the_link_stays(world: World, slave: Callable[[], Peer]) -> None:
    link = slave()
    key = own(link)
    client = world.client("top")
    client.subscribe(client.whoami() + b"/box", b"k")
    for packet in (
        b"SUB " + client.whoami() + b"/box",  # others' secrets
        b"SUB " + client.whoami() + b"/",
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
    assert own(link) == key
    client.publish(client.whoami() + b"/box", b"mine")
    assert client.receive(PATIENCE).payload == b"mine"
    link.send(b"MSG k\0fine")
    assert client.receive(PATIENCE).payload == b"fine"
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
    watcher.senders()
    watcher.subscribe(b"no/", b"yes/")
    settle(watcher)
    publisher.subscribe(b"no/1", b"yes/1")
    settle(publisher)
    for key in (b"no/1", b"yes/1", b"no/1", b"yes/2"):
        publisher.publish(key)
    watcher.senders(False)  # from here on without wrappers
    settle(watcher)
    for key in (b"no/1", b"yes/3"):
        publisher.publish(key)
    assert [watcher.receive(PATIENCE).key for _ in range(3)] == [b"yes/1", b"yes/2", b"yes/3"]
    watcher.publish(b"no/1")
    watcher.publish(b"yes/1")
    settle(watcher)
    assert [message.key for message in received(publisher)] == [b"no/1", b"yes/1", b"no/1", b"no/1", b"yes/1"]
    dropped = world.hubs["top"].statistics().dropped
    assert dropped == {"publishing refused": 3, "subscription refused": 1}
    assert relay.statistics().epoch == 1
    assert ("publish", b"yes/1") in asked


def test_a_reserved_key_of_a_link_is_dropped_where_authorize_is_asked(world: World) -> None:
    world.hub("top", relays=[12_345], authorize=lambda *_: True)
    world.uids["top"] = 12_345
    link = world.peer("top")
    link.send(b"CMSG interest/on")
    link.receive()
    world.uids.clear()
    key = own(link)
    link.publish(b"a/!/b")
    link.send(b"CMSG from\0%b/!/cred/1/2/3\0MSG a/!/b\0" % key, b"CMSG from\0%b/!/cred/1/2/3\0MSG !/cred/x\0" % key)
    assert own(link) == key
    assert sum(world.hubs["top"].statistics().dropped.values()) == 3


def test_a_flood_of_patterns_widens_only_the_link_that_sends_it(world: World) -> None:
    world.hub("top", relays=[12_345], limits=msgspec.structs.replace(FAST, user_patterns=100))
    world.uids["top"] = 12_345
    flooder = world.peer("top")
    flooder.send(b"CMSG interest/on")
    flooder.receive()
    world.uids.clear()
    for n in range(1_000):
        flooder.send(b"SUB pattern/%d" % n)
        if n % 100 == 0:
            flooder.barrier()
    client = world.client("top")
    client.subscribe(*(b"mine/%d" % n for n in range(50)))
    client.publish(b"mine/7", b"x")
    assert client.receive(PATIENCE).payload == b"x"
    assert world.hubs["top"].context.quotas.account(12_345).patterns <= 101


def test_the_table_of_pruned_keys_is_bounded(world: World, slave: Callable[[], Peer]) -> None:
    link = slave()
    for n in range(6_000):
        link.publish(b"key/%d" % n)
        if n % 64 == 0:
            link.pending()
    (only,) = world.hubs["top"].tree.links.values()
    assert only.pruned is not None
    assert len(only.pruned) <= FAST.pruned_keys
    client = world.client("top")
    client.subscribe(b"key/*")
    table = only.pruned
    eventually(lambda: (link.pending(), len(table))[1] == 0)


def test_notices_of_a_slave_about_losses_are_merged(world: World) -> None:
    world.hub("top")
    listener, link = world.peer("top"), world.peer("top")
    listener.send(b"CMSG notices/on")
    listener.barrier()
    link.send(b"CMSG interest/on")
    for _ in range(5_000):
        link.send(b"CMSG notice/lost\0upstream 1 1.0")
    own(link)
    told = listener.pending()
    assert told == [b"CMSG notice/lost\0upstream 1 1.000000"]


def test_notices_of_a_slave_that_is_not_trusted_reach_nobody(
    world: World, slave: Callable[[], Peer], caplog: pytest.LogCaptureFixture
) -> None:
    link, other = slave(), slave()
    heard: list[Notice] = []
    client = world.client("top", on_notice=heard.append)
    for n in range(100):
        link.send(b"CMSG notice/lost\0upstream 1 %d.0" % n, b"CMSG notice/lost\0uncertain 999999999999999 1.0")
    own(link)
    client.sync()
    assert not heard
    assert not [packet for packet in other.pending() if b"notice" in packet]
    reason = "notice of losses by a link that is not trusted"
    assert world.hubs["top"].statistics().dropped == {reason: 200}
    assert sum(reason in record.getMessage() for record in caplog.records) == 1


def test_a_user_that_is_not_trusted_has_a_handful_of_links(
    world: World, slave: Callable[[], Peer], caplog: pytest.LogCaptureFixture
) -> None:
    links = [slave() for _ in range(tree.LINKS_OF_A_USER)]
    hub = world.hubs["top"]
    world.hub("left")
    world.uids["top"] = 12_345
    for _ in range(100):
        refused = world.peer("top")
        refused.send(b"CMSG notices/on", b"CMSG interest/on")
        assert refused.receive() == b"CMSG notice/kicked\0too many links"
        assert refused.is_disconnected()
    relay = world.relay("left", "top", wait=False)
    eventually(lambda: "too many links" in relay._last_reason)
    assert len(hub.tree.links) == tree.LINKS_OF_A_USER
    assert hub.statistics().breaches["too many links"] >= 101
    assert sum("of user 12345: too many links" in record.getMessage() for record in caplog.records) == 1
    links[0].send(b"CMSG interest/on")  # said twice, it means nothing
    own(links[0])
    links.pop().close()
    relay.wait(PATIENCE)
    world.uids["top"] = os.getuid()
    trusted = [world.peer("top") for _ in range(2 * tree.LINKS_OF_A_USER)]
    for link in trusted:
        link.send(b"CMSG interest/on")
        assert link.receive() == b"CMSG interest/on\0announce"
    for link in links:
        link.close()
    relay.stop()
    eventually(lambda: +hub.tree._links_of == {os.getuid(): len(trusted)})


def test_a_link_is_never_held_back(world: World) -> None:
    world.chain("top", "left")
    slow = world.client("top")
    slow.flood_control(soft="block")
    slow.subscribe(b"k")
    other = world.client("top")
    other.subscribe(b"other")
    settle(slow, other)
    publisher = world.client("left")
    publisher.publish_many([(b"k", bytes(10_000)) for _ in range(300)])
    publisher.publish(b"other", b"on time")
    assert other.receive(PATIENCE).payload == b"on time"


def test_a_hostile_slave_reads_nothing_and_stops_no_sibling(world: World, slave: Callable[[], Peer]) -> None:
    world.hub("left")
    world.uids["top"] = 12_345
    relay = world.relay("left", "top")
    world.uids.clear()
    alice, operator = world.client("left"), world.client("top")
    box = alice.whoami() + b"/box"
    alice.senders()
    alice.subscribe(box, b"private/alice")
    operator.subscribe(b"alice/", operator.whoami() + b"/box")
    settle(alice, operator)
    hostile = slave()
    key = own(hostile)
    siblings = world.hubs["left"].context.router.namespace.prefix

    for secret in (box, siblings, siblings[:-1], alice.whoami(), operator.whoami() + b"/box", key + b"0/x"):
        hostile.send(b"SUB " + secret)
    hostile.send(b"SUB !/", b"SUB !/cred/", b"SUB !/cred////", b"UNSUB " + siblings, b"UNSUB private/alice")
    hostile.publish(key + b"/!/cred/1/2/3/box", b"the wrong way")
    hostile.publish(box, b"anybody may")
    for n in range(300):
        hostile.send(
            b"CMSG hub/sync\0%d\0tree" % n, b"CMSG hub/sync\0%d\0passed" % n, b"CMSG interest/sync\0%x\0tree" % n
        )
    hostile.send(
        b"CMSG interest/on", b"CMSG interest/complete", b"CMSG interest/add\0a", b"CMSG interest/prune\0alice/1"
    )
    hostile.send(
        b"CMSG senders/on", b"CMSG notices/on", b"CMSG hub/statistics", b"CMSG notice/credentials\0!/cred/0/0/1"
    )

    for n in range(10):
        alice.publish(b"alice/1", b"%d" % n)
        operator.publish(box, b"for alice")
        operator.publish(b"private/alice", b"%d" % n)
        alice.publish(operator.whoami() + b"/box", b"for the operator")
    got = [alice.receive(PATIENCE) for _ in range(21)]
    assert [message.payload for message in got].count(b"for alice") == 10
    assert {message.sender for message in got if message.payload == b"anybody may"} == {key}
    assert {message.sender for message in got if message.payload != b"anybody may"} == {operator.whoami()}
    assert [operator.receive(PATIENCE).payload for _ in range(20)] == [
        payload for n in range(10) for payload in (b"%d" % n, b"for the operator")
    ]
    learnt = hostile.pending()
    assert not [packet for packet in learnt if b"alice" in packet or b"for " in packet or siblings in packet]
    assert b"CMSG hub/statistics\0" in learnt, "which is a refusal"
    assert relay.statistics().epoch == 1
    assert relay.state == "joined"


def test_a_flood_of_interest_from_a_trusted_link_is_bounded_for_its_siblings(world: World) -> None:
    world.hub("top", limits=msgspec.structs.replace(FAST, link_patterns=100))
    world.hub("left")
    relay = world.relay("left", "top")
    client, above = world.client("left"), world.client("top")
    client.subscribe(b"mine")
    above.subscribe(b"wanted")
    settle(client)
    flooder = world.peer("top")
    flooder.send(b"CMSG interest/on")
    assert flooder.receive() == b"CMSG interest/on\0announce"
    for n in range(3_000):
        flooder.send(b"SUB %d/*/x" % n if n % 2 else b"SUB */%d" % n)
    flooder.barrier()
    client.publish(b"wanted", b"1")
    above.publish(b"mine", b"2")
    assert (above.receive(PATIENCE).payload, client.receive(PATIENCE).payload) == (b"1", b"2")
    eventually(lambda: 0 < relay.statistics().interest_down <= 100)
    flooder.close()
    eventually(lambda: relay.statistics().interest_down == 1)
    tap = world.hubs["top"].tap()
    client.publish(b"1/2/x")
    client.publish(b"wanted")
    assert tap.get(PATIENCE).key == b"wanted", "nobody wants the other any more"
    assert relay.statistics().epoch == 1


def test_senders_on_and_off_many_times_floods_no_link(world: World, slave: Callable[[], Peer]) -> None:
    link = slave()  # which does not read
    fickle = world.peer("top")
    for _ in range(2_000):
        fickle.send(b"CMSG senders/on", b"CMSG senders/off")
    fickle.send(b"CMSG senders/on")
    fickle.barrier()
    (only,) = world.hubs["top"].tree.links.values()
    eventually(lambda: only._told_senders)
    assert link.pending()[-1] == b"CMSG senders/on\0"


def test_too_many_new_patterns_at_a_time_graft_all_keys(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "SEARCHES", 4)
    monkeypatch.setattr(tree, "STEPS_A_TURN", 1)
    world.hub("top", relays=[12_345])
    world.uids["top"] = 12_345
    link = world.peer("top")
    link.send(b"CMSG interest/on")
    assert link.receive() == b"CMSG interest/on\0prune"
    world.uids.clear()
    for n in range(50):
        link.publish(b"key/%d" % n)
    assert sum(packet.startswith(b"CMSG interest/prune") for packet in link.pending()) == 50
    (only,) = world.hubs["top"].tree.links.values()
    client = world.client("top")
    client.subscribe(*(b"other/*/%d" % n for n in range(8)))
    assert sum(map(len, world.hubs["top"].tree.telling.pruning._searches.values())) <= 4
    eventually(lambda: only.pruned is not None and not len(only.pruned))
    assert sum(packet.startswith(b"CMSG interest/graft") for packet in link.pending()) == 50


def test_everything_goes_up_to_a_master_that_announces_too_many_patterns(world: World) -> None:
    with FakeHub(world.address("c")) as master:
        world.hub("left", limits=msgspec.structs.replace(FAST, user_patterns=50, pruned_keys=50))
        relay = world.relay("left", "c", wait=False)
        link = master.accept()
        link.send(b"CMSG hub/features\0hub/sync interest/on id=1 path=1", WHOAMI + b"\0!/cred/1/2/3")
        while not (packet := link.receive()).startswith(b"CMSG hub/sync"):
            pass
        link.send(b"CMSG hub/features\0hub/sync interest/on id=1 path=1", packet, b"CMSG interest/on\0announce")
        for n in range(1_000):
            link.send(b"CMSG interest/add\0%d" % n)
            gevent.sleep(0)
        link.send(b"CMSG interest/complete")
        relay.wait(PATIENCE)
        eventually(lambda: relay.up is not None and relay.up.open)
        assert relay.statistics().interest_down == 50
        client = world.client("left")
        client.subscribe(client.whoami() + b"/box")
        client.publish(b"900", b"1")
        while not (packet := link.receive()).startswith(b"MSG"):
            pass
        assert packet == b"MSG 900\x001"
        # Nor does it reach anybody who did not ask.
        link.send(b"MSG !/cred/1/2/4/x\0stray", b"MSG !/cred/1/2/3/!/cred/9/9/9/x\0stray", b"MSG not/subscribed\0stray")
        link.send(b"MSG %b/box\0mine" % client.whoami())
        assert client.receive(PATIENCE).payload == b"mine"
        assert received(client) == []


def test_a_link_that_asks_and_does_not_read_is_kicked_once(world: World, slave: Callable[[], Peer]) -> None:
    link, other = slave(), slave()
    client = world.client("top")
    waiting = gevent.spawn(client.sync, "tree")  # for the link, which does not answer
    with contextlib.suppress(OSError):
        while True:
            link.send(b"CMSG hub/sync\0x\0tree", b"CMSG hub/sync\0x\0passed", WHOAMI)
    assert waiting.get(timeout=PATIENCE) in ("tree", "partial")
    hub = world.hubs["top"]
    eventually(lambda: len(hub.tree.links) == 1)
    assert hub.statistics().breaches == {"too many unread answers": 1}
    assert hub.context.quotas.connections.held(12_345) == hub.context.quotas.account(12_345).connections == 1
    assert own(other)
