"""Who is there: presences on one hub and in a tree, over outages, kills, take-overs of a name and hostile links."""

from __future__ import annotations

import contextlib
import os
from random import Random
from typing import Any

import msgspec
import pytest
from support import PATIENCE, Peer, eventually
from worlds import FAST, OTHER, RELAY, STRANGER, World, key_of_link, receive_until, served, settle

from sbuslib import Client, Hub
from sbuslib.errors import DisconnectedError, RefusedError, StateError
from sbuslib.keys.policy import Policy, Rule, User
from sbuslib.reasons import Reason
from sbuslib.tree import presence_entries, presences
from sbuslib.tree.hub_identities import Hello
from sbuslib.wire import presence


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
        eventually(lambda: whole.is_whole)  # the hubs on the way may say so after the list
        assert seen(whole) == [b"stays"]
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


# -- whether all is known ----------------------------------------------------------------------------------


def becomes(watch: Any, client: Client, is_whole: bool) -> None:
    eventually(lambda: client.sync() and watch.is_whole is is_whole)


def test_a_list_becomes_whole_and_partial_with_the_tree_wherever_it_is_watched(world: World) -> None:
    world.chain("top", "middle", "low")
    clients = [world.client(name) for name in world.hubs]
    watches = [client.present(b"") for client in clients]
    for watch, client in zip(watches, clients, strict=True):
        becomes(watch, client, True)
    low = world.client("low").presence(b"low")
    for watch in watches:
        assert next_event(watch) == (b"low", True, "")

    # What a hub does not know, its neighbours do not know either.
    world.relays["low"].stop()
    for watch, client in zip(watches[:2], clients[:2], strict=True):
        becomes(watch, client, False)
    with clients[0].present(b"lo*") as late:
        assert (late.is_whole, seen(late)) == (False, [b"low"])
        world.relay("low", "middle")
        for watch, client in zip([*watches, late], [*clients, clients[0]], strict=True):
            becomes(watch, client, True)

    # Downwards likewise.
    world.hubs["top"].stop(0)
    becomes(watches[2], clients[2], False)
    world.hub("top")
    for watch, client in zip(watches[1:], clients[1:], strict=True):
        becomes(watch, client, True)
        assert not watch._core._watch.events
    low.leave()


def test_a_list_that_begins_while_a_hub_starts_becomes_whole(world: World) -> None:
    hub: Hub = world.hub("top", limits=msgspec.structs.replace(FAST, settle=PATIENCE))
    client = world.client("top")
    with client.present(b"") as watch:
        assert not watch.is_whole
        hub.tree.startup_barrier._quiet_at = 0.0
        hub.tree.startup_barrier.check()
        becomes(watch, client, True)


def test_a_list_in_which_some_had_no_room_is_whole_once_they_have_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence_entries, "ROOMLESS_NAMES", 2)
    hub: Hub = world.hub("top", trusted=[OTHER], limits=msgspec.structs.replace(FAST, user_patterns=1))
    client = world.client("top")
    watch = client.present(b"")
    becomes(watch, client, True)
    for most, is_whole in ((3, True), (4, False)):  # of more names than are counted, nobody knows when they have gone
        link = named_link(world, OTHER)
        name = key_of_link(link) + b"/!/cred/1/2/3"
        link.send(b"CMSG presence/begin\0id")
        link.send(*(b"CMSG presence/add\0%d@id %b\0%d\0" % (number, name, number) for number in range(most)))
        link.send(b"CMSG presence/complete\0tree")
        key_of_link(link)
        becomes(watch, client, False)
        assert seen(watch) == [b"0"]
        link.send(*(b"CMSG presence/remove\0%d@id closed" % number for number in range(1, most)))
        key_of_link(link)
        assert hub.tree.presences._said[None] is is_whole
        becomes(watch, client, is_whole)
        link.close()
        eventually(lambda: client.sync() and not watch.members)


# -- names that hold in the whole tree ---------------------------------------------------------------------


