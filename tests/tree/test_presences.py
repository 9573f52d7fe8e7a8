"""Who is there: presences on one hub and in a tree, over outages, kills, take-overs of a name and hostile links."""

from __future__ import annotations

import contextlib
import os
from random import Random
from typing import Any

import msgspec
import pytest
from support import PATIENCE, Peer, eventually
from worlds import FAST, OTHER, RELAY, STRANGER, World, settle

from sbuslib import Client, Hub
from sbuslib.errors import DisconnectedError, RefusedError, StateError
from sbuslib.keys.policy import Policy, Rule, User
from sbuslib.tree import presences


def seen(watch: Any) -> list[bytes]:
    return sorted(member.key for member in watch.members)


def next_event(watch: Any) -> tuple[bytes, bool, str]:
    event = watch.receive(timeout=PATIENCE)
    return event.member.key, event.came, event.cause


def test_who_comes_and_goes_is_seen_on_every_hub_of_a_tree(world: World) -> None:
    world.chain("top", "middle", "low")
    clients = {name: world.client(name) for name in world.hubs}
    settle(*clients.values())
    for name, client in clients.items():
        watches = [other.present(b"worker/*") for other in clients.values()]
        with client.presence(b"worker/1", info=b"gpu"), client.presence(b"elsewhere"):
            for watch in watches:
                event = watch.receive(timeout=PATIENCE)
                assert (event.came, event.member.key, event.member.info) == (True, b"worker/1", b"gpu")
                assert event.member.sender == client.credentials
            settle(client)
            for other in clients.values():
                with other.present(b"worker/") as late:
                    assert seen(late) == [b"worker/1"], name
        for watch in watches:
            assert next_event(watch) == (b"worker/1", False, "closed")
            watch.close()
        assert all(not len(hub.tree.presences) for hub in world.hubs.values())


def test_why_somebody_has_gone(world: World) -> None:
    hub: Hub = world.hub("top")
    watch = world.client("top").present(b"")
    for key in (b"ended", b"kicked"):
        peer = world.peer("top")
        peer.send(b"CMSG presence/on\0t\0" + key + b"\0")
        assert peer.receive() == b"CMSG presence/on\0t\0"
        assert next_event(watch) == (key, True, "")
        peer.close() if key == b"ended" else peer.send(b"nonsense")
        assert next_event(watch) == (key, False, key.decode())
    assert hub.context.quotas.account(os.getuid()).patterns == 1  # that which is watched


def test_the_same_key_may_be_held_by_several_and_by_each_once(world: World) -> None:
    world.hub("top")
    one, other = world.client("top"), world.client("top")
    watch = world.client("top").present(b"role")
    with one.presence(b"role"), pytest.raises(StateError), one.presence(b"role"):
        pass
    assert [next_event(watch)[1] for _ in range(2)] == [True, False]
    with one.presence(b"role"), other.presence(b"role"):
        assert [next_event(watch)[1] for _ in range(2)] == [True, True]
        assert {member.sender for member in watch.members} == {one.credentials, other.credentials}


def test_what_the_rules_refuse_is_refused_and_nothing_else_ends(world: World) -> None:
    hub: Hub = world.hub("top", authorize=lambda who, verb, key: key.startswith(b"open"))
    client = world.client("top")
    with client.presence(b"open/1"):
        with pytest.raises(RefusedError, match="publishing refused"):
            client.presence(b"shut/1")
        watch = world.client("top").present(b"open/")
        assert seen(watch) == [b"open/1"]
        hub.reconfigure(authorize=lambda who, verb, key: key == b"open/")
        assert next_event(watch) == (b"open/1", False, "refused")


def test_a_link_that_comes_back_in_time_is_no_event(world: World) -> None:
    world.chain("top", "left")
    parent, below = world.client("top"), world.client("left")
    settle(parent, below)
    watches = parent.present(b""), below.present(b"")
    with parent.presence(b"above"), below.presence(b"below"):
        for watch in watches:
            assert {next_event(watch)[0], next_event(watch)[0]} == {b"above", b"below"}
        world.relays["left"].parent.joined.outbound.socket.shutdown(2)  # type: ignore[union-attr]
        eventually(lambda: world.relays["left"].statistics().epoch == 2)
        eventually(lambda: parent.sync("tree") == below.sync("tree") == "tree")
        with parent.presence(b"last"):
            assert [next_event(watch) for watch in watches] == [(b"last", True, "")] * 2
            # Each is known under the key that it has now.
            eventually(lambda: parent.sync() and seen(watches[0]) == [b"above", b"below", b"last"])
            eventually(lambda: parent.sync() and below.credentials in {one.sender for one in watches[0].members})


