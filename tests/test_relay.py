"""The relay itself: its arguments, its life, its addresses and its settings."""

from __future__ import annotations

from typing import Any

import gevent
import msgspec
import pytest
from support import PATIENCE, PlainDaemon, eventually, python
from worlds import FAST, World, key_of, received, settle

from sbuslib import Hub, Relay
from sbuslib.clients import reconnect
from sbuslib.errors import StateError, UsageError


@pytest.mark.parametrize(
    "options",
    [{"upstream": []}, {"upstream": ""}, {"upstream": "/a", "export": b"x"}, {"upstream": "/a", "import_": [b"\0"]}],
)
def test_bad_arguments_of_a_relay_change_nothing(world: World, options: dict[str, Any]) -> None:
    world.chain("top", "left")
    relay, hub = world.relays["left"], world.hubs["left"]
    for verb in (lambda **options: Relay(hub, **options), relay.reconfigure):
        with pytest.raises(UsageError):
            verb(**options)
    second, early = Relay(hub, world.address("top")), Relay(Hub(world.address("x")), "/a")
    for wrong, text in ((relay, "started already"), (second, "one relay a hub"), (early, "not started")):
        with pytest.raises(StateError, match=text):
            wrong.start()
    client, parent = world.client("left"), world.client("top")
    client.subscribe(b"k")
    settle(client)
    parent.publish(b"k")
    assert client.receive(timeout=PATIENCE).key == b"k"


@pytest.mark.parametrize("relays", ["me", ["@no such group"]])
def test_bad_relays_of_a_hub(world: World, relays: Any) -> None:
    with pytest.raises(UsageError, match=r"relays|group"):
        Hub(world.address("x"), relays=relays)


def test_a_hub_whose_relay_stops_is_a_root(world: World) -> None:
    world.chain("top", "left")
    client = world.client("left")
    world.relays["left"].stop()
    assert world.relays["left"].state == "stopped"
    assert key_of(client).count(b"!/cred/") == 1
    assert client.sync("tree") == "tree"
    assert world.hubs["left"].tree.path == (world.hubs["left"].hub_id,)
    eventually(lambda: not world.hubs["top"].tree.links)
    assert world.hubs["top"].context.router.watch is None
    world.relay("left", "top")
    assert key_of(client).count(b"!/cred/") == 2


FORKED = """
import os, sys
import gevent, gevent.os
from sbuslib import Client, Hub, Limits, Relay
from sbuslib.errors import StateError

folder, fork, master = sys.argv[1:]
limits = Limits(settle=0.001, link_pause=0.001, link_pause_most=0.002)
top, below = Hub(folder + "/top", limits=limits), Hub(folder + "/below", limits=limits)
below.start()
if master == "there":
    top.start()
relay = Relay(below, top.address).start()
if master == "there":
    relay.wait(10)
else:
    gevent.sleep(0.01)  # it has tried, and pauses
child = {"os": os.fork, "gevent": gevent.os.fork}[fork]()
if not child:
    relay.stop()
    for verb in (relay.start, relay.wait):
        try:
            verb()
            print("no error")
        except StateError:
            pass
    with Hub(folder + "/other") if master == "there" else top as hub:
        gevent.sleep(0.02)  # ten times the longest pause
        print(relay.state, len(hub.clients.connections.values()), end=" ", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
if master == "away":
    top.start()
    relay.wait(10)
with Client(top.address) as above, Client(below.address) as client:
    client.subscribe(b"k")
    assert client.sync("tree") == "tree"
    above.publish(b"k", b"1")
    print(client.receive(timeout=10).payload.decode(), relay.epoch)
"""


@pytest.mark.parametrize(("fork", "master"), [("os", "away"), ("gevent", "there")])
def test_a_forked_child_has_no_relay_and_leaves_its_parents_alone(folder: str, fork: str, master: str) -> None:
    code = f"import logging; logging.disable()\n{FORKED}"
    assert python("-c", code, folder, fork, master) == "stopped 0 1 1\n"


def test_waiting_for_a_relay_that_is_stopped_ends(world: World) -> None:
    world.hub("left")
    relay = world.relay("left", "top", wait=False)
    waiting = gevent.spawn(relay.wait)
    gevent.sleep(0)
    relay.stop()
    with pytest.raises(StateError, match="start it first"):
        waiting.get(timeout=PATIENCE)


