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
from ..clients.fd_publishers import MOST_IN_PACKET
from ..clients.hub_view import Offers
from ..connecting import Connector, parse_url
from ..errors import SbusError
from ..keys.own_keys import SOCKETIO
from .trust import TrustedUsers

PAUSE: Final = 1.0
"""Seconds until another attempt to subscribe, where there is no hub."""

logger = logging.getLogger("sbuslib.integrations")


def _note_outage(_: object) -> None:
    logger.warning("the hub was away: emits of that time did not reach every server; how many, nobody knows")


_OPTIONS: Final[dict[str, Any]] = {"reconnect": True, "senders": True, "echo": False, "on_reconnect": _note_outage}


class _Manager:
    """The parts of both managers that do not wait: the key, and the users that may emit."""

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
        super().__init__(channel=channel, write_only=write_only, logger=logger, json=json)  # type: ignore[call-arg]
        self._url = parse_url(url)  # of the bus
        self._key = f"{SOCKETIO}/{channel}".encode()  # of all emits
        self._users = self._url.user_ids(users)  # users that may emit, besides the own user and root
        self._lost = 0  # emits that were logged as lost
        self._begin()

    def _begin(self) -> None:
        """Set up the state that each manager has of its own."""

    def _trusted(self, hub: Offers) -> TrustedUsers:
        return TrustedUsers("emits", self._users, hub.separator)

    def _note_losses(self, lost: dict[str, int]) -> None:
        """Log emits that did not come."""
        if (total := sum(lost.values())) > self._lost:
            logger.error("%d emits of other servers were lost on their way here", total - self._lost)
            self._lost = total


class SbusManager(_Manager, PubSubManager):  # type: ignore[misc]  # python-socketio has no types
    """A client manager for ``socketio.Server`` and Flask-SocketIO, for threads and for gevent.

    :param url: ``sbus:///path/of/socket``, see :class:`~sbuslib.connecting.BusUrl`; ``sbus://`` looks where clients
        look without an address.
    :param channel: servers of one application have the same; several applications on one bus have their own.
    :param write_only: for a process that only emits. It connects at its first emit.
    :param users: names or ids of users whose emits are taken, besides the own user and root. The kernel proves the user
        of an emit.

    An emit while the hub is away waits for it, for the ``timeout`` of the URL, and is lost after that, which is logged.
    """

    def _begin(self) -> None:
        self._connector = Connector(self._url, **_OPTIONS)  # the client of this process
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
            self._frames = self._client().frames.subscribe(self._key)
        except (SbusError, TimeoutError) as error:
            self._get_logger().error("no emits of other servers yet: %s", error)
        return self._frames is not None

    def close(self) -> None:
        """Close the connection to the bus: no more emits of other servers come."""
        self._connector.close()

    def _publish(self, data: dict[str, Any]) -> None:
        payload = self.json.dumps(data).encode()
        try:
            client = self._client()
            (client if len(payload) <= MOST_IN_PACKET else client.frames).publish(self._key, payload)
        except (SbusError, TimeoutError) as error:
            self._get_logger().error("an emit does not reach other servers: %s", error)

    def _listen(self) -> Iterator[bytes]:
        while self._frames is None and not self._subscribe():
            self.server.sleep(PAUSE)
        client = self._client()
        trusted = self._trusted(client.hub)
        for frame in self._frames:
            with frame:
                self._note_losses(self._frames.lost)
                if trusted.why_refused(frame.sender, client.credentials) is None:
                    yield bytes(frame)


class AsyncSbusManager(_Manager, AsyncPubSubManager):  # type: ignore[misc]  # python-socketio has no types
    """A client manager for ``socketio.AsyncServer``. Its parameters are those of :class:`SbusManager`."""

    def _begin(self) -> None:
        self._connecting: asyncio.Task[aio.Client] | None = None  # that of all tasks, which may begin at once
        self.listening = asyncio.Event()
        """Set once emits of other servers come here."""

    async def _client(self) -> aio.Client:
        """The client of this event loop. Raises as :class:`sbuslib.Client`, and then tries again when called."""
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
        """Close the connection to the bus: no more emits of other servers come."""
        if self._connecting is not None:
            await (await self._connecting).close()

    async def _publish(self, data: dict[str, Any]) -> None:
        payload = self.json.dumps(data).encode()
        try:
            client = await self._client()
            await (client if len(payload) <= MOST_IN_PACKET else client.frames).publish(self._key, payload)
        except (SbusError, TimeoutError) as error:
            self._get_logger().error("an emit does not reach other servers: %s", error)

    async def _listen(self) -> AsyncIterator[bytes]:
        while True:
            try:
                client = await self._client()
                frames = await client.frames.subscribe(self._key)
                break
            except (SbusError, TimeoutError) as error:
                self._get_logger().error("no emits of other servers yet: %s", error)
                await asyncio.sleep(PAUSE)
        self.listening.set()

        trusted = self._trusted(client.hub)
        async for frame in frames:
            with frame:
                self._note_losses(frames.lost)
                if trusted.why_refused(frame.sender, client.credentials) is None:
                    yield bytes(frame)