def named_link(world: World, uid: int, mode: bytes = b"announce", number: int = 1, process: int = 1) -> Peer:
    """A raw link of a hub that knows presences by name."""
    link = world.peer_of("top", uid)
    words = frozenset({presence.PRESENCE_NAMED})
    link.send(b"CMSG interest/on\0" + Hello(b"%016d" % number, process, 0, words).encode())
    assert served(link) == mode
    return link


def start_again(world: World, name: str, *parents: str) -> None:
    """Kill a hub, and start it again."""
    world.hubs[name].stop(0)
    world.hub(name)
    for parent in parents:
        world.relay(name, parent)


def test_a_restart_in_the_middle_is_no_event_for_those_above_and_below(world: World) -> None:
    world.chain("top", "upper", "lower", "low")
    ends = {name: world.client(name) for name in ("top", "low")}
    between = world.client("upper", reconnect=True)
    settle(*ends.values())
    held = [client.presence(name.encode()) for name, client in ends.items()]
    held.append(between.presence(b"upper"))
    watches = {name: client.present(b"") for name, client in ends.items()}
    for name, watch in watches.items():
        eventually(lambda: ends[name].sync() and seen(watch) == [b"low", b"top", b"upper"])  # noqa: B023
        while watch._core._watch.events:
            watch.receive(timeout=0)

    for _ in range(3):
        start_again(world, "upper", "top")
        world.relays["lower"].wait(PATIENCE)
        eventually(lambda: between.sync("tree") == "tree")
        for name, watch in watches.items():
            # Only who was there itself has gone with it.
            events = [next_event(watch) for _ in range(2)]
            assert events == [(b"upper", False, "unreachable"), (b"upper", True, "")], name
            eventually(lambda: ends[name].sync() and watch.is_whole)  # noqa: B023
            assert seen(watch) == [b"low", b"top", b"upper"]
            assert not watch._core._watch.events
            other = ends["top" if name == "low" else "low"]
            for client in (other, ends[name]):
                eventually(lambda: client.sync() and other.credentials in {one.sender for one in watch.members})  # noqa: B023


def test_what_does_not_come_again_by_another_process_goes_when_it_is_given_up(world: World) -> None:
    world.chain("top", "middle", "low")
    above, below, leaver = world.client("top"), world.client("low"), world.client("low")
    settle(above, below, leaver)
    watch = above.present(b"")
    held = [below.presence(b"stays"), leaver.presence(b"goes")]
    assert {next_event(watch)[0], next_event(watch)[0]} == {b"stays", b"goes"}
    world.hubs["middle"].stop(0)
    leaver.close()
    eventually(lambda: len(world.hubs["low"].tree.presences) == 1)
    world.hub("middle")
    world.relay("middle", "top")
    world.relays["low"].wait(PATIENCE)
    eventually(lambda: below.sync("tree") == above.sync("tree") == "tree")
    (origin,) = world.hubs["top"].tree.presences._hubs.values()
    eventually(lambda: len(origin.stale) == 1)
    assert (seen(watch), watch.is_whole) == ([b"goes", b"stays"], False)
    world.hubs["top"].tree.presences._end_hold(origin)
    assert next_event(watch) == (b"goes", False, "unknown")
    becomes(watch, above, True)
    assert len(held) == 2


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_hub_that_moves_is_no_event(world: World, is_alive: bool) -> None:
    world.chain("top", "middle", "low", "lowest")
    clients = [world.client(name) for name in ("top", "low", "lowest")]
    settle(*clients)
    watches = [client.present(b"") for client in clients]
    held = [client.presence(b"%d" % number) for number, client in enumerate(clients)]
    for watch, client in zip(watches, clients, strict=True):
        eventually(lambda: client.sync() and len(watch.members) == 3)  # noqa: B023
        while watch._core._watch.events:
            watch.receive(timeout=0)
    if not is_alive:
        world.hubs["middle"].stop(0)
    for parent in ("top", "middle") if is_alive else ("top",):
        world.relays["low"].reconfigure(world.address(parent))
        eventually(lambda: world.relays["low"].statistics().address == world.address(parent))  # noqa: B023
        eventually(lambda: all(client.sync("tree") == "tree" for client in clients))
        known = world.hubs[parent].tree.presences._hubs
        eventually(lambda: any(origin.is_linked and len(origin.entries) == 2 for origin in known.values()))  # noqa: B023
        for hub in world.hubs.values():
            for origin in list(hub.tree.presences._hubs.values()):
                if origin.timer is not None:  # the five seconds have passed
                    hub.tree.presences._let_go(origin)
                    hub.tree.presences._end_hold(origin)
        with clients[0].presence(b"last"), clients[1].presence(b"last"):
            for watch, client in zip(watches, clients, strict=True):
                assert [next_event(watch) for _ in range(2)] == [(b"last", True, "")] * 2
                becomes(watch, client, True)
        for watch in watches:
            assert [next_event(watch) for _ in range(2)] == [(b"last", False, "closed")] * 2
            assert seen(watch) == [b"0", b"1", b"2"]
    assert len(held) == 3


