"""Monitors receive what others are sent, and are no addressees: on one hub, and through a tree."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
from support import PATIENCE, Peer, eventually
from worlds import OTHER, RELAY, World, received, settle

from sbuslib import Client, Hub
from sbuslib.errors import NoServerError
from sbuslib.keys.policy import Policy, Rule, User
from sbuslib.wire.control import Withdrawn


@pytest.mark.promise("presence.md", "Monitors are no addressees")
@pytest.mark.parametrize("pattern", [b"", b"room/", b"room/*", b"room/1"])
def test_a_monitor_receives_and_is_no_addressee_anywhere_in_the_tree(world: World, pattern: bytes) -> None:
    world.chain("top", "middle", "low")
    clients = {name: world.client(name) for name in world.hubs}
    settle(*clients.values())
    for name, other in itertools.product(clients, clients):
        monitor = world.client(name, monitor=True)
        monitor.subscribe(pattern)
        settle(monitor)
        assert clients[other].hub.is_wanted(b"room/1") is False, (name, other)
        clients[other].publish(b"room/1", other.encode())
        settle(clients[other])
        assert monitor.receive(timeout=PATIENCE).payload == other.encode()

        # An addressee beside it counts, wherever it is, and for as long as it is there.
        subscription = clients[name].subscribe(b"room/1")
        settle(clients[name])
        assert clients[other].hub.is_wanted(b"room/1") is True
        clients[other].publish(b"room/1", b"2")
        settle(clients[other], clients[name])
        assert [message.payload for message in received(monitor)] == [b"2"]
        subscription.unsubscribe()
        settle(clients[name])
        received(clients[name])
        assert clients[other].hub.is_wanted(b"room/1") is False
        monitor.close()
        settle(*clients.values())


def test_a_question_that_only_monitors_receive_ends_at_once(world: World) -> None:
    world.chain("top", "low")
    monitor, asker = world.client("top", monitor=True), world.client("low")
    monitor.subscribe(b"")
    settle(monitor, asker)
    with pytest.raises(NoServerError):
        asker.request(b"service", b"?", timeout=PATIENCE)
    assert b"service" in {message.key for message in received(monitor)}


def test_a_monitor_above_is_sent_what_a_tenant_publishes(world: World) -> None:
    world.hub("top", relays=[RELAY])
    world.hub("low")
    world.uids["top"] = RELAY
    relay = world.relay("low", "top")
    world.uids.clear()
    publisher, monitor = world.client("low"), world.client("top", monitor=True)
    publisher.publish(b"room/1", b"nobody")
    eventually(lambda: relay.statistics().pruned == 1)
    monitor.subscribe(b"room/")
    settle(monitor, publisher)
    publisher.publish(b"room/1", b"1")
    assert monitor.receive(timeout=PATIENCE).payload == b"1"


def test_a_link_gets_of_what_monitors_want_as_much_as_its_user_may_read(world: World) -> None:
    everything = Rule(users=frozenset({os.getuid()}), publish=(b"",), subscribe=(b"",))
    some = Rule(users=frozenset({OTHER}), publish=(b"",), subscribe=(b"open/",))
    rules = Policy((everything, some), lambda uid: User(b"", frozenset()), b"/")
    world.hub("top", relays=[OTHER], authorize=rules)
    world.hub("low")
    world.uids["top"] = OTHER
    world.relay("low", "top", import_=[b"open/", b"shut/"])
    world.uids.clear()
    monitor, publisher = world.client("low", monitor=True), world.client("top")
    monitor.subscribe(b"")
    settle(monitor)
    for key in (b"open/1", b"shut/1", b"else/1"):
        publisher.publish(key)
    settle(publisher, monitor)
    assert [message.key for message in received(monitor)] == [b"open/1"]
    assert publisher.hub.is_wanted(b"open/1") is False


def test_rules_end_what_a_monitor_may_no_longer_read(world: World) -> None:
    hub: Hub = world.hub("top")
    told: list[Any] = []
    monitor = world.client("top", monitor=True, on_notice=told.append)
    monitor.subscribe(b"room/1", b"hall/1")
    hub.reconfigure(authorize=lambda who, verb, key: key != b"room/1")
    assert hub.reviewed(PATIENCE)
    monitor.sync()
    withdrawn = [notice.patterns for notice in told if isinstance(notice, Withdrawn)]  # among events of the hub
    assert withdrawn == [(b"room/1",)]
    world.client("top").publish(b"hall/1", b"2")
    assert monitor.receive(timeout=PATIENCE).key == b"hall/1"


def test_a_client_is_a_monitor_from_its_first_pattern_on_or_never(world: World) -> None:
    hub = world.hub("top")
    client, asker = world.peer("top"), world.client("top")
    client.send(b"SUB a", b"CMSG monitor/on", b"SUB b")
    client.barrier()
    assert (asker.hub.is_wanted(b"a"), asker.hub.is_wanted(b"b")) == (True, True)
    other = world.peer("top")
    other.send(b"CMSG monitor/on", b"SUB c", b"SUB c", b"UNSUB c")
    other.barrier()
    assert asker.hub.is_wanted(b"c") is False
    asker.publish(b"c", b"1")
    assert other.receive() == b"MSG c\x001"
    other.send(b"UNSUB c")
    other.barrier()
    assert hub.statistics().patterns == 2
    with Peer(world.address("top")) as forger:  # the mark is a word between hubs
        forger.send(b"SUB !/monitor/a")
        assert forger.receive() == b""


def test_a_monitor_stays_one_where_a_hub_takes_over(world: World) -> None:
    before: Hub = world.hub("top")
    monitor, asker = world.client("top", monitor=True), world.client("top")
    monitor.subscribe(b"room/")
    record = [connection.record() for connection in before.clients.connections.values()]
    assert [(one.monitor, [*one.patterns]) for one in record] == [(True, [b"!/monitor/room/"]), (False, [])]
    assert asker.hub.is_wanted(b"room/1") is False


def test_one_that_reconnects_is_a_monitor_again(world: World) -> None:
    world.hub("top").stop()
    world.hub("top")
    with Client(world.address("top"), monitor=True, reconnect=True) as monitor:
        monitor.subscribe(b"room/")
        world.hubs["top"].stop()
        world.hub("top")
        asker = world.client("top")
        monitor.sync()
        eventually(lambda: world.hubs["top"].tree.has_settled)  # until then it does not know what others want
        assert asker.hub.is_wanted(b"room/1") is False
        asker.publish(b"room/1")
        assert monitor.receive(timeout=PATIENCE).key == b"room/1"
