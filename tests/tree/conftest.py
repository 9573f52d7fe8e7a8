"""Fixtures for trees of hubs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import Peer
from worlds import RELAY, STRANGER, World


@pytest.fixture
def make_link(world: World) -> Callable[[], Peer]:
    """Makes raw links to the hub ``top``, of a user that is configured as a relay. Their greeting is over."""
    world.hub("top", relays=[STRANGER])
    return lambda: world.link("top", STRANGER)


@pytest.fixture
def stranger(world: World) -> Peer:
    """A client of a user that the hub does not know, which holds 300 patterns."""
    world.hub("top", relays=[RELAY])
    client = world.peer_of("top", STRANGER)
    client.subscribe(*(b"a/%d" % n for n in range(300)))
    return client
