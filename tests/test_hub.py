"""The hub: its arguments, and how a program serves it."""

from __future__ import annotations

import os

import gevent
import pytest
from support import MakeClient, eventually, python

from sbuslib import Hub
from sbuslib.errors import AddressError, DisconnectedError, UsageError


@pytest.mark.parametrize(
    "options",
    [
        {"mode": -1},
        {"mode": 0o1777},
        {"mode": "700"},
        {"users": "root"},
        {"users": b"root"},
        {"users": ["no such user"]},
        {"users": [-1]},
        {"users": 0},
        {"separator": b"//"},
        {"separator": ""},
        {"separator": "*"},
        {"separator": "ä"},
        {"separator": 47},
        {"authorize": 3},
    ],
)
def test_wrong_arguments_raise_at_the_call(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Hub("/tmp/never", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("listener", ["", "a\0b", "/" + "x" * 200, "/dev/fd/x", None, 3])
def test_an_argument_that_is_no_listener(listener: object) -> None:
    with pytest.raises(AddressError):
        Hub(listener)  # type: ignore[arg-type]


def test_to_make_a_hub_touches_nothing(address: str) -> None:
    hub = Hub(address)
    assert (hub.started, hub.closed, hub.address) == (False, True, address)
    assert not os.path.exists(address)
    hub.stop()


# -- programs -------------------------------------------------------------------------------------------


def test_serve_forever_until_stopped(address: str, client: MakeClient) -> None:
    hub = Hub(address)
    serving = gevent.spawn(hub.serve_forever)
    eventually(lambda: hub.started)
    user = client()
    hub.stop()
    serving.get(timeout=10)
    assert hub.closed
    with pytest.raises(DisconnectedError):
        user.receive(timeout=10)


def test_serve_forever_that_is_killed_stops(address: str) -> None:
    hub = Hub(address)
    serving = gevent.spawn(hub.serve_forever)
    eventually(lambda: hub.started)
    serving.kill()
    assert hub.closed
    assert not os.path.exists(address)


def test_ready_soon_after_start() -> None:
    """What must not be loaded to serve: each costs a part of the 0.3 s until the first client can connect."""
    code = "import sys, sbuslib.hub; print([m for m in ('asyncio', 'ssl', 'email', 'http', 'dns') if m in sys.modules])"
    assert python("-c", code) == "[]\n"
