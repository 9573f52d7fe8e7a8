"""Trees of hubs: credentials, senders, interest, loops, outages and questions that go round."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import gevent
import msgspec
import pytest
from support import PATIENCE, WHOAMI, FakeHub, Peer, eventually, own_key
from worlds import FAST, World

from sbuslib import Client, Hub, Relay
from sbuslib.errors import DisconnectedError, StateError, UsageError
from sbuslib.packets import Message


def key_of(client: Client) -> bytes:
    return client.whoami()


def settle(*clients: Client) -> None:
    for client in clients:
        assert client.sync("tree") == "tree"


def received(client: Client) -> list[Message]:
    """What has come until now."""
    client.sync()
    found = []
    while client._session.inbox:
        found.append(client.receive(0))
    return found


# -- prefixes and secrets ---------------------------------------------------------------------------


def test_credentials_of_each_floor(world: World) -> None:
    world.chain("top", "middle", "bottom")
    keys = [key_of(world.client(name)) for name in ("top", "middle", "bottom")]
    assert [key.count(b"!/cred/") for key in keys] == [1, 2, 3]
    middle = world.hubs["middle"].router.namespace.prefix
    assert keys[1].startswith(middle)
    assert keys[2].startswith(middle)


def test_secrets_cross_the_tree_in_every_direction(world: World) -> None:
    world.chain("top", "left")
    world.hub("right")
    world.relay("right", "top")
    world.hub("below")
    world.relay("below", "left")
    clients = {name: world.client(name) for name in ("top", "left", "right", "below")}
    keys = {name: key_of(client) + b"/box" for name, client in clients.items()}
    for name, client in clients.items():
        client.subscribe(keys[name])
    for sender, to in itertools.permutations(clients, 2):
        clients[sender].publish(keys[to], b"from " + sender.encode())
        assert clients[to].receive(PATIENCE).payload == b"from " + sender.encode()
    for client in clients.values():
        assert received(client) == []


def test_nobody_reads_what_is_not_theirs(world: World) -> None:
    world.chain("top", "left")
    world.hub("right")
    world.relay("right", "top")
    key = key_of(world.client("left")) + b"/box"
    for name in ("top", "left", "right"):
        thief = world.peer(name)
        thief.send(b"SUB " + key)
        assert thief.is_disconnected()
    everything = world.client("right")
    everything.subscribe(b"")
    world.client("top").publish(key, b"secret")
    settle(everything)
    assert received(everything) == []


def test_a_secret_under_the_own_prefix_never_goes_up(world: World) -> None:
    world.chain("top", "left")
    tap = world.hubs["top"].tap(secrets=True)
    client, other = world.client("left"), world.client("left")
    client.subscribe(key_of(client) + b"/box")
    other.publish(key_of(client) + b"/box", b"1")
    assert client.receive(PATIENCE).payload == b"1"
    settle(other)
    assert len(tap) == 0


def test_whoami_waits_for_the_first_prefix(world: World) -> None:
    world.hub("left")
    world.relay("left", "top", wait=False)
    peer = world.peer("left")
    peer.send(b"CMSG hub/features", WHOAMI)
    assert peer.receive().startswith(b"CMSG hub/features\0")
    world.hub("top")
    assert peer.receive().count(b"!/cred/") == 3, "the question's own, and two credentials"


def test_whoami_does_not_wait_for_ever(world: World) -> None:
    world.hub("left", limits=msgspec.structs.replace(FAST, prefix_wait=0.01))
    world.relay("left", "top", wait=False)
    assert key_of(world.client("left")).count(b"!/cred/") == 1


def test_an_outage_keeps_the_prefix_and_a_new_one_is_told(world: World) -> None:
    world.chain("top", "left")
    notices: list[object] = []
    told = world.client("left", on_notice=notices.append)
    before = key_of(told)
    untold = world.peer("left")
    untold.send(WHOAMI)
    own = untold.receive().split(b"\0")[1]
    untold.subscribe(own + b"/box")
    world.hubs["top"].stop(0)
    eventually(lambda: world.relays["left"].state == "outage")
    assert key_of(told) == before
    world.hub("top")  # which gives the link another pid
    world.relays["left"].wait(PATIENCE)
    assert untold.is_disconnected()
    eventually(lambda: (told.sync(), notices)[1])
    assert told.credentials != before
    assert told.credentials == key_of(told)
    told.subscribe(told.credentials + b"/box")
    world.client("top").publish(told.credentials + b"/box", b"found")
    assert told.receive(PATIENCE).payload == b"found"


def test_the_embedder_stands_under_the_prefix(world: World) -> None:
    world.chain("top", "left")
    hub = world.hubs["left"]
    assert hub.whoami() == hub.router.namespace.prefix + own_key()
    inbox = hub.subscribe(hub.whoami() + b"/box")
    world.client("top").publish(hub.whoami() + b"/box", b"1")
    assert inbox.get(PATIENCE).payload == b"1"
    world.relays.pop("left").stop()
    assert hub.whoami() == own_key()
    with pytest.raises(DisconnectedError):
        inbox.get(PATIENCE)


# -- messages and senders ---------------------------------------------------------------------------


def test_messages_go_up_down_and_across_once_and_in_order(world: World) -> None:
    world.chain("top", "left", "below")
    world.hub("right")
    world.relay("right", "top")
    clients = {name: world.client(name) for name in ("top", "left", "below", "right")}
    for client in clients.values():
        client.subscribe(b"room/")
        client.subscribe(b"")
    settle(*clients.values())
    for name, client in clients.items():
        client.publish_many([(b"room/%d" % n, name.encode()) for n in range(100)])
    settle(*clients.values())
    for client in clients.values():
        mine: dict[bytes, list[bytes]] = {}
        for _ in range(400):
            message = client.receive(PATIENCE)
            mine.setdefault(message.payload, []).append(message.key)
        assert all(keys == [b"room/%d" % n for n in range(100)] for keys in mine.values())
        assert len(mine) == 4
    settle(*clients.values())
    assert [received(client) for client in clients.values()] == [[], [], [], []]


def test_senders_are_the_kernels_word_at_each_hop(world: World) -> None:
    world.chain("top", "left", "below")
    clients = {name: world.client(name) for name in ("top", "left", "below")}
    for client in clients.values():
        client.senders()
        client.subscribe(b"room/")
    settle(*clients.values())
    for publisher in clients.values():
        publisher.publish(b"room/1", b"x")
        for client in clients.values():
            assert client.receive(PATIENCE).sender == key_of(publisher)
    for client in clients.values():
        client.senders(False)
    settle(*clients.values())
    assert all(not hub.tree.senders for hub in world.hubs.values())


def test_the_longest_message_crosses_with_its_sender(world: World) -> None:
    world.chain("top", "left")
    client = world.client("top")
    client.senders()
    client.subscribe(b"k")
    settle(client)
    payload = bytes(409_600 - len(b"MSG k\0"))
    world.client("left").publish(b"k", payload)
    message = client.receive(PATIENCE)
    assert message.payload == payload
    assert message.sender is not None


# -- interest ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("uid", [None, 12_345])
def test_of_a_thousand_keys_the_one_that_is_wanted_goes_up(world: World, uid: int | None) -> None:
    world.hub("top", relays=[12_345])
    for name in ("a", "b", "c"):
        world.hub(name)
        if uid is not None:
            world.uids["top"] = uid
        world.relay(name, "top")
    world.uids.clear()
    assert {relay.statistics().mode for relay in world.relays.values()} == {"announce" if uid is None else "prune"}
    subscriber = world.client("top")
    subscriber.subscribe(b"key/500")
    settle(subscriber)
    tap = world.hubs["top"].tap()
    publishers = [world.client(name) for name in ("a", "b", "c")]
    rounds = 3
    for _ in range(rounds):
        for publisher in publishers:
            publisher.publish_many([(b"key/%d" % n, b"") for n in range(1_000)])
        settle(*publishers)
    for _ in range(3 * rounds):
        assert subscriber.receive(PATIENCE).key == b"key/500"
    keys = [tap.get(PATIENCE).key for _ in range(len(tap))]
    first = 3 * 1_000 if uid is not None else 3
    # Where keys are pruned, of each only what was sent before its prune arrived goes up: here, the first.
    assert len(keys) == first + 3 * (rounds - 1)
    assert set(keys[first:]) == {b"key/500"}
    subscriber.unsubscribe(b"key/500")
    settle(*publishers)
    for publisher in publishers:
        publisher.publish(b"key/500", b"")  # which may have to be pruned yet
    settle(*publishers)
    while len(tap):
        tap.get(PATIENCE)
    for publisher in publishers:
        publisher.publish_many([(b"key/%d" % n, b"") for n in range(1_000)])
    settle(*publishers)
    assert len(tap) == 0
    for relay in world.relays.values():
        statistics = relay.statistics()
        assert statistics.suppressed + statistics.forwarded == (rounds + 1) * 1_000 + 1
        assert statistics.lost == statistics.buffered == 0


def test_a_pruned_key_that_somebody_wants_again_is_grafted(world: World) -> None:
    world.hub("top", relays=["12345"])
    world.hub("left")
    world.uids["top"] = 12_345
    world.relay("left", "top")
    world.uids.clear()
    publisher, subscriber = world.client("left"), world.client("top")
    for wanted in (b"room/1", b"room/*", b""):
        publisher.publish(b"room/1", b"nobody")
        eventually(lambda: world.relays["left"].statistics().pruned == 1)
        subscriber.subscribe(wanted)
        settle(subscriber)
        assert world.relays["left"].statistics().pruned == 0
        publisher.publish(b"room/1", b"1")
        assert subscriber.receive(PATIENCE).payload == b"1"
        subscriber.unsubscribe(wanted)
        settle(subscriber)


def test_the_oldest_prune_is_forgotten_by_a_graft(world: World) -> None:
    world.hub("top", relays=[12_345], limits=msgspec.structs.replace(FAST, pruned_keys=3))
    world.hub("left")
    world.uids["top"] = 12_345
    relay = world.relay("left", "top")
    world.uids.clear()
    publisher = world.client("left")
    for n in range(3):
        publisher.publish(b"%d" % n)
    eventually(lambda: relay.statistics().pruned == 3)

    def forgotten() -> bool:
        publisher.publish(b"3")
        publisher.sync()
        return relay._pruned.keys() == [b"1", b"2", b"3"]

    eventually(forgotten)


def test_the_link_of_another_user_never_carries_anybodys_pattern(world: World) -> None:
    world.hub("top", relays=[12_345])
    world.client("top").subscribe(b"private/room")
    world.uids["top"] = 12_345
    spy = world.peer("top")
    world.client("top")  # of the same user, and no relay
    world.uids.clear()
    spy.send(b"CMSG interest/on", b"CMSG senders/on")
    world.client("top").subscribe(b"private/other")
    spy.publish(b"elsewhere")
    spy.publish(b"private/room")
    said = spy.pending()
    assert said[0] == b"CMSG interest/on\0prune"
    assert b"CMSG interest/prune\0elsewhere" in said
    assert not [packet for packet in said if b"private" in packet]


def test_a_strangers_relay_is_refused_interest_and_forwards_everything(world: World) -> None:
    world.hub("top")
    world.hub("left")
    world.uids["top"] = 12_345
    relay = world.relay("left", "top")
    world.uids.clear()
    assert relay.statistics().mode == "plain"
    subscriber, publisher = world.client("top"), world.client("left")
    subscriber.subscribe(b"a")
    publisher.subscribe(b"b")
    assert publisher.sync("tree") == "tree"
    publisher.publish(b"a", b"1")
    subscriber.publish(b"b", b"2")
    assert (subscriber.receive(PATIENCE).payload, publisher.receive(PATIENCE).payload) == (b"1", b"2")
    publisher.publish(b"b", b"own")
    assert publisher.receive(PATIENCE).payload == b"own"
    settle(publisher)
    assert received(publisher) == []


def test_under_a_daemon_that_knows_no_features(world: World) -> None:
    with FakeHub(world.address("c")) as daemon:
        world.hub("left")
        relay = world.relay("left", "c", wait=False)
        link = daemon.accept()
        hello = [link.receive() for _ in range(4)]
        assert hello == [b"CMSG hub/features\0", b"CMSG echo/off\0", b"CMSG notices/on\0", WHOAMI + b"\0"]
        link.send(WHOAMI + b"\0!/cred/1/2/3")
        relay.wait(PATIENCE)
        assert link.receive() == b"SUB !/cred/1/2/3/"
        client = world.client("left")
        assert key_of(client).startswith(b"!/cred/1/2/3/!/cred/")
        client.subscribe(b"a/")
        assert link.receive() == b"SUB a/"
        client.publish(b"x", b"1")
        assert link.receive() == b"MSG x\x001"
        assert link.receive() == WHOAMI + b"\0", "the acknowledgement that such a daemon can give"
        link.send(WHOAMI + b"\0!/cred/1/2/3", b"MSG a/1\x002")
        assert client.receive(PATIENCE) == Message(b"a/1", b"2")
        link.send(b"MSG !/cred/1/2/4/x\0stray", b"MSG a/!/b\0odd", b"nonsense", b"MSG a/2\0")
        assert client.receive(PATIENCE).key == b"a/2"
        assert sum(relay.statistics().dropped.values()) == 3
        link.close()
        eventually(lambda: relay.state == "outage")
        assert relay.statistics().uncertain == 0


def test_interest_that_others_cover_is_left_out(world: World) -> None:
    world.chain("top", "left")
    client = world.client("left")
    client.subscribe(*(b"room/%d/*" % n for n in range(500)))
    settle(client)
    assert world.relays["left"].statistics().interest_up == 500
    client.subscribe(b"room/")
    settle(client)
    assert world.relays["left"].statistics().interest_up == 1
    link = next(iter(world.hubs["top"].tree.links))
    eventually(lambda: world.hubs["top"].router.count(link) == 2)  # with its secrets
    client.unsubscribe(b"room/")
    settle(client)
    assert world.hubs["top"].router.count(link) == 501


def test_interest_that_exceeds_a_quota_is_widened_and_the_link_stays(world: World) -> None:
    world.hub("top", limits=msgspec.structs.replace(FAST, user_patterns=20))
    world.hub("left")
    relay = world.relay("left", "top")
    client = world.client("left")
    client.subscribe(*(b"%d" % n for n in range(50)))
    settle(client)
    publisher = world.client("top")
    publisher.publish_many([(b"%d" % n, b"") for n in range(50)])
    assert [client.receive(PATIENCE).key for _ in range(50)] == [b"%d" % n for n in range(50)]
    assert relay.statistics().epoch == 1
    eventually(lambda: relay.statistics().interest_up == 1)


def test_export_and_import_bound_what_crosses(world: World) -> None:
    world.hub("top")
    world.hub("left")
    world.relay("left", "top", export=[b"out/"], import_=[b"in/", b"both/"])
    top, left = world.client("top"), world.client("left")
    top.subscribe(b"")
    left.subscribe(b"")
    settle(top, left)
    for key in (b"out/1", b"in/1", b"both/1", b"other"):
        left.publish(key, b"left")
        top.publish(key, b"top")
    settle(top, left)
    assert {(m.key, m.payload) for m in received(top)} == {
        (b"out/1", b"left"),
        *((key, b"top") for key in (b"out/1", b"in/1", b"both/1", b"other")),
    }
    assert {(m.key, m.payload) for m in received(left)} == {
        *((key, b"top") for key in (b"in/1", b"both/1")),
        *((key, b"left") for key in (b"out/1", b"in/1", b"both/1", b"other")),
    }
    assert left.whoami().count(b"!/cred/") == 2


# -- hostile slaves ---------------------------------------------------------------------------------


@pytest.fixture
def slave(world: World) -> Callable[[], Peer]:
    """A raw link of a user that is configured as a relay, past its greeting."""
    world.hub("top", relays=[12_345])

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
    assert all(packet.startswith(b"CMSG senders/on") for packet in iter(link.receive, b""))
    assert received(victim) == []


def test_a_slave_speaks_for_what_is_beneath_it_and_is_named_as_its_outer_part(
    world: World, slave: Callable[[], Peer]
) -> None:
    client = world.client("top")
    client.senders()
    client.subscribe(b"k")
    link = slave()
    key = own(link)
    link.send(b"CMSG from\0%b/!/cred/1/2/3\0MSG k\0a" % key, b"MSG k\0b")
    assert client.receive(PATIENCE).sender == key + b"/!/cred/1/2/3"
    assert client.receive(PATIENCE).sender == key


def test_what_a_link_should_not_send_is_dropped_and_kills_no_link(world: World, slave: Callable[[], Peer]) -> None:
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
    assert sum(world.hubs["top"].tree.dropped().values()) >= 8


def test_a_flood_of_patterns_widens_the_flooder_and_harms_nobody(world: World) -> None:
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
    assert world.hubs["top"].quotas.account(12_345).patterns <= 101


def test_endless_keys_cost_a_bounded_table(world: World, slave: Callable[[], Peer]) -> None:
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


def test_what_a_slave_says_was_lost_is_passed_on_now_and_then_only(world: World, slave: Callable[[], Peer]) -> None:
    listener = world.peer("top")
    listener.send(b"CMSG notices/on")
    listener.barrier()
    link = slave()
    for _ in range(5_000):
        link.send(b"CMSG notice/lost\0upstream 1 1.0")
    own(link)
    told = listener.pending()
    assert told == [b"CMSG notice/lost\0upstream 1 1.000000"]


def test_a_silent_slave_holds_up_a_question_once(world: World) -> None:
    world.hub("top", relays=[12_345], limits=msgspec.structs.replace(FAST, sync_wait=0.05))
    world.uids["top"] = 12_345
    silent = world.peer("top")
    silent.send(b"CMSG interest/on")
    silent.receive()
    world.uids.clear()
    client = world.client("top")
    assert client.sync("tree") == "partial"
    (link,) = world.hubs["top"].tree.links.values()
    assert link.lagging
    assert client.sync("tree") == "partial"
    question = next(packet for packet in silent.pending() if packet.startswith(b"CMSG interest/sync\0"))
    silent.send(question + b"\0tree")
    silent.barrier()
    assert not link.lagging


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


# -- loops ------------------------------------------------------------------------------------------


def joined(world: World) -> set[str]:
    return {name for name, relay in world.relays.items() if relay.state == "joined"}


def test_a_hub_does_not_join_itself(world: World) -> None:
    world.hub("a")
    relay = world.relay("a", "a", wait=False)
    eventually(lambda: relay.state == "loop")
    client = world.client("a")
    client.subscribe(b"k")
    client.publish(b"k", b"once")
    assert [message.payload for message in received(client)] == [b"once"]


@pytest.mark.parametrize("names", ["ab", "abc"])
@pytest.mark.parametrize("start", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("at_once", [True, False])
def test_a_ring_stays_open_somewhere(world: World, names: str, start: tuple[int, ...], at_once: bool) -> None:
    for name in names:
        world.hub(name)
    order = [n for n in start if n < len(names)]
    for n in order:
        world.relay(names[n], names[(n + 1) % len(names)], wait=False)
        if not at_once:
            eventually(lambda: world.relays[names[n]].state in ("joined", "loop"))  # noqa: B023
    eventually(lambda: len(joined(world)) == len(names) - 1)
    clients = [world.client(name) for name in names]
    for client in clients:
        client.subscribe(b"k")
    settle(*clients)
    assert len(joined(world)) == len(names) - 1
    for client in clients:
        client.publish(b"k")
    settle(*clients)
    assert [len(received(client)) for client in clients] == [len(names)] * len(names)


@pytest.mark.parametrize("order", list(itertools.permutations("bcd")))
def test_a_diamond_is_no_loop(world: World, order: tuple[str, ...]) -> None:
    for name in "abcd":
        world.hub(name)
    above = {"b": "a", "c": "a", "d": "bc"}
    for name in order:
        world.relay(name, *above[name], wait=False)
    eventually(lambda: joined(world) == set("bcd"))
    clients = [world.client(name) for name in "abcd"]
    for client in clients:
        client.subscribe(b"k")
    settle(*clients)
    clients[0].publish(b"k")
    settle(*clients)
    assert [len(received(client)) for client in clients] == [1] * 4
    world.hubs["b"].stop(0)
    eventually(lambda: world.relays["d"].statistics().upstream == world.address("c") and "d" in joined(world))


def test_a_half_dead_link_is_no_loop(world: World) -> None:
    world.chain("top", "left")
    dead = world.peer("top")  # what an earlier link of the same hub may leave behind
    dead.send(b"CMSG interest/on")
    world.relays["left"].stop()
    world.relay("left", "top")
    assert world.relays["left"].state == "joined"


def test_a_path_that_changes_above_is_checked_again(world: World) -> None:
    for name in "abc":
        world.hub(name)
    world.relay("c", "b")
    world.relay("b", "a")
    eventually(lambda: len(world.hubs["c"].tree.path) == 3)
    relay = world.relay("a", "c", wait=False)
    eventually(lambda: relay.state == "loop")
    world.relays["b"].stop()
    eventually(lambda: relay.state == "joined")


# -- outages ----------------------------------------------------------------------------------------


def test_what_is_published_while_the_master_is_away_arrives_once_and_in_order(world: World) -> None:
    limits = msgspec.structs.replace(FAST, settle=0.3)
    world.hub("top", limits=limits)
    world.hub("left")
    relay = world.relay("left", "top")
    subscriber = world.client("top", reconnect=True)
    subscriber.subscribe(b"k")
    publisher = world.client("left")
    eventually(lambda: relay.statistics().interest_down == 1)
    publisher.publish(b"k", b"before")
    assert subscriber.receive(PATIENCE).payload == b"before"
    eventually(lambda: relay.up is not None and relay.up._acknowledged == 1)
    world.hubs["top"].stop(0)
    publisher.publish_many([(b"k", b"%d" % n) for n in range(1_000)])
    publisher.sync()
    waiting = gevent.spawn(lambda: [subscriber.receive(PATIENCE).payload for _ in range(1_000)])
    world.hub("top", limits=limits)
    assert waiting.get(timeout=PATIENCE) == [b"%d" % n for n in range(1_000)]
    statistics = relay.statistics()
    assert (statistics.epoch, statistics.lost, statistics.uncertain, statistics.buffered) == (2, 0, 0, 0)
    publisher.publish(b"k", b"after")
    assert subscriber.receive(PATIENCE).payload == b"after"


def test_beyond_the_bound_the_lost_are_counted_and_told(world: World) -> None:
    world.hub("top")
    world.hub("left", limits=msgspec.structs.replace(FAST, link_buffer=10 * len(b"MSG k\0x")))
    relay = world.relay("left", "top")
    notices: list[object] = []
    publisher = world.client("left", on_notice=notices.append)
    world.hubs["top"].stop(0)
    eventually(lambda: relay.state == "outage")
    publisher.publish_many([(b"k", b"x")] * 25)
    publisher.sync()
    statistics = relay.statistics()
    assert (statistics.buffered, statistics.lost, statistics.uncertain) == (10, 15, 0)
    world.hub("top", limits=msgspec.structs.replace(FAST, settle=0.2))
    above: list[object] = []
    client = world.client("top", on_notice=above.append)
    client.subscribe(b"k")
    eventually(lambda: relay.statistics().forwarded == 10)
    eventually(lambda: (publisher.sync(), client.sync(), notices and above)[2])
    assert [(n.cause, n.count) for n in notices if hasattr(n, "cause")] == [("upstream", 15)]  # type: ignore[attr-defined]
    assert len(received(client)) == 10


def test_what_was_sent_and_not_acknowledged_is_uncertain_and_not_sent_again(world: World) -> None:
    with FakeHub(world.address("c")) as daemon:
        world.hub("left", limits=msgspec.structs.replace(FAST, link_acks=10, link_ack_pause=60.0))
        relay = world.relay("left", "c", wait=False)
        link = daemon.accept()
        link.send(WHOAMI + b"\0!/cred/1/2/3")
        relay.wait(PATIENCE)
        publisher = world.client("left")
        for n in range(25):
            publisher.publish(b"k", b"%d" % n)
            publisher.sync()
        messages = asked = acknowledged = 0
        while messages < 25:
            packet = link.receive()
            messages += packet.startswith(b"MSG k\0")
            if packet.startswith(WHOAMI) and messages:
                asked += 1
                if asked == 1:
                    acknowledged = messages
                    link.send(WHOAMI + b"\0!/cred/1/2/3")
        world.client("left").sync()
        eventually(lambda: relay.up is not None and relay.up._acknowledged == acknowledged)
        link.close()
        eventually(lambda: relay.state != "joined")
        assert relay.statistics().uncertain == 25 - acknowledged
        again = daemon.accept()
        again.send(WHOAMI + b"\0!/cred/1/2/3")
        world.client("left").publish(b"k", b"new")
        while not (packet := again.receive()).startswith(b"MSG"):
            pass
        assert packet == b"MSG k\0new"


def test_several_upstreams_are_tried_in_order(world: World) -> None:
    world.hub("left")
    relay = world.relay("left", "first", "second", wait=False)
    world.hub("second")
    relay.wait(PATIENCE)
    assert relay.statistics().upstream == world.address("second")
    world.hub("first")
    world.hubs["second"].stop(0)
    eventually(lambda: relay.state == "joined" and relay.statistics().upstream == world.address("first"))


def test_interest_lost_with_the_link_is_found_again(world: World) -> None:
    world.chain("top", "left", "below")
    client = world.client("below")
    client.subscribe(b"k")
    settle(client)
    world.hubs["left"].stop(0)
    world.hub("left")
    world.relay("left", "top")
    world.relays["below"].wait(PATIENCE)
    settle(client)
    world.client("top").publish(b"k", b"1")
    assert client.receive(PATIENCE).payload == b"1"


def test_a_sync_in_an_outage_is_partial(world: World) -> None:
    world.chain("top", "left")
    client = world.client("left")
    assert client.sync("tree") == "tree"
    world.hubs["top"].stop(0)
    eventually(lambda: world.relays["left"].state == "outage")
    assert client.sync("tree") == "partial"
    assert client.sync() == "local"


# -- the object -------------------------------------------------------------------------------------


def test_one_relay_a_hub(world: World) -> None:
    world.chain("top", "left")
    with pytest.raises(StateError, match="one relay a hub"):
        Relay(world.hubs["left"], world.address("top")).start()
    with pytest.raises(StateError):
        world.relays["left"].start()


def test_bad_arguments(world: World) -> None:
    hub = Hub(world.address("x"))
    wrong: list[dict[str, Any]] = [
        {"upstream": []},
        {"upstream": ""},
        {"upstream": "/a", "export": b"x"},
        {"upstream": "/a", "import_": [b"\0"]},
    ]
    for options in wrong:
        with pytest.raises(UsageError):
            Relay(hub, **options)
    with pytest.raises(StateError):
        Relay(hub, "/a").start()
    with pytest.raises(UsageError):
        Hub(world.address("x"), relays="me")
    with pytest.raises(UsageError, match="group"):
        Hub(world.address("x"), relays=["@no such group"])


def test_a_group_of_relays(world: World) -> None:
    world.hub("top", relays=[f"@{os.getgid()}"])
    world.hub("left")
    world.uids["top"] = 12_345
    assert world.relay("left", "top").statistics().mode == "prune"


def test_a_relay_that_stops_leaves_a_root(world: World) -> None:
    world.chain("top", "left")
    client = world.client("left")
    world.relays["left"].stop()
    assert world.relays["left"].state == "stopped"
    assert key_of(client).count(b"!/cred/") == 1
    assert client.sync("tree") == "tree"
    assert world.hubs["left"].tree.path == (world.hubs["left"].hub_id,)
    eventually(lambda: not world.hubs["top"].tree.links)
    assert world.hubs["top"].router.watch is None
    world.relay("left", "top")
    assert key_of(client).count(b"!/cred/") == 2
