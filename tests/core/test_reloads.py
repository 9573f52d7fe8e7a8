"""``hub/reload``: who may ask for it, and what is answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import Peer
from worlds import World

from sbuslib import Hub
from sbuslib.errors import StateError, UsageError

MakeHub = Callable[..., Hub]


Connect = Callable[..., Peer]


def test_a_reload_is_for_trusted_clients_and_tells_what_came_of_it(world: World) -> None:
    hub = world.hub("top")
    stranger, client = world.peer_of("top", 1), world.client("top")
    stranger.send(b"CMSG hub/reload")
    assert stranger.receive() == b"CMSG hub/reload\0"
    with pytest.raises(StateError, match="no configuration file"):
        client.hub.reload()
    hub.reloads.function = lambda: "done so"
    assert client.hub.reload() == "done so"

    def fail() -> str:
        raise UsageError("line 3 is wrong")

    hub.reloads.function = fail
    with pytest.raises(StateError, match="line 3 is wrong"):
        client.hub.reload()

    def break_down() -> str:
        raise KeyError("x")

    hub.reloads.function = break_down
    with pytest.raises(StateError, match="KeyError"):
        client.hub.reload()
    hub.reloads.function = lambda: "again"
    assert client.hub.reload() == "again"


def test_many_who_ask_for_a_reload_are_all_answered(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub()
    calls: list[int] = []

    def reload() -> str:
        calls.append(1)
        return ""

    hub.reloads.function = reload
    peer = connect()
    peer.send(*[b"CMSG hub/reload"] * 50)
    assert [peer.receive() for _ in range(50)] == [b"CMSG hub/reload\0done\0"] * 50
    assert len(calls) <= 50