def test_what_went_while_the_link_was_away_has_gone_when_it_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.chain("top", "left")
    parent, below, leaver = world.client("top"), world.client("left"), world.client("left")
    settle(parent, below)
    watch = parent.present(b"")
    stays, goes = below.presence(b"stays"), leaver.presence(b"goes")
    assert {next_event(watch)[0], next_event(watch)[0]} == {b"stays", b"goes"}
    world.relays["left"].stop()
    leaver.close()
    eventually(lambda: len(world.hubs["left"].tree.presences) == 1)
    with parent.present(b"") as partial:
        assert (seen(partial), partial.is_whole) == ([b"goes", b"stays"], False)
    world.relay("left", "top")
    assert next_event(watch) == (b"goes", False, "unknown")
    settle(parent, below)
    with parent.present(b"") as whole:
        assert (seen(whole), whole.is_whole) == ([b"stays"], True)
    stays.leave()
    assert next_event(watch) == (b"stays", False, "closed")
    del goes


def test_a_hub_that_does_not_come_back_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presences, "GIVEN_UP", 0.01)
    world.chain("top", "left")
    world.hub("other")
    world.relay("other", "top")
    parent, below, beside = world.client("top"), world.client("left"), world.client("other")
    settle(parent, below, beside)
    watches = parent.present(b""), beside.present(b""), below.present(b"")
    with below.presence(b"below"), parent.presence(b"above"):
        for watch in watches:
            assert {next_event(watch)[0], next_event(watch)[0]} == {b"below", b"above"}
        world.relays["left"].stop()
        assert [next_event(watch) for watch in watches] == [
            (b"below", False, "unreachable"),
            (b"below", False, "unreachable"),
            (b"above", False, "unreachable"),
        ]


def test_a_hub_that_began_anew_has_others(world: World) -> None:
    world.chain("top", "left")
    parent = world.client("top")
    watch = parent.present(b"")
    below = world.client("left", reconnect=True)
    presence = below.presence(b"worker", info=b"1")
    before = watch.receive(timeout=PATIENCE).member
    world.hubs["left"].stop(0)
    world.hub("left")
    world.relay("left", "top")
    eventually(lambda: below.sync("tree") == "tree")
    events = [watch.receive(timeout=PATIENCE) for _ in range(2)]
    assert {event.came for event in events} == {True, False}
    assert [member.info for member in watch.members] == [b"1"]
    assert watch.members != [before]
    presence.leave()
    assert next_event(watch) == (b"worker", False, "closed")


def test_nobody_is_present_under_the_credentials_of_another(world: World) -> None:
    world.hub("top", relays=[STRANGER])
    watch = world.client("top").present(b"")
    link = world.link("top", STRANGER)
    link.send(b"CMSG presence/begin\0id")
    forged = world.client("top").credentials
    link.send(b"CMSG presence/add\0" + b"1 " + forged + b"\0worker\0")
    eventually(lambda: not world.hubs["top"].tree.links)
    with world.client("top").presence(b"end"):
        assert next_event(watch) == (b"end", True, "")


@pytest.mark.promise("presence.md", "Rules")
def test_a_stranger_may_only_hold_and_know_what_its_rules_allow(world: World) -> None:
    everything = Rule(users=frozenset({os.getuid()}), publish=(b"",), subscribe=(b"",))
    some = Rule(users=frozenset({OTHER}), publish=(b"tenant/",), subscribe=(b"tenant/", b"host/"))
    world.hub("top", relays=[OTHER], authorize=Policy((everything, some), lambda uid: User(b"", frozenset()), b"/"))
    world.hub("low")
    world.uids["top"] = OTHER
    world.relay("low", "top")
    world.uids.clear()
    parent, below = world.client("top"), world.client("low")
    inside = below.present(b"")
    outside = parent.present(b"")
    with below.presence(b"host/1"), below.presence(b"tenant/1"), parent.presence(b"host/2"), parent.presence(b"x"):
        settle(parent, below)
        assert seen(outside) == [b"host/2", b"tenant/1", b"x"]
        eventually(lambda: below.sync() and seen(inside) == [b"host/1", b"host/2", b"tenant/1"])


