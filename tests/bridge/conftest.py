"""Fixtures for bridges: two buses in threads of their own, and brokers of each kind; what is joined by them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import pytest
from support import HubThread

from sbuslib.aio import Client
from sbuslib.bridge import AioBridge, BrokerOptions
from sbuslib.wire.packets import Message

from .servers import STARTED, Server, mosquitto, nats_server, redis_server


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test of this folder may be a coroutine function."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


_PAUSES = {
    "bridge.SETTLE_SECONDS": 0.01,
    "bridge.HEARTBEAT_SECONDS": 0.05,
    "nats._PAUSE": 0.25,
    "mqtt._PAUSE": 0.05,
    "redis._PAUSE": 0.05,
    "redis._BLOCK_MILLISECONDS": 20,
}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between attempts, and between looks. What is waited for at most is as ever."""
    for name, value in _PAUSES.items():
        monkeypatch.setattr(f"sbuslib.bridge.{name}", value)


@pytest.fixture(autouse=True)
def no_server_stays(folder: str) -> Iterator[None]:
    """Its things are in the folder, which goes after it."""
    yield
    while STARTED:
        STARTED.pop().kill()


Buses: TypeAlias = tuple[str, str]
"""The addresses of two hubs."""


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def receive(client: Client, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        found += await client.receive_many()
    return found


async def ready(*bridges: AioBridge) -> None:
    for one in bridges:
        await one.ready()


@asynccontextmanager
async def joined(
    buses: Buses,
    url: str,
    export: Sequence[bytes] = (b"a",),
    import_: Sequence[bytes] = (),
    *,
    options: BrokerOptions | None = None,
    trust: Sequence[bytes] | None = None,
) -> AsyncIterator[tuple[AioBridge, AioBridge, Client, Client]]:
    """Two bridges that are ready, from the first bus to the second, and a client of each, which gets what comes."""
    import_ = import_ or export
    async with (
        AioBridge(buses[0], url, export=export, options=options) as one,
        AioBridge(buses[1], url, import_=import_, options=options, trust=trust) as two,
        Client(buses[0]) as here,
        Client(buses[1]) as there,
    ):
        await ready(one, two)
        await there.subscribe(*import_)
        yield one, two, here, there


class Cluster:
    """A broker of one kind, with the options of bridges to it."""

    def __init__(self, kind: str, folder: str) -> None:
        self.kind = kind
        broker, _, variant = kind.partition(" ")
        servers: dict[str, Callable[[str], Server]] = {"nats": nats_server, "mqtt": mosquitto, "redis": redis_server}
        self.server = servers[broker](folder)
        self.url = f"{broker}://127.0.0.1:{self.server.port}"
        given: dict[str, Any] = {"stream": {"stream": "sbus"}, "3.1.1": {"version": "3.1.1"}}.get(variant, {})
        self.options = BrokerOptions(**given)
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
def buses(folder: str) -> Iterator[Buses]:
    with HubThread(f"{folder}/a"), HubThread(f"{folder}/b"):
        yield f"{folder}/a", f"{folder}/b"