def test_nobody_takes_a_name_of_another_user(world: World) -> None:
    hub: Hub = world.hub("top", relays=[STRANGER, RELAY], trusted=[OTHER])
    client = world.client("top")
    watch = client.present(b"")
    with client.presence(b"own", info=b"own"):
        assert next_event(watch) == (b"own", True, "")
        links = [
            named_link(world, uid, mode, number)
            for number, (uid, mode) in enumerate([(OTHER, b"announce"), (STRANGER, b"prune"), (RELAY, b"prune")])
        ]
        for number, link in enumerate(links):
            who = key_of_link(link) + b"/!/cred/1/2/3"
            link.send(b"CMSG presence/begin\0home", b"CMSG presence/add\x007@home %b\0k\0%d" % (who, number))
            assert next_event(watch) == (b"k", True, "")
            link.send(b"CMSG presence/add\x001@%b %b\0own\0forged" % (hub.hub_id, who))
            key_of_link(link)
        assert sorted(member.info for member in watch.members) == [b"0", b"1", b"2", b"own"]
        links[1].send(b"CMSG presence/remove\x007@home closed", b"CMSG presence/remove\x001@%b closed" % hub.hub_id)
        assert next_event(watch) == (b"k", False, "closed")
        client.sync()
        assert sorted(member.info for member in watch.members) == [b"0", b"2", b"own"]

        # To the trusted one, each has a name of its own.
        names = set[bytes]()
        while len(names) < 2:
            names.add(receive_until(links[0], b"CMSG presence/add\0").split(b"\0")[1].split(b" ")[0])
        assert b"7@home" not in names
    for link in links:
        link.close()


def test_hubs_that_know_no_names_are_sent_numbers_and_send_theirs(world: World) -> None:
    world.hub("top")
    client = world.client("top")
    watch = client.present(b"")
    link = world.link("top")
    who = key_of_link(link) + b"/!/cred/1/2/3"
    with client.presence(b"above"):
        link.send(b"CMSG presence/begin\0id", b"CMSG presence/add\x007 %b\0below\0" % who, b"CMSG presence/complete\0")
        assert {next_event(watch)[0], next_event(watch)[0]} == {b"above", b"below"}
        added = receive_until(link, b"CMSG presence/add\0").split(b"\0")
        assert (added[1].split(b" ")[0].isdigit(), added[2]) == (True, b"above")
        becomes(watch, client, True)
    assert receive_until(link, b"CMSG presence/remove\0").split(b"\0")[1] == added[1].split(b" ")[0] + b" closed"
    assert next_event(watch) == (b"above", False, "closed")
    link.send(b"CMSG presence/remove\x007 ended")
    assert next_event(watch) == (b"below", False, "ended")


def test_a_process_that_begins_its_list_again_over_a_link_is_not_heard(world: World) -> None:
    hub: Hub = world.hub("top")
    link = world.link("top")
    link.send(b"CMSG presence/begin\0", b"CMSG presence/begin\0id")
    link.send(b"CMSG presence/begin\0other")
    key_of_link(link)
    assert hub.statistics().dropped == {Reason.MALFORMED_ID: 2}


# -- rules that forbid, and allow again --------------------------------------------------------------------


