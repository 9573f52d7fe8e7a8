"""``hub/sync`` of the whole tree: which hubs it waits for. And ``whoami``, which waits for a prefix."""

from __future__ import annotations

import gevent
import msgspec
import pytest
from support import PATIENCE, WHOAMI, FakeHub, Peer, eventually
from worlds import FAST, FEATURES, RELAY, STRANGER, World, greet_relay, key_of, receive_until, settle

from sbuslib.tree.child_link import ChildLink
from sbuslib.tree.interest import InterestCursor

TENANT = 12_345


def test_a_question_while_the_link_joins_comes_after_what_is_kept(world: World) -> None:
    with FakeHub(world.address("top")) as master:
        world.hub("left", limits=msgspec.structs.replace(FAST, prefix_wait=0.001))
        relay = world.relay("left", "top", wait=False)
        client = world.client("left")
        link = master.accept()
        eventually(lambda: relay.state == "joining")
        client.publish(b"k", b"kept")
        asked = gevent.spawn(client.sync, "tree")
        world.client("left").sync()  # so that the question has come
        greet_relay(link)
        link.send(b"CMSG interest/add\0k")
        relay.wait(PATIENCE)
        link.send(b"CMSG interest/complete")
        came = []
        while not (packet := link.receive()).startswith(b"CMSG hub/sync\0t"):
            assert packet, "disconnected"
            came.append(packet)  # perhaps also that the relay knows what is wanted: it looks now and then
        assert b"MSG k\0kept" in came
        link.send(b"CMSG hub/sync\0%b\0tree" % packet.split(b"\0")[1])
        assert asked.get(timeout=PATIENCE) == "tree"


@pytest.mark.parametrize(("listens", "answer"), [(True, "tree"), (False, "partial")])
def test_a_question_before_the_first_connection_waits_for_it(world: World, listens: bool, answer: str) -> None:
    if listens:
        world.hub("top")
    hub = world.hub("left")
    client = world.client("left")
    world.relay("left", "top", wait=False)
    assert hub.tree.parent is not None
    assert not hub.tree.parent.settled, "it has not dialled yet"
    assert client.sync("tree") == answer
    assert not hub.tree.questions._rounds


def test_the_hub_above_is_answered_before_this_hub_has_joined(world: World) -> None:
    with FakeHub(world.address("top")) as master:
        world.hub("left")
        relay = world.relay("left", "top", wait=False)
        link = master.accept()
        link.send(FEATURES, WHOAMI + b"\0!/cred/1/2/3")
        receive_until(link, b"CMSG interest/on\0")
        link.send(b"CMSG interest/on\0announce")
        root = receive_until(link, b"CMSG hub/sync\0root\0")
        link.send(b"CMSG interest/sync\0t")
        assert receive_until(link, b"CMSG interest/sync\0") == b"CMSG interest/sync\0t\0tree"
        assert relay.state == "joining"
        link.send(FEATURES, root)
        relay.wait(PATIENCE)


def test_questions_while_hubs_join_leave_no_link_partial(world: World) -> None:
    world.hub("top")
    client = world.client("top")
    names = [f"below{n}" for n in range(5)]
    for parent, name in zip(["top", *names], names, strict=False):
        world.hub(name)
        world.relay(name, parent, wait=False)
        asked = [gevent.spawn(client.sync, "tree") for _ in range(3)]
        assert [one.get(timeout=PATIENCE) for one in asked] == ["tree"] * 3
    settle(client, *map(world.client, names))


def test_a_link_that_lost_a_question_is_asked_again(world: World) -> None:
    top = world.hub("top", limits=msgspec.structs.replace(FAST, sync_wait=0.05))
    slave = world.link("top")
    client = world.client("top")
    assert client.sync("tree") == "partial"
    receive_until(slave, b"CMSG interest/sync\0")  # which is never answered
    assert client.sync("tree") == "partial"
    again = receive_until(slave, b"CMSG interest/sync\0")
    slave.send(again + b"\0tree")
    slave.barrier()
    (link,) = top.tree.links.values()
    assert (link.lagging, link.questions.lag) == (False, 0), "nobody counts on an answer to the first any more"
    asked = gevent.spawn(client.sync, "tree")
    slave.send(receive_until(slave, b"CMSG interest/sync\0") + b"\0tree")
    assert asked.get(timeout=PATIENCE) == "tree"


