"""Client managers for python-socketio and Flask-SocketIO: several processes serve the clients of one application.

::

    socketio = SocketIO(app, client_manager=SbusManager("sbus://"))                     # Flask-SocketIO
    server = socketio.AsyncServer(client_manager=AsyncSbusManager("sbus://"))           # python-socketio with asyncio
    SbusManager("sbus://", write_only=True).emit("news", {"text": "from a script"})     # a process without clients

Each emit is one message under ``socketio/<channel>``, as JSON, and every server of the application receives it. Source:
python-socketio's documentation of client managers, and its class ``PubSubManager``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final

from socketio.async_pubsub_manager import AsyncPubSubManager
from socketio.pubsub_manager import PubSubManager

from .. import aio
from ..clients.endpoint import Endpoint
from ..connecting import BusUrl, Connector, parse_url
from ..doors.memory import Frame
from ..errors import SbusError

PAUSE: Final = 1.0
"""Seconds until another attempt to subscribe, where there is no hub."""

logger = logging.getLogger("sbuslib.integrations")


def _note_outage(_: object) -> None:
    logger.warning("the hub was away: emits of that time did not reach every server; how many, nobody knows")


_OPTIONS: Final[dict[str, Any]] = {"reconnect": True, "senders": True, "echo": False, "on_reconnect": _note_outage}


class _Bus:
    """The parts of both managers that do not wait: the key, who may emit, and the form of an emit."""

    json: Any

    def __init__(self, url: BusUrl, channel: str, users: Iterable[int | str]) -> None:
        self.key = b"socketio/" + channel.encode()  # of all emits
        self.users = url.allowed_users(*users)  # who may emit
        self._lost = 0  # emits that were logged

    def accepts(self, frame: Frame) -> bool:
        """Whether an emit comes from a user who may emit. A hub without the extension for senders names nobody."""
        who = frame.credentials
        if who is None or who.uid in self.users:
            return True
        logger.warning("an emit of user %d, process %d, is refused: name the user in users=", who.uid, who.pid)
        return False

    def note_losses(self, lost: int) -> None:
        """Log emits that did not come."""
        if lost > self._lost:
            logger.error("%d emits of other servers were lost on their way here", lost - self._lost)
        self._lost = lost


class SbusManager(PubSubManager):  # type: ignore[misc]  # python-socketio has no types
    """A client manager for ``socketio.Server`` and Flask-SocketIO, for threads and for gevent.

    :param url: ``sbus:///path/of/socket``, see :class:`~sbuslib.connecting.BusUrl`; ``sbus://`` looks where clients
        look without an address.
    :param channel: servers of one application have the same; several applications on one bus have their own.
    :param write_only: for a process that only emits. It connects at its first emit.
    :param users: names or ids of users whose emits are taken, besides the own user and root. The kernel proves whose an
        emit is.

    An emit while the hub is away waits for it, for the ``timeout`` of the URL, and is lost after that, which is logged.
    """

    name = "sbus"

    def __init__(
        self,
        url: str = "sbus://",
        channel: str = "socketio",
        write_only: bool = False,
        logger: Any = None,
        json: Any = None,
        *,
        users: Iterable[int | str] = (),
    ) -> None:
        super().__init__(channel=channel, write_only=write_only, logger=logger, json=json)
        self._connector = Connector(url, **_OPTIONS)  # the client of this process
        self._bus = _Bus(self._connector.url, channel, users)  # what needs no waiting
        self._frames: Any = None  # the subscription, once there is a hub

    def initialize(self) -> None:
        """Subscribe, so that a client that is served after this misses no emit; then as any manager."""
        if not self.write_only:
            self._subscribe()
        super().initialize()

    def _client(self) -> Endpoint:
        mode = "" if self.server is None else self.server.async_mode
        return self._connector.client(threads=mode == "threading")

    def _subscribe(self) -> bool:
        try:
            self._frames = self._client().frames.subscribe(self._bus.key)
        except (SbusError, TimeoutError) as error:
            self._get_logger().error("no emits of other servers yet: %s", error)
        return self._frames is not None

    def close(self) -> None:
        """Close the connection to the bus: nothing of other servers comes any more."""
        self._connector.close()

    def _publish(self, data: dict[str, Any]) -> None:
        payload = self.json.dumps(data).encode()
        try:
            self._client().frames.publish(self._bus.key, payload)
        except (SbusError, TimeoutError) as error:
            self._get_logger().error("an emit does not reach other servers: %s", error)

    def _listen(self) -> Iterator[bytes]:
        while self._frames is None and not self._subscribe():
            self.server.sleep(PAUSE)
        for frame in self._frames:
            with frame:
                self._bus.note_losses(sum(self._frames.lost.values()))
                if self._bus.accepts(frame):
                    yield bytes(frame)


class AsyncSbusManager(AsyncPubSubManager):  # type: ignore[misc]  # python-socketio has no types
    """A client manager for ``socketio.AsyncServer``. Its parameters are those of :class:`SbusManager`."""

    name = "sbus"

    def __init__(
        self,
        url: str = "sbus://",
        channel: str = "socketio",
        write_only: bool = False,
        logger: Any = None,
        json: Any = None,
        *,
        users: Iterable[int | str] = (),
    ) -> None:
        super().__init__(channel=channel, write_only=write_only, logger=logger, json=json)
        self._url = parse_url(url)  # of the bus
        self._bus = _Bus(self._url, channel, users)  # what needs no waiting
        self._connecting: asyncio.Task[aio.Client] | None = None  # that of all tasks, which may begin at once
        self.listening = asyncio.Event()
        """Set once emits of other servers come here."""

    async def _client(self) -> aio.Client:
        """The client of this event loop. Raises what :class:`sbuslib.Client` does, and then tries again when called."""
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect())
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)  # a task that is cancelled takes it from nobody
        except (SbusError, TimeoutError):
            if self._connecting is connecting:
                self._connecting = None
            raise

    async def _connect(self) -> aio.Client:
        return await aio.Client(self._url.address, **self._url.options, **_OPTIONS)

    async def close(self) -> None:
        """Close the connection to the bus: nothing of other servers comes any more."""
        if self._connecting is not None:
            await (await self._connecting).close()

    async def _publish(self, data: dict[str, Any]) -> None:
        payload = self.json.dumps(data).encode()
        try:
            await (await self._client()).frames.publish(self._bus.key, payload)
        except (SbusError, TimeoutError) as error:
            self._get_logger().error("an emit does not reach other servers: %s", error)

    async def _listen(self) -> AsyncIterator[bytes]:
        while True:
            try:
                client = await self._client()
                frames = await client.frames.subscribe(self._bus.key)
                break
            except (SbusError, TimeoutError) as error:
                self._get_logger().error("no emits of other servers yet: %s", error)
                await asyncio.sleep(PAUSE)
        self.listening.set()
        async for frame in frames:
            with frame:
                self._bus.note_losses(sum(frames.lost.values()))
                if self._bus.accepts(frame):
                    yield bytes(frame)
