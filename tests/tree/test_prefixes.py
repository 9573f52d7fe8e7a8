"""A hub's prefix, and who waits to learn it."""

from __future__ import annotations

import msgspec
import pytest
from support import PATIENCE, WHOAMI, eventually, own_key
from worlds import FAST, World, key_of

from sbuslib.errors import DisconnectedError


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


def test_a_prefix_outlives_an_outage_and_clients_are_told_of_a_new_one(world: World) -> None:
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
    assert told.receive(timeout=PATIENCE).payload == b"found"


def test_the_key_of_the_embedder_has_the_prefix(world: World) -> None:
    world.chain("top", "left")
    hub = world.hubs["left"]
    assert hub.whoami() == hub.context.router.namespace.prefix + own_key()
    inbox = hub.subscribe(hub.whoami() + b"/box")
    world.client("top").publish(hub.whoami() + b"/box", b"1")
    assert inbox.receive(timeout=PATIENCE).payload == b"1"
    world.relays.pop("left").stop()
    assert hub.whoami() == own_key()
    with pytest.raises(DisconnectedError):
        inbox.receive(timeout=PATIENCE)