def test_what_the_rules_forbid_for_a_while_is_there_again_afterwards(world: World) -> None:
    hub: Hub = world.hub("top")
    owner, watcher = world.peer("top"), world.client("top")
    owner.send(b"CMSG presence/on\0t\0a/1\0info", b"CMSG presence/watch\0a/")
    assert owner.receive() == b"CMSG presence/on\0t\0"
    begun = [owner.receive() for _ in range(3)]
    watch = watcher.present(b"b/")
    held = watcher.presence(b"b/1")
    assert next_event(watch) == (b"b/1", True, "")
    for _ in range(2):
        hub.reconfigure(authorize=lambda who, verb, key: not key.startswith((b"a/", b"b/")))
        assert hub.reviewed(PATIENCE)
        assert next_event(watch) == (b"b/1", False, "refused")
        assert owner.receive() == b"CMSG presence/on\0\0publishing refused\0a/1"
        assert owner.receive() == b"CMSG presence/complete\0subscription refused\0a/"
        hub.reconfigure(authorize=lambda who, verb, key: True)
        assert hub.reviewed(PATIENCE)
        assert next_event(watch) == (b"b/1", True, "")
        becomes(watch, watcher, True)
        told = [owner.receive()]
        while not told[-1].startswith(b"CMSG presence/complete\0tree"):
            told.append(owner.receive())
        assert b"CMSG presence/on\0\0\0a/1" in told
        assert begun[0] in told
        assert any(packet.startswith(b"CMSG presence/add\0") and packet.endswith(b"\0a/1\0info") for packet in told)
    with watcher.present(b"a/") as late:
        assert seen(late) == [b"a/1"]
    hub.reconfigure(authorize=lambda who, verb, key: False)
    assert hub.reviewed(PATIENCE)
    owner.send(b"CMSG presence/off\0a/1", b"CMSG presence/unwatch\0a/")
    owner.barrier()
    watch.close()
    held.leave()
    watcher.sync()
    assert hub.context.quotas.account(os.getuid()).patterns == 0
    assert not len(hub.tree.presences)


def test_what_the_rules_forbid_beyond_a_link_is_there_again_afterwards(world: World) -> None:
    hub: Hub = world.hub("top", relays=[RELAY])
    watch = world.client("top").present(b"")
    link = world.link("top", RELAY)
    who = key_of_link(link) + b"/!/cred/1/2/3"
    link.send(b"CMSG presence/begin\0id", b"CMSG presence/add\x001 %b\0one\0" % who)
    assert next_event(watch) == (b"one", True, "")
    hub.reconfigure(relays=[RELAY], authorize=lambda who, verb, key: who.uid != RELAY)
    assert hub.reviewed(PATIENCE)
    assert next_event(watch) == (b"one", False, "refused")
    link.send(b"CMSG presence/add\x002 %b\0two\0" % who, b"CMSG presence/add\x003 %b\0three\0" % who)
    link.send(b"CMSG presence/remove\x003 closed")
    key_of_link(link)
    assert hub.context.quotas.account(RELAY).patterns == 2
    hub.reconfigure(relays=[RELAY])
    assert hub.reviewed(PATIENCE)
    assert {next_event(watch)[:2] for _ in range(2)} == {(b"one", True), (b"two", True)}
    link.close()
    eventually(lambda: not hub.context.quotas.account(RELAY).patterns)


def test_what_the_rules_forbid_over_a_reconnection_is_there_again_afterwards(world: World) -> None:
    world.hub("top")
    client, other = world.client("top", reconnect=True), world.client("top", reconnect=True)
    held, watch = client.presence(b"a"), other.present(b"a")
    assert seen(watch) == [b"a"]
    world.hubs["top"].stop()
    hub = world.hub("top", authorize=lambda who, verb, key: False)
    eventually(lambda: client.sync() and other.sync() and not watch.members)
    hub.reconfigure()
    eventually(lambda: client.sync() and other.sync() and seen(watch) == [b"a"])
    hub.reconfigure(authorize=lambda who, verb, key: key != b"b")
    with pytest.raises(RefusedError):
        client.presence(b"b")
    hub.reconfigure()
    assert hub.reviewed(PATIENCE)
    assert not any(entry.key == b"b" for entry in hub.tree.presences._entries.values())
    held.leave()
