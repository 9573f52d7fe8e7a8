"""Fixtures for bridges: two buses in threads of their own, and brokers of each kind."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import HubThread

from .servers import STARTED, Server, mosquitto, nats_server, redis_server


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test of this folder may be a coroutine function."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(autouse=True)
def no_server_stays(folder: str) -> Iterator[None]:
    """Its things are in the folder, which goes after it."""
    yield
    while STARTED:
        STARTED.pop().kill()


class Cluster:
    """A broker of one kind, with the options of bridges to it."""

    def __init__(self, kind: str, folder: str) -> None:
        self.kind = kind
        broker, _, variant = kind.partition(" ")
        servers: dict[str, Callable[[str], Server]] = {"nats": nats_server, "mqtt": mosquitto, "redis": redis_server}
        self.server = servers[broker](folder)
        self.url = f"{broker}://127.0.0.1:{self.server.port}"
        self.options: dict[str, Any] = {}
        if variant == "stream":
            self.options["stream"] = "sbus"
        elif variant:
            self.options["version"] = variant
        self.has_origins = kind not in ("mqtt 3.1.1", "redis")
        """Whether bridges know what comes back."""


KINDS = ["nats", "nats stream", "mqtt", "mqtt 3.1.1", "redis", "redis stream"]


@pytest.fixture(params=KINDS)
def cluster(request: pytest.FixtureRequest, folder: str) -> Cluster:
    """A broker that is started."""
    made = Cluster(request.param, folder)
    made.server.start()
    return made


@pytest.fixture
def buses(folder: str) -> Iterator[tuple[str, str]]:
    """The addresses of two hubs."""
    with HubThread(f"{folder}/a"), HubThread(f"{folder}/b"):
        yield f"{folder}/a", f"{folder}/b"
