"""A relay does not wait for the end of its pause when a hub comes."""

from __future__ import annotations

import os
import socket

import gevent
import msgspec
import pytest
from support import PATIENCE, eventually
from worlds import FAST, World

from sbuslib.tree.arrivals import Arrivals

PATIENT = msgspec.structs.replace(FAST, link_pause=600.0, link_pause_most=600.0, prefix_wait=0.001)


@pytest.mark.parametrize("upstreams", [["top"], ["none", "top"]])
def test_a_hub_that_starts_later_is_joined_at_once(world: World, upstreams: list[str]) -> None:
    world.hub("left", limits=PATIENT)
    relay = world.relay("left", *upstreams, wait=False)
    eventually(lambda: relay.above.settled)
    world.hub("top")
    relay.wait(PATIENCE)


def test_a_hub_that_is_restarted_is_joined_at_once(world: World) -> None:
    world.hub("top")
    world.hub("left", limits=PATIENT)
    relay = world.relay("left", "top")
    for epoch in (2, 3):
        world.hubs["top"].stop(0)
        eventually(lambda: relay.state == "outage")
        world.hub("top")
        relay.wait(PATIENCE)
        assert relay.epoch == epoch


def test_a_folder_that_is_made_later(world: World) -> None:
    world.hub("left", limits=PATIENT)
    relay = world.relay("left", "folder/top", wait=False)
    eventually(lambda: relay.above.settled)
    os.mkdir(world.address("folder"))
    world.hub("folder/top")
    relay.wait(PATIENCE)


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [3, 6, 0, 5, 1, 4, 2]])
def test_a_chain_of_hubs_waits_for_no_pause_in_whatever_order_they_start(world: World, order: list[int]) -> None:
    for n in order:
        world.hub(f"h{n}", limits=PATIENT)
        if n:
            world.relay(f"h{n}", f"h{n - 1}", wait=False)
        eventually(lambda: all(relay.above.settled for relay in world.relays.values()))
    eventually(lambda: all(relay.state == "joined" for relay in world.relays.values()))
    eventually(lambda: len(world.hubs["h6"].tree.path) == 7)


def test_what_was_there_before_is_no_arrival(folder: str) -> None:
    path = folder + "/bus"
    arrivals = Arrivals([path, "/dev/unix/abstract/00" + "61" * 107])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        arrivals.look()
        assert not arrivals.wait(0.001)
        os.unlink(path)
        assert not arrivals.wait(0.001), "somebody has gone"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        assert arrivals.wait(0.0), "it was there when the wait began"
        arrivals.look()
        waiting = gevent.spawn(arrivals.wait, PATIENCE)
        gevent.sleep(0)
        os.unlink(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as another:
            another.bind(path)
            assert waiting.get(timeout=PATIENCE)