def test_what_a_link_says_is_bounded_and_charged_to_its_user(world: World) -> None:
    hub: Hub = world.hub("top", relays=[RELAY])
    link = world.link("top", RELAY)
    watch = world.client("top").present(b"")
    name = hub.tree.links[next(iter(hub.tree.links))].outbound.key + b"/!/cred/1/2/3"
    link.send(b"CMSG presence/begin\0id")
    wrong = [b"", b"1", b"x %b\0k\0" % name, b"1 %b\0k\0%b" % (name, bytes(1_025)), b"1 %b\0!/a\0" % name]
    link.send(*(b"CMSG presence/add\0" + payload for payload in wrong), b"CMSG presence/remove\x005 ?")
    link.send(b"CMSG presence/add\x007 %b\0k\0" % name, b"CMSG presence/add\x007 %b\0other\0" % name)
    assert next_event(watch) == (b"k", True, "")
    assert hub.context.quotas.account(RELAY).patterns == 1
    assert sum(hub.statistics().dropped.values()) == len(wrong) + 2
    link.close()
    eventually(lambda: not hub.tree.links)


@pytest.mark.parametrize("payload", [b"", b"t\0!/x\0", b"t\0k\0" + bytes(1_025)])
def test_a_presence_that_cannot_be_is_answered_why(world: World, payload: bytes) -> None:
    world.hub("top")
    peer = world.peer("top")
    peer.send(b"CMSG presence/on\0" + payload)
    token = payload.partition(b"\0")[0]
    if payload:
        assert peer.receive() == b"CMSG presence/on\0%b\0malformed presence" % token


def test_a_client_that_reads_nothing_is_sent_no_more_than_it_may_queue(world: World) -> None:
    hub: Hub = world.hub("top")
    slow = world.peer("top")
    slow.send(b"CMSG presence/watch\0")
    slow.barrier()
    with Client(world.address("top")) as busy:
        for number in range(2_000):
            busy.presence(b"%d" % number, info=bytes(1_000))
        assert len(hub.clients.connections) == 2
    eventually(lambda: not len(hub.tree.presences))
    with world.client("top").presence(b"last"):
        news = Peer.receive(slow)
        while b"last" not in news:
            assert news
            news = slow.receive()


def test_a_list_for_one_that_reads_nothing_does_not_grow_with_those_who_come_and_go(world: World) -> None:
    hub: Hub = world.hub("top", limits=msgspec.structs.replace(FAST, queued_answers=2))
    slow, stranger = world.peer("top"), world.peer_of("top", STRANGER)
    slow.send(b"CMSG presence/watch\0")
    slow.barrier()
    (watcher,) = hub.tree.presences._watchers.values()
    for number in range(1_000):  # more than it may queue
        stranger.send(b"CMSG presence/on\0\0stays %d\0" % number + bytes(1_000))
        if not number % 100:
            stranger.barrier()
    for number in range(1_000):
        stranger.send(b"CMSG presence/on\0\0%d\0" % number + bytes(1_000), b"CMSG presence/off\0%d" % number)
        if not number % 100:
            stranger.barrier()
    stranger.barrier()
    assert len(watcher.cursor._dirty) <= 1_000


def test_one_that_watches_over_and_over_is_told_once_that_this_is_all(world: World) -> None:
    hub: Hub = world.hub("top")
    peer = world.peer("top")
    for number in range(1_000):
        peer.send(b"CMSG presence/watch\0%d" % (number % 2), b"CMSG presence/watch\0a", b"CMSG presence/unwatch\0a")
        peer.receive(), peer.receive()
        (watcher,) = hub.tree.presences._watchers.values()
        assert len(watcher.cursor._endings) <= 3


def test_only_what_a_relay_exports_and_imports_is_known_beyond_it(world: World) -> None:
    world.hub("top")
    world.hub("low")
    relay = world.relay("low", "top", export=[b"out/"], import_=[b"in/"])
    parent, below = world.client("top"), world.client("low")
    outside, inside = parent.present(b""), below.present(b"")
    holders = [client.presence(key) for client in (parent, below) for key in (b"in/1", b"out/1", b"host/1")]
    settle(parent, below)
    everybody = [b"host/1", b"in/1", b"out/1"]
    eventually(lambda: parent.sync() and seen(outside) == sorted([*everybody, b"out/1"]))
    eventually(lambda: below.sync() and seen(inside) == sorted([*everybody, b"in/1"]))
    relay.reconfigure(world.address("top"), export=[b"host/"], import_=[b"in/"])
    settle(parent, below)
    eventually(lambda: parent.sync() and seen(outside) == sorted([*everybody, b"host/1"]))
    assert len(holders) == 6


def test_a_client_that_comes_back_with_many_presences_is_not_drowned_in_answers(world: World) -> None:
    hub: Hub = world.hub("top")
    with Client(world.address("top"), reconnect=True) as client:
        for number in range(2_000):
            client.presence(b"%d" % number)
        client._connection.socket.shutdown(2)
        while client.epoch == 1 or len(hub.tree.presences) < 2_000:
            with contextlib.suppress(DisconnectedError):
                client.sync()
        assert not hub.statistics().violations