def test_a_relay_moves_to_another_hub_and_loses_nothing(world: World) -> None:
    for name in ("one", "two", "left"):
        world.hub(name)
    relay = world.relay("left", "one")
    clients = {name: world.client(name) for name in ("one", "two", "left")}
    for name in ("one", "two"):
        clients[name].subscribe(b"k")
    settle(*clients.values())
    for n in range(50):
        clients["left"].publish(b"k", b"%d" % n)
    relay.reconfigure(world.address("two"))
    for n in range(50, 100):
        clients["left"].publish(b"k", b"%d" % n)
    eventually(lambda: world.is_at("two"))
    settle(clients["left"], clients["two"])
    first, second = ([message.payload for message in received(clients[name])] for name in ("one", "two"))
    assert [*first, *second] == [b"%d" % n for n in range(100)]
    assert (relay.statistics().lost, relay.statistics().uncertain) == ({}, 0)

    # It stays at a hub that is still among those that are configured.
    epoch = relay.epoch
    relay.reconfigure([world.address("one"), world.address("two")])
    settle(clients["left"])
    assert (relay.epoch, world.is_at("two")) == (epoch, True)
    world.hubs["two"].stop(0)
    eventually(lambda: world.is_at("one"))


def test_a_relay_stays_where_it_is_until_that_link_ends(world: World) -> None:
    for name in ("second", "left"):
        world.hub(name)
    relay = world.relay("left", "first", "second")
    first = world.hub("first")
    world.hubs["second"].stop(0)
    eventually(lambda: world.is_at("first"))
    world.hub("second")
    settle(world.client("left"))
    assert (relay.epoch, world.is_at("first")) == (2, True)
    first.stop(0)
    eventually(lambda: world.is_at("second"))


PATIENT = msgspec.structs.replace(FAST, link_pause=600.0, link_pause_most=600.0, prefix_wait=0.001)


def test_a_hub_that_is_restarted_again_and_again_is_joined_soon(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbuslib.clients.reconnect.random.uniform", lambda least, most: most)
    monkeypatch.setattr("sbuslib.relay.NOBODY_PAUSE_MOST", 0.001)
    world.hub("top")
    world.hub("left", limits=msgspec.structs.replace(FAST, link_pause=0.001, link_pause_most=600.0))
    relay = world.relay("left", "top")
    tries: list[str] = []
    monkeypatch.setattr(relay.parent, "report", tries.append)
    for epoch in (2, 3, 4):
        world.hubs["top"].stop(0)
        tries.clear()
        eventually(lambda: len(tries) > 12)  # so many pauses, each three times the last, would be minutes
        world.hub("top")
        relay.wait(PATIENCE)
        assert relay.epoch == epoch


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [3, 6, 0, 5, 1, 4, 2]])
def test_a_chain_of_hubs_waits_for_no_long_pause_in_whatever_order_they_start(world: World, order: list[int]) -> None:
    for n in order:
        world.hub(f"h{n}", limits=PATIENT)
        if n:
            world.relay(f"h{n}", "none", f"h{n - 1}", wait=False)
        eventually(lambda: all(relay.parent.settled for relay in world.relays.values()))
    eventually(lambda: all(relay.state == "joined" for relay in world.relays.values()))
    eventually(lambda: len(world.hubs["h6"].tree.path) == 7)


@pytest.mark.parametrize("stable", [True, False])
def test_pauses_grow_unless_the_link_was_stable_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch, stable: bool
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("sbuslib.clients.reconnect.random.uniform", lambda least, most: most)
    following = reconnect.Backoff.next

    def next_pause(backoff: reconnect.Backoff) -> float:
        pauses.append(following(backoff))
        return 0.0

    monkeypatch.setattr(reconnect.Backoff, "next", next_pause)
    most = 1e-6 if stable else 60.0
    with PlainDaemon(world.address("top")) as daemon:
        world.hub("left", limits=msgspec.structs.replace(FAST, link_pause=1e-6, link_pause_most=most))
        relay = world.relay("left", "top")
        for epoch in (2, 3, 4):
            daemon.disconnect()
            eventually(lambda seen=epoch: relay.epoch == seen)  # type: ignore[misc]
    grown = [pauses[0] * 3**n for n in range(len(pauses))]
    assert pauses == ([1e-6] * len(pauses) if stable else pytest.approx(grown))
