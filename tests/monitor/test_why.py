"""Why a message arrives, or does not: fourteen troubles, each named in the first three lines; and who is told what."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import msgspec
import pytest
from support import FakeHub, HubThread, Peer, eventually
from worlds import FAST, OTHER, RELAY, STRANGER, World, settle

from sbuslib import Hub
from sbuslib.core.explainer import _Question, _Search
from sbuslib.core.outbound import Outbound
from sbuslib.keys.policy import Policy, Rule
from sbuslib.monitor.why import Way, follow
from sbuslib.secrets import OVERFLOW_ID
from sbuslib.statistics import ExplainedLink, Explanation, LinkStatistics, decode_explanation

KEY = "room/1/temp"


def why(world: World, name: str, key: str = KEY, **parties: Any) -> Way:
    """What is found, asked from another thread than that of the hubs."""
    hubs = [hub for hub in world.hubs.values() if hub.started and hub.limits.settle < 1]
    eventually(lambda: all(hub.tree.has_settled for hub in hubs))
    way: Way = gevent.get_hub().threadpool.apply(lambda: follow(world.address(name), key, **parties))
    if os.environ.get("SHOW_WHY"):
        print("\n".join(["-----", *way.findings]))
    return way


# -- Fourteen troubles


def a_wrong_pattern(world: World) -> Way:
    world.hub("hub")
    world.client("hub").subscribe(b"room/*")
    return why(world, "hub")


def a_rule(world: World) -> Way:
    rules = [Rule(users=frozenset({OTHER}), publish=(b"hall/",), label="/etc/sbus.toml:3")]
    world.hub("hub", authorize=Policy(rules, lambda uid: (b"bob", frozenset()), b"/"))
    return why(world, "hub", sender=OTHER)


def a_full_queue(world: World) -> Way:
    hub = world.hub("hub", limits=msgspec.structs.replace(FAST, queued_packets=4))
    slow = world.peer("hub")
    slow.subscribe(b"room/")
    while not hub.statistics().lost:
        hub.publish(KEY, bytes(100_000))
    return why(world, "hub")


def a_held_publisher(world: World) -> Way:
    world.hub("hub")
    slow, busy = world.peer("hub"), world.peer("hub")
    slow.send(b"CMSG blocking/soft/block")
    slow.subscribe(b"room/")
    for _ in range(20):
        busy.publish(KEY.encode(), bytes(100_000))
        gevent.sleep(0)
    return why(world, "hub")


def an_export_list(world: World) -> Way:
    for name in ("top", "low"):
        world.hub(name)
    world.client("top").subscribe(b"room/")
    world.relay("low", "top", export=[b"hall/"])
    settle(world.client("low"))
    return why(world, "low")


def a_pruned_key(world: World) -> Way:
    world.hub("top", trusted=[], relays=[RELAY])
    world.uids["top"] = RELAY
    world.hub("low")
    world.relay("low", "top")
    client = world.client("low")
    client.publish(KEY, b"")
    eventually(lambda: world.relays["low"].statistics().pruned)
    return why(world, "low")


def a_link_that_is_away(world: World) -> Way:
    world.chain("top", "low")
    world.client("top").subscribe(b"room/")
    settle(world.client("low"))
    world.hubs["top"].stop(0)
    eventually(lambda: world.relays["low"].statistics().state == "outage")
    return why(world, "low")


def a_tenant(world: World) -> Way:
    rules = [Rule(users=frozenset({os.getuid()}), publish=(b"",), subscribe=(b"",))]
    rules += [
        Rule(users=frozenset({RELAY}), publish=(b"tenants/",), subscribe=(b"tenants/",), label="/etc/sbus.toml:9")
    ]
    world.hub("top", authorize=Policy(rules, lambda uid: (b"", frozenset()), b"/"), relays=[RELAY])
    world.uids["top"] = RELAY
    world.hub("low")
    world.relay("low", "top")
    world.uids.clear()
    world.client("low").subscribe(b"room/")
    return why(world, "top")


def a_monitor_only(world: World) -> Way:
    world.hub("hub")
    world.client("hub", monitor=True).subscribe(b"room/")
    return why(world, "hub")


def a_secret_of_another(world: World) -> Way:
    world.hub("hub")
    world.peer_of("hub", OTHER)
    return why(world, "hub", f"!/cred//{STRANGER}//news", receiver=OTHER)


def a_secret_that_nobody_can_read(world: World) -> Way:
    world.hub("hub")
    return why(world, "hub", f"!/cred//0{STRANGER}//news")


def a_user_without_a_name(world: World) -> Way:
    rules = [Rule(everybody=True, publish=(b"tenants/%u/",), label="/etc/sbus.toml:3")]
    world.hub("hub", authorize=Policy(rules, lambda uid: (b"", frozenset()), b"/"))
    return why(world, "hub", "tenants/bob/x", sender=OTHER)


def a_hub_just_started(world: World) -> Way:
    world.hub("hub", limits=msgspec.structs.replace(FAST, settle=60.0))
    return why(world, "hub")


def a_name_in_another_separator(world: World) -> Way:
    world.hub("hub", separator=".")
    world.client("hub").subscribe(b"room.*.temp")
    return why(world, "hub")


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (a_wrong_pattern, "nearly: room/* of user"),
        (a_rule, 'no rule lets this user publish this; it may publish "hall/" (/etc/sbus.toml:3)'),
        (a_full_queue, "it would be lost (overflow) at user"),
        (a_held_publisher, "holds 1 of its publishers back"),
        (an_export_list, "the export list of this hub leaves it out"),
        (a_pruned_key, "(pruned)"),
        (a_link_that_is_away, "is away (outage) since"),
        (a_tenant, "rules do not let that user read it"),
        (a_monitor_only, "only monitors do"),
        (a_secret_of_another, "may not read it: secret pattern of another"),
        (a_secret_that_nobody_can_read, "no client can have the ids in the key"),
        (a_user_without_a_name, "this user has no name, so patterns with %u give it nothing"),
        (a_hub_just_started, "the hub has just started"),
        (a_name_in_another_separator, "the key is separated in another way"),
    ],
)
def test_the_trouble_is_in_the_first_three_lines(world: World, trouble: Callable[[World], Way], words: str) -> None:
    way = trouble(world)
    assert not way.arrives
    assert words in "\n".join(way.findings[:3]), way.findings


def test_a_secret_of_a_process_that_is_gone_is_said_to_be(folder: str) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with HubThread(f"{folder}/bus") as bus:
        gone, alive = (follow(bus.address, f"!/cred///{pid}/news") for pid in (child.pid, os.getpid()))
    assert f"it is secret: only process {child.pid} might subscribe, and it is gone" in gone.findings
    assert "it is secret: only clients with the ids that stand in the key may subscribe" in alive.findings


def test_a_message_that_arrives_is_said_to(world: World) -> None:
    world.chain("top", "middle", "low")
    clients = [world.client(name) for name in ("top", "low", "middle")]
    for client in clients[:2]:
        client.subscribe(b"room/")
    settle(*clients)
    for name in ("top", "middle", "low"):
        way = why(world, name)
        assert way.arrives, way.findings
        assert way.findings[0] == "2 clients would receive it: 2 sent"
        assert len(way.hops) == 3


def test_a_link_comes_before_all_but_the_nearest_of_the_patterns_that_nearly_match(world: World) -> None:
    for name in ("top", "low"):
        world.hub(name)
    world.client("low").subscribe(b"room/2/temp", b"room/1/hum", b"room/1/temperature")
    world.relay("low", "top", export=[b"hall/"])
    found = why(world, "low").findings
    assert found[1].startswith("nearly: room/1/temperature")
    assert "export list" in found[2]


def test_an_import_list_below_is_found(world: World) -> None:
    for name in ("top", "low"):
        world.hub(name)
    world.client("low").subscribe(b"room/")
    world.relay("low", "top", import_=[b"hall/"])
    settle(world.client("top"))
    assert "the import list of this hub leaves it out" in why(world, "top").findings[0]


def test_who_was_asked_about_is_found_wherever_it_is(world: World) -> None:
    world.chain("top", "low")
    client = world.client("low")
    client.subscribe(b"room.1.temp")
    settle(client)
    way = why(world, "top", receiver=client.hub.whoami())
    assert not way.arrives
    assert "receives it" in way.findings[0]
    client.subscribe(b"room/1/temp")
    settle(client)
    assert why(world, "top", receiver=client.hub.whoami()).arrives
    nobody = why(world, "top", receiver=OTHER)
    assert nobody.findings[0] == f"there is no client of user {OTHER} here"


# -- Who is told what


def answer(peer: Peer, *parts: bytes) -> bytes:
    """What a raw client is answered."""
    peer.send(b"\0".join([b"CMSG hub/why", b"t", *parts]))
    while not (packet := peer.receive()).startswith(b"CMSG hub/why\0"):
        assert packet, "disconnected"
    return packet.removeprefix(b"CMSG hub/why\0t\0")


def test_a_stranger_learns_nothing_of_others_but_what_is_wanted(world: World) -> None:
    """The answer is the same to the byte, whoever else is there and whatever they hold."""
    hub = world.hub("hub", mode=0o777)
    stranger, victim = world.peer_of("hub", STRANGER), world.peer_of("hub", OTHER)
    key = b"!/cred/%d/%d/%d" % (os.getgid(), OTHER, 1_001)
    asked = [
        (b"room/1",),
        (b"room/1", b"%d" % OTHER),
        (b"room/1", key),
        (b"room/1", b"parent"),
        (b"room/1", b"", b"%d" % OTHER),
        (b"room/1", b"", key),
        (key + b"/x",),
        (key + b"/x", b"", key),
        (b"a/!/b",),
    ]
    eventually(lambda: hub.tree.has_settled)  # until then it does not know what others want
    before = [answer(stranger, *parts) for parts in asked]
    monitor = world.peer_of("hub", OTHER)
    monitor.send(b"CMSG monitor/on")
    monitor.subscribe(b"room/")
    victim.subscribe(b"room.1", b"room/*/x")
    tap = hub.tap()
    world.hub("low")
    world.relay("low", "hub")
    assert [answer(stranger, *parts) for parts in asked] == before

    # Whether a key is wanted hub/wanted tells anybody who may publish it, and nothing more is told.
    victim.subscribe(b"room/", key + b"/")
    for parts, was in zip(asked, before, strict=True):
        assert answer(stranger, *parts) in (was, was.replace(b'"wanted":"no"', b'"wanted":"yes"'))
    tap.unsubscribe()
    victim.close()
    eventually(lambda: len(hub.clients.connections) == 3)
    gone = [answer(stranger, *parts).replace(b'"yes"', b'"no"') for parts in asked]
    assert gone == before, "nor that a client has gone"


def test_a_user_is_told_of_its_own_clients(world: World) -> None:
    world.hub("hub", mode=0o777)
    asker, own = world.peer_of("hub", STRANGER), world.peer_of("hub", STRANGER)
    own.subscribe(b"room/1/*")
    told = decode_explanation(answer(asker, b"room/1/temp"), "")
    assert [one.pattern for one in told.receivers] == ["room/1/*"]
    assert [one.pattern for one in decode_explanation(answer(asker, b"room/1"), "").near] == ["room/1/*"]


def test_an_answer_to_a_stranger_takes_no_larger_send_buffer(world: World) -> None:
    hub = world.hub("hub", mode=0o777)
    asker = world.peer_of("hub", STRANGER)
    for number in range(10):
        world.peer_of("hub", STRANGER).subscribe(b"room/" + b"\xe2\x82\xac" * (600 + number) + b"*", b"room/")
    long = answer(asker, b"room/" + b"\xe2\x82\xac" * 700)
    told = decode_explanation(long, "")
    assert (told.kinds, told.receivers) == ({"client": 10}, ())
    assert len(long) < hub.limits.idle_send_buffer
    assert not any(one.outbound.grown for one in hub.clients.connections.values())


def test_an_unknown_user_has_no_clients_but_itself(world: World) -> None:
    """What the kernel cannot name may be anybody."""
    world.hub("hub", mode=0o777)
    asker, other = world.peer_of("hub", OVERFLOW_ID), world.peer_of("hub", OVERFLOW_ID)
    other.subscribe(b"room/")
    assert decode_explanation(answer(asker, b"room/1"), "").kinds == {}
    assert decode_explanation(answer(asker, b"room/1", b"", b"%d" % OVERFLOW_ID), "").kinds == {}


# -- Bounds, and what goes wrong in the middle


@pytest.mark.parametrize(
    "payload",
    [
        b"t" * 65 + b"\0k",
        b"t\0" + b"k" * 4_097,
        b"t\0" + b"/" * 128,
        b"t\0k\0somebody",
        b"t\0k\0\0" + b"!/cred/1/2/3/" * 200,
        b"t\0k\0" + b"9" * 11,
        b"t\0k\0%d" % 2**32,
        b"t\0k\0\0\0",
    ],
)
def test_what_is_no_question_is_a_violation(world: World, payload: bytes) -> None:
    world.hub("hub")
    peer = world.peer("hub")
    peer.send(b"CMSG hub/why\0" + payload)
    assert peer.is_disconnected()


def test_questions_of_a_user_wait_for_each_other_and_not_without_bound(world: World) -> None:
    hub = world.hub("hub")
    peer = world.peer("hub")
    peer.send(*[b"CMSG hub/why\0%d\0k" % number for number in range(40)])
    found = [peer.receive() for _ in range(40)]
    refused = [packet for packet in found if packet.endswith(b"\0")]
    assert 0 < len(refused) <= 24, "these are to be asked again"
    assert hub.reporter.explainer._questions == {}


def test_who_asks_between_the_last_answer_and_the_end_of_the_work_is_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = world.hub("hub")
    peer, explainer, jobs = world.peer("hub"), hub.reporter.explainer, list[Any]()
    peer.barrier()
    (client,) = peers_of(hub)
    monkeypatch.setattr(hub.context.running.work, "add", lambda user, steps, on_end: jobs.append((steps, on_end)))
    explainer.ask(client, b"t1", b"k")
    steps, on_end = jobs[0]
    while any(explainer._questions.values()):
        next(steps)
    explainer.ask(client, b"t2", b"k")
    assert len(jobs) == 1, "two would each take the other's question"
    assert list(steps)
    on_end()
    for token in (b"t1", b"t2"):
        assert peer.receive().startswith(b"CMSG hub/why\0%b\0{" % token)
    assert explainer._questions == {}


def test_what_waits_when_another_process_takes_over_is_to_be_asked_again(world: World) -> None:
    hub = world.hub("hub")
    peer, explainer = world.peer("hub"), hub.reporter.explainer
    peer.barrier()
    for token in (b"t1", b"t2"):
        explainer.ask(peers_of(hub)[0], token, b"room/1")
    hub.replacement._end_questions()
    assert [peer.receive() for _ in range(2)] == [b"CMSG hub/why\0t1\0", b"CMSG hub/why\0t2\0"]
    eventually(lambda: not explainer._questions)
    assert answer(peer, b"room/1"), "a hub that was not taken over goes on"


def test_of_many_receivers_sums_are_told_and_the_ten_worst(world: World) -> None:
    hub = world.hub("hub", limits=msgspec.structs.replace(FAST, queued_packets=4))
    for number in range(150):
        world.peer("hub").subscribe(b"room/%d" % number, b"room/*")
    slow = [world.peer("hub") for _ in range(3)]
    for peer in slow:
        peer.subscribe(b"busy/", b"room/*")
    for _ in range(40):
        hub.publish("busy/1", bytes(100_000))
    told = world.client("hub").hub.why("room/x")
    assert (told.kinds, told.outcomes) == ({"client": 153}, {"sent": 150, "lost": 3})
    assert [one.outcome for one in told.receivers] == [*["lost"] * 3, *["sent"] * 7]
    assert told.lost == hub.statistics().lost


def test_who_leaves_in_the_middle_is_not_told_of(world: World) -> None:
    """Clients, the asker, and a relay."""
    hub = world.hub("hub")
    world.hub("low")
    world.client("low").subscribe(b"room/")
    relay = world.relay("low", "hub")
    peers = [world.peer("hub") for _ in range(300)]
    for peer in peers:
        peer.subscribe(b"room/")
    asker = hub.clients.connections[next(iter(hub.clients.connections))].outbound
    steps = _Search(hub.context, hub.clients, hub.tree, _Question(peers_of(hub)[-1], b"t", b"room/1")).explain()
    next(steps)
    relay.stop()
    for peer in peers:
        peer.close()
    eventually(lambda: not hub.clients.connections)

    def finish() -> Iterator[None]:
        told.append((yield from steps))

    told: list[Explanation] = []
    for _ in finish():
        pass
    assert (told[0].receivers, told[0].links) == ((), ())
    assert asker.closed


def peers_of(hub: Hub) -> list[Outbound]:
    return [one.outbound for one in hub.clients.connections.values()]


def test_a_child_that_claims_to_have_parents_leads_nowhere(world: World) -> None:
    hub = world.hub("hub")
    with FakeHub(world.address("fake")) as fake, FakeHub(world.address("victim")) as victim:
        relay = world.link("hub")
        relay.send(b"CMSG interest/address\0" + world.address("fake").encode())
        relay.subscribe(b"room/")
        asking = gevent.spawn(why, world, "hub")
        peer = fake.greet(b"hub/why id=7 path=7,%b" % hub.hub_id)
        while not (packet := peer.receive()).startswith(b"CMSG hub/why\0"):
            assert packet, "disconnected"
        claimed = LinkStatistics(direction="parent", uid=os.getuid(), address=world.address("victim"), state="joined")
        links = tuple(ExplainedLink(link=claimed, carries=True) for _ in range(1_000))
        claims = Explanation(hub_id="7", is_whole=True, is_settled=True, links=links)
        peer.send(b"CMSG hub/why\0" + packet.split(b"\0")[1] + b"\0" + msgspec.json.encode(claims))
        assert len(asking.get().hops) == 2
        victim.socket.settimeout(0)
        with pytest.raises(BlockingIOError):
            victim.accept()


def test_a_hub_that_does_not_answer_or_is_too_old_is_said_to_be_unknown(world: World) -> None:
    hub = world.hub("hub")
    for features in (b"", b"hub/sync id=7 path=7,%b" % hub.hub_id, b"hub/why id=7 path=7,%b" % hub.hub_id):
        with FakeHub(world.address("fake")) as fake:
            relay = world.link("hub")
            relay.send(b"CMSG interest/address\0" + world.address("fake").encode())
            relay.subscribe(b"room/")
            asking = gevent.spawn(why, world, "hub")
            peer = fake.greet(features)
            if b"hub/why" in features:
                while not peer.receive().startswith(b"CMSG hub/why"):
                    pass
                peer.close()
            way = asking.get()
            relay.close()
            eventually(lambda: not hub.tree.links)
        os.unlink(world.address("fake"))
        assert not way.arrives
        assert way.findings[0].startswith(f"unknown beyond {world.address('fake')}: ")
        texts = {
            b"": "another hub listens there",
            b"hub/sync": "it is an older one",
            b"hub/why": "closed the connection",
        }
        assert texts[features.partition(b" ")[0]] in way.findings[0]
