"""An error in a job of a user, a bug of ours, leaves nobody waiting: each part that waits for its end goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gevent
import msgspec
import pytest
from accounting import connection_of
from support import PATIENCE, Connect, FakeHub, MakeHub, eventually
from worlds import FAST, RELAY, World, join, settle

from sbuslib import Limits
from sbuslib.core.client_role import ClientRole
from sbuslib.core.publisher import FEW, Publisher, Undelivered
from sbuslib.core.router import Router
from sbuslib.keys.policy import Policy, Rule
from sbuslib.reasons import Reason
from sbuslib.tree.child_link import ChildLink
from sbuslib.tree.parent_interest import ParentInterest

Break = Callable[[type, str], None]


@pytest.fixture
def break_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[Break]:
    """Have a method raise the next time that it is called. The event loop is told of the error, and of no other."""
    told: list[str] = []
    broken: list[str] = []
    monkeypatch.setattr(gevent.get_hub(), "handle_error", lambda context, kind, value, trace: told.append(str(value)))

    def fail(kind: type, name: str) -> None:
        works = getattr(kind, name)

        def fails(*_: Any, **__: Any) -> Any:
            setattr(kind, name, works)
            broken.append(name)
            raise RuntimeError(name)

        monkeypatch.setattr(kind, name, fails)

    yield fail
    assert told == broken != []


def everybody(*patterns: bytes) -> Policy:
    rule = Rule(everybody=True, publish=(b"",), subscribe=patterns)
    return Policy([rule], lambda uid: (b"", frozenset()), b"/")


def test_a_reload_ends_although_one_client_could_not_be_looked_at(world: World, break_once: Break) -> None:
    hub = world.hub("top")
    peers = [world.peer("top") for _ in range(3)]
    for peer in peers:
        peer.subscribe(b"a", b"b")
    break_once(ClientRole, "review")
    hub.reconfigure(authorize=everybody(b"a"))
    assert hub.reviewed(PATIENCE)
    hub.reconfigure()
    assert hub.reviewed(PATIENCE)


def test_a_link_that_reads_by_a_pattern_beyond_the_limits_is_looked_at(world: World) -> None:
    """It asked for too many, so that it is sent all that it may read."""
    limits = msgspec.structs.replace(FAST, pattern_segments=2, user_patterns=3)
    hub = world.hub("top", relays=[RELAY], limits=limits, authorize=everybody(b"x/", b"a/b/c"))
    link = world.link("top", RELAY)
    link.subscribe(*(b"x/%d" % number for number in range(5)))
    assert b"CMSG interest/widen\0" in link.pending()
    hub.reconfigure(relays=[RELAY], authorize=everybody(b"x/", b"a/b/c", b"d"))
    assert hub.reviewed(PATIENCE)


def test_what_one_link_could_not_be_told_it_is_told_when_it_has_joined_anew(world: World, break_once: Break) -> None:
    """And the others are told at once."""
    for name in ("top", "left", "right"):
        world.hub(name)
    relays = [world.relay(name, "top") for name in ("left", "right")]
    client, *below = [world.client(name) for name in ("top", "left", "right")]
    break_once(ChildLink, "announce")
    for pattern in (b"a", b"b"):
        client.subscribe(pattern)
    eventually(lambda: sorted((one.state, one.epoch) for one in relays) == [("joined", 1), ("joined", 2)])
    for one in below:
        settle(client, one)
        one.publish(b"a", one.hub.whoami())
        one.publish(b"b", one.hub.whoami())
    assert sorted(client.receive(timeout=PATIENCE).key for _ in range(4)) == [b"a", b"a", b"b", b"b"]


def test_patterns_of_clients_that_left_are_forgotten_although_one_could_not_be(
    world: World, monkeypatch: pytest.MonkeyPatch, break_once: Break
) -> None:
    hub = world.hub("top")
    clients = [world.peer("top") for _ in range(3)]
    for number, client in enumerate(clients):
        client.subscribe(b"%d/a" % number, b"%d/b" % number)
        client.barrier()
    monkeypatch.setattr("sbuslib.core.recurring_job.ERROR_PAUSE", 0.001)
    break_once(Router, "forget_some")
    for client in clients:
        client.close()
    eventually(lambda: not hub.context.router.pattern_count())


def test_the_connection_of_a_publisher_that_left_is_given_back_although_its_rest_could_not_be_handed_on(
    make_hub: MakeHub, connect: Connect, monkeypatch: pytest.MonkeyPatch, break_once: Break
) -> None:
    hub = make_hub(limits=Limits(turn_deliveries=2))
    for _ in range(2 * FEW):
        connect().subscribe(b"k")
    publisher = connect()
    outbound = connection_of(hub, publisher).outbound
    connections = outbound.account.connections

    def hand_on_and_leave(publisher: Publisher, messages: Undelivered[Any]) -> bool:
        is_cut = hand_on(publisher, messages)
        hub.context.running.kick_later(outbound, Reason.UNKNOWN_VERB)
        return is_cut

    hand_on = Publisher.hand_on
    monkeypatch.setattr(Publisher, "hand_on", hand_on_and_leave)
    break_once(Publisher, "finish")
    publisher.publish(b"k")
    eventually(lambda: outbound.closed)
    eventually(lambda: outbound.account.connections == connections - 1)


def test_what_waits_for_the_hub_above_goes_up_although_its_old_patterns_could_not_be_taken_back(
    world: World, break_once: Break
) -> None:
    with FakeHub(world.address("top")) as parent:
        break_once(ParentInterest, "settle")
        link = join(world, parent)
        link.send(b"CMSG interest/add\0a")
        hub = world.hubs["left"]
        eventually(lambda: b"a" in hub.context.router.all_patterns())
        hub.publish(b"a", b"x")
        while (packet := link.receive()) != b"MSG a\0x":
            assert packet