def test_a_link_that_never_reads_has_one_question_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    top = world.hub("top", limits=msgspec.structs.replace(FAST, sync_wait=0.01))
    world.link("top")
    (link,) = top.tree.links.values()
    client = world.client("top")
    monkeypatch.setattr(ChildLink, "room", 0)
    for _ in range(20):
        assert client.sync("tree") == "partial"
    assert link.questions.waiting == 1


def questions(link: Peer) -> list[bytes]:
    return [packet for packet in link.pending() if packet.startswith(b"CMSG interest/sync\0")]


def test_a_link_that_was_not_asked_yet_does_not_count_as_late(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.hub("top", limits=msgspec.structs.replace(FAST, sync_wait=0.05))
    silent = world.link("top")
    client = world.client("top")
    (link,) = world.hubs["top"].tree.links.values()
    with monkeypatch.context() as patched:
        patched.setattr(InterestCursor, "take", lambda cursor, count: ([], False))  # as if there were ever more
        client.subscribe(b"k")
        assert client.sync("tree") == "partial"
    assert (link.lagging, link.questions.lag) == (False, 0)
    assert questions(silent) == []


def test_links_that_were_not_waited_for_are_told_up_and_down_the_tree(world: World) -> None:
    world.chain("top", "left")
    world.hub("right", relays=[TENANT])
    world.relay("right", "top")
    everywhere = [world.client(name) for name in ("top", "left", "right")]
    assert [(client.sync("tree"), client.sync("tree").trusted_only) for client in everywhere] == 3 * [("tree", False)]
    world.hub("tenant")
    world.uids["right"] = TENANT
    world.relay("tenant", "right")
    world.uids.clear()
    everywhere.append(world.client("tenant"))
    assert [(client.sync("tree"), client.sync("tree").trusted_only) for client in everywhere] == 4 * [("tree", True)]


def test_questions_of_clients_that_have_gone_are_forgotten(world: World, stranger: Peer) -> None:
    hub = world.hubs["top"]
    world.link("top")  # questions wait for its answer
    asking = world.link("top", RELAY)
    for peer in (asking, stranger):
        peer.send(b"CMSG hub/sync\0first\0tree", b"CMSG hub/sync\0second\0tree")
        peer.barrier()
    waiting = hub.tree.questions._requests
    assert [len(replies) for user in (RELAY, STRANGER) for replies in waiting[user].values()] == [1, 1]
    asking.close()
    stranger.close()
    eventually(lambda: not any(waiting.values()))


def test_a_sync_in_an_outage_is_partial(world: World) -> None:
    world.chain("top", "left")
    client = world.client("left")
    assert client.sync("tree") == "tree"
    world.hubs["top"].stop(0)
    eventually(lambda: world.relays["left"].state == "outage")
    assert client.sync("tree") == "partial"
    assert client.sync() == "local"


@pytest.mark.parametrize("question", [WHOAMI, b"CMSG hub/sync\0t\0root"])
def test_a_client_with_too_many_open_questions_is_disconnected(world: World, question: bytes) -> None:
    with FakeHub(world.address("top")) as master:
        hub = world.hub("left", limits=msgspec.structs.replace(FAST, queued_answers=3, prefix_wait=60.0))
        world.relay("left", "top", wait=False)
        master.accept()
        asker, other = world.peer("left"), world.peer("left")
        asker.send(*[question] * 3)
        other.send(question)
        eventually(lambda: sorted(hub.tree.questions._open.values()) == [1, 3])
        asker.send(question)
        assert asker.is_disconnected()
        assert list(hub.tree.questions._open.values()) == [1], "the other is waited for"


def test_of_a_question_that_was_answered_nothing_is_left(world: World) -> None:
    world.chain("top", "left")
    client = world.client("left")
    assert client.sync("tree") == "tree"
    assert not world.hubs["left"].tree.questions._open


def test_whoami_waits_for_the_first_prefix(world: World) -> None:
    world.hub("left")
    world.relay("left", "top", wait=False)
    peer = world.peer("left")
    peer.send(b"CMSG hub/features", WHOAMI)
    assert peer.receive().startswith(b"CMSG hub/features\0")
    world.hub("top")
    assert peer.receive().count(b"!/cred/") == 3, "the question's own, and two credentials"


def test_whoami_waits_no_longer_than_prefix_wait(world: World) -> None:
    world.hub("left", limits=msgspec.structs.replace(FAST, prefix_wait=0.01))
    world.relay("left", "top", wait=False)
    assert key_of(world.client("left")).count(b"!/cred/") == 1