def test_rubbish_over_the_link_of_a_stranger_leaves_nothing_behind(world: World) -> None:
    hub: Hub = world.hub("top", relays=[RELAY])
    client, link, rubbish = world.client("top"), world.link("top", RELAY), Random(40)
    watch = client.present(b"")
    name = next(iter(hub.tree.links)).key + b"/!/cred/1/2/3"
    link.send(b"CMSG presence/begin\0id")
    for number in range(2_000):
        verb = rubbish.choice([b"add", b"remove", b"begin", b"complete"])
        link.send(b"CMSG presence/%b\0%b" % (verb, rubbish.randbytes(rubbish.randrange(40))))
        link.send(b"CMSG presence/add\0%d %b\0k\0" % (number % 500, name))
        link.send(b"CMSG presence/remove\0%d closed" % rubbish.randrange(500))
    link.close()
    eventually(lambda: not hub.context.quotas.account(RELAY).patterns)
    assert not len(hub.tree.presences)
    eventually(lambda: client.sync() and not watch.members)
    client.close()
    hub.stop()
    assert hub.context.quotas.is_clear()


def test_what_may_not_be_watched_is_refused_and_nothing_else_ends(world: World) -> None:
    hub: Hub = world.hub("top", authorize=lambda who, verb, key: verb == "publish" or key.startswith(b"open"))
    client = world.client("top", timeout=PATIENCE)
    with client.present(b"open/") as watch, client.presence(b"open/1"):
        for pattern in (b"shut/", b"!/cred/1/2/3/x", b"/".join([b"open"] * (hub.limits.pattern_segments + 1))):
            with pytest.raises(RefusedError):
                client.present(pattern)
        assert client.epoch == 1
        assert next_event(watch) == (b"open/1", True, "")
    assert not hub.statistics().violations


def test_what_may_no_longer_be_watched_is_empty_over_the_next_connection(world: World) -> None:
    world.hub("top")
    client = world.client("top", reconnect=True)
    with client.present(b"a") as watch, world.client("top").presence(b"a"):
        assert next_event(watch) == (b"a", True, "")
        world.hubs["top"].stop()
        world.hub("top", authorize=lambda who, verb, key: False)
        eventually(lambda: client.sync() and not watch.members)
        assert next_event(watch) == (b"a", False, "refused")
        assert client.epoch == 2


def test_what_comes_down_takes_no_room_of_clients_here(world: World) -> None:
    world.hub("top")
    world.hub("left", limits=msgspec.structs.replace(FAST, user_patterns=2))
    world.relay("left", "top")
    parent, below = world.client("top"), world.client("left")
    settle(parent, below)
    for key in (b"1", b"2"):
        parent.presence(key)
    settle(parent, below)
    eventually(lambda: len(world.hubs["left"].tree.presences) == 2)
    below.subscribe(b"a", b"b")
    assert below.epoch == 1


def test_the_information_of_a_presence_is_charged_to_its_user_in_each_hub(world: World) -> None:
    limits = msgspec.structs.replace(FAST, user_pattern_bytes=10_000)
    low = world.hub("low", mode=0o777, limits=limits)
    top = world.hub("top", limits=msgspec.structs.replace(FAST, user_pattern_bytes=5_000))
    world.relay("low", "top")
    stranger = world.peer_of("low", STRANGER)
    for number in range(20):
        stranger.send(b"CMSG presence/on\0t%d\0k%d\0" % (number, number) + bytes(1_000))
    refused = b"too many patterns"
    answers = [packet for packet in stranger.pending() if packet.startswith(b"CMSG presence/on\0")]
    assert [packet.endswith(refused) for packet in answers] == [False] * 9 + [True] * 11
    account = low.context.quotas.account(STRANGER)
    assert account.pattern_bytes == 9 * 1_002

    # One that says more of itself needs room, too, and one that says less gives it back.
    stranger.send(b"CMSG presence/on\0t\0k0\0" + bytes(1_024))
    assert account.pattern_bytes <= 10_000
    stranger.send(b"CMSG presence/on\0t\0k0\0")
    stranger.barrier()
    assert account.pattern_bytes == 8 * 1_002 + 2
    stranger.send(b"CMSG presence/on\0t\0k0\0" + bytes(1_000))
    eventually(lambda: len(top.tree.presences) == 4)  # as many as there is room for
    stranger.close()
    eventually(lambda: account.is_clear() and not len(top.tree.presences))
