"""Client managers of python-socketio: several servers of one application, and scripts that emit to their clients."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from accounting import acting_as
from support import PATIENCE, HubThread

pytest.importorskip("socketio")

import socketio

from sbuslib.blocking import Client
from sbuslib.integrations.socketio import AsyncSbusManager, SbusManager

STRANGER = 2201


class Server(socketio.Server):  # type: ignore[misc]  # it has no types
    """A server with one client, for whom its packets are kept."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(client_manager=SbusManager(url, **options), async_mode="threading")
        self.sent: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.manager.initialize()
        self.sid = self.manager.connect("engine", "/")

    def _send_eio_packet(self, eio_sid: str, eio_pkt: Any) -> None:
        self.sent.put(eio_pkt.data)

    def _send_packet(self, eio_sid: str, pkt: Any) -> None:
        self.sent.put(pkt.encode())

    def receive(self) -> Any:
        return json.loads(self.sent.get(timeout=PATIENCE)[1:])  # behind the type of the packet


Serve: TypeAlias = Callable[..., Server]


@pytest.fixture
def url(hub: HubThread) -> str:
    return f"sbus://{hub.address}"


@pytest.fixture
def serve(url: str) -> Iterator[Callable[..., Server]]:
    """Start a server, which is closed after the test."""
    servers: list[Server] = []

    def start(**options: Any) -> Server:
        servers.append(Server(url, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.manager.close()
        server.manager.thread.join()


def test_an_emit_reaches_the_clients_of_each_server_once_and_in_order(serve: Serve) -> None:
    servers = serve(), serve()
    for number in range(100):
        servers[0].emit("news", number)
    servers[0].emit("news", "x" * 2_000_000)
    servers[0].emit("news", "the end")
    news = [*range(100), "x" * 2_000_000, "the end"]
    for server in servers:
        assert [server.receive() for _ in news] == [["news", each] for each in news]


def test_a_script_emits_to_a_room_at_another_server(url: str, serve: Serve) -> None:
    server = serve()
    server.enter_room(server.sid, "staff")
    script = SbusManager(url, write_only=True)
    script.emit("news", "for others", room="guests")
    script.emit("news", {"text": "for staff"}, room="staff")
    script.close()
    assert server.receive() == ["news", {"text": "for staff"}]


def test_an_acknowledgement_comes_back_to_the_server_that_asked(serve: Serve) -> None:
    asking, serving = serve(), serve()
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    asking.emit("question", 1, to=serving.sid, callback=answers.put)
    packet = serving.sent.get(timeout=PATIENCE)
    number = int(packet[1 : packet.index("[")])
    serving.manager.trigger_callback(serving.sid, number, ["yes"])
    assert answers.get(timeout=PATIENCE) == "yes"


@pytest.mark.promise("how-to/socketio.md", "An emit of any other user is refused")
def test_what_a_stranger_emits_reaches_no_client(
    hub: HubThread, url: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server, trusting = serve(), serve(users=[STRANGER])
    with acting_as(STRANGER):
        stranger = Client(hub.address)
    forged = {"method": "emit", "event": "news", "data": ["forged"], "namespace": "/"}
    for _ in range(2):
        stranger.publish("socketio/socketio", json.dumps(forged).encode())
        assert trusting.receive() == ["news", "forged"]
    script = SbusManager(url, write_only=True)
    script.emit("news", "of our own")
    script.close()
    assert server.receive() == ["news", "of our own"]
    assert caplog.text.count(f"emits of user {STRANGER} are refused") == 1
    stranger.close()


def test_servers_find_each_other_again_after_an_outage(
    hub: HubThread, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    servers = serve(), serve()
    hub.stop()
    with HubThread(hub.address):
        for client in [server.manager._client() for server in servers]:
            client.sync()
        servers[0].emit("news", 1)
        assert [server.receive() for server in servers] == [["news", 1]] * 2
    assert "emits of that time did not reach every server" in caplog.text


class AsyncServer(socketio.AsyncServer):  # type: ignore[misc]  # it has no types
    """As :class:`Server`."""

    def __init__(self, url: str) -> None:
        super().__init__(client_manager=AsyncSbusManager(url), async_mode="asgi")
        self.sent: asyncio.Queue[str] = asyncio.Queue()

    async def _send_eio_packet(self, eio_sid: str, eio_pkt: Any) -> None:
        self.sent.put_nowait(eio_pkt.data)


def test_servers_with_asyncio_and_with_threads_share_a_bus(url: str, serve: Serve) -> None:
    async def run() -> None:
        server, other = AsyncServer(url), serve()
        server.manager.initialize()
        await server.manager.connect("engine", "/")
        await server.manager.listening.wait()
        other.emit("news", "x" * 2_000_000)
        assert await asyncio.wait_for(server.sent.get(), PATIENCE) == '2["news","' + "x" * 2_000_000 + '"]'
        await server.emit("news", 2)
        assert other.receive()[1] == "x" * 2_000_000
        assert other.receive() == ["news", 2]
        await server.manager.close()

    asyncio.run(run())
