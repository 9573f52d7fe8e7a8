"""MQTT 3.1.1 and 5: what is different about it. See :mod:`.engine` for what is not.

``paho-mqtt`` is driven by the bridge's own event loop, without its thread. With quality of service 1, each message is
confirmed, and the client library sends again what was not. With 0 it is confirmed when it is in the socket: what the
server has not read by the time it dies is lost, which the other bridges count by the numbers.

MQTT 3.1.1 has no headers: nobody can tell what comes back or comes again. So a bridge refuses lists of patterns that
overlap, and repeats of the server come through.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from ssl import SSLSocket
from typing import Any, Final
from urllib.parse import SplitResult, unquote

from paho.mqtt.client import (
    MQTT_ERR_SUCCESS,
    CallbackAPIVersion,
    Client,
    MQTTMessage,
    MQTTMessageInfo,
    MQTTProtocolVersion,
)
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from ..errors import UsageError
from ..matcher import matches
from .engine import ORIGIN, EngineOptions, Incoming, Outgoing, Take, end
from .mapping import Mapping

__all__ = ["Mqtt"]

_TOPIC_BYTES: Final = 65_535
_LEVELS: Final = 200
"""Segments of a topic: mosquitto takes no more."""
_PAYLOAD_BYTES: Final = 400_000
_KEEPALIVE: Final = 15
_PAUSE: Final = 1.0
"""Seconds between attempts to connect, and between looks at the time for the client library."""
_UNREAD: Final = 8_192
"""Messages that wait for the bridge. Then the socket is not read, so that the server notices."""
_BATCH: Final = 256

_WINDOW: Final = 64
"""Messages without confirmation: for each that comes, the client library looks at all."""
_NO_PROPERTIES: Final = Properties(PacketTypes.PUBLISH)
"""To be copied: to make one takes 20 times as long."""


class Mqtt:
    """A connection to an MQTT server, by ``paho-mqtt``."""

    keeps = False
    shares = False
    lost = 0

    def __init__(
        self, place: SplitResult, options: EngineOptions, separator: bytes, warn: Callable[[str], object]
    ) -> None:
        versions = {"5": MQTTProtocolVersion.MQTTv5, "3.1.1": MQTTProtocolVersion.MQTTv311}
        if options.version not in versions or options.qos not in (0, 1):
            raise UsageError("MQTT has the versions 3.1.1 and 5 here, and quality of service 0 and 1")
        self.mapping = Mapping("/", "+", "+/#", specials="/+#$", prefix=options.prefix, separator=separator)
        self.has_origins = options.version == "5"
        self._options = options
        self._separator = separator
        self._warn = warn
        self._secure = place.scheme == "mqtts"
        self._host, self._port = place.hostname or "localhost", place.port or (8883 if self._secure else 1883)
        self._client = client = Client(CallbackAPIVersion.VERSION2, protocol=versions[options.version])
        tls = options.tls(self._secure)
        if tls is not None:
            client.tls_set_context(tls)
        user = options.user if options.user is not None else place.username and unquote(place.username)
        if user is not None:
            client.username_pw_set(user, options.password or (place.password and unquote(place.password)))
        client.enable_logger(self)
        client.max_inflight_messages_set(_WINDOW)
        client.manual_ack_set(True)
        client.on_connect, client.on_disconnect = self._connected, self._disconnected
        client.on_message = self._received
        client.on_socket_open, client.on_socket_close = self._opened, self._closed
        client.on_socket_register_write = self._has_to_write
        client.on_socket_unregister_write = self._has_written
        client.on_publish = self._confirmed
        client.on_subscribe = self._in_force
        self._loop: asyncio.AbstractEventLoop
        self._filters: list[str] = []
        self._inbox: deque[MQTTMessage] = deque()
        self._arrived, self._moved = asyncio.Event(), asyncio.Event()
        self._up = self._full = False
        self._reading: Any = None
        self._cause = ""
        self._ready: Callable[[], object]

    @property
    def connected(self) -> bool:
        return self._up

    @property
    def payload_bytes(self) -> int:
        return _PAYLOAD_BYTES

    def fits(self, subject: str) -> bool:
        return len(subject.encode()) <= _TOPIC_BYTES and subject.count("/") < _LEVELS

    async def run(self, take: Take, filters: list[str], bus: str, name: str, ready: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._filters, self._ready = filters, ready
        self._status = self.mapping.subject_of(f"sbus-bridge/{name}".encode())
        self._client.will_set(self._status, b"away", self._options.qos, retain=True)
        staying = asyncio.create_task(self._stay_connected())
        try:
            await self._hand_on(take)
        finally:
            await end(staying)

    async def _stay_connected(self) -> None:
        while True:
            if not self._client.is_connected() and self._client.socket() is None:
                try:
                    # Looking up the host and connecting block.
                    await asyncio.to_thread(self._client.connect, self._host, self._port, _KEEPALIVE)
                except (OSError, ValueError) as error:
                    self._warn(str(error))
            await asyncio.sleep(_PAUSE)
            if self._client.socket() is not None:
                self._client.loop_misc()

    # -- called by the client library ---------------------------------------------------------------

    def log(self, level: int, text: str, *values: object) -> None:
        """Keep why a connection ends, which the client library writes into its log only."""
        if level >= logging.ERROR:
            self._cause = text % values

    def _opened(self, client: Client, userdata: object, sock: Any) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.call_soon_threadsafe(self._read_on, sock)

    def _read_on(self, sock: Any) -> None:
        self._reading = sock
        if sock.fileno() >= 0:
            self._loop.add_reader(sock, self._read)

    def _read(self) -> None:
        self._client.loop_read(_BATCH)
        if len(self._inbox) >= _UNREAD:
            self._full = True
            if self._reading is not None:
                self._loop.remove_reader(self._reading)
        elif isinstance(self._reading, SSLSocket) and self._reading.pending():
            # The socket is not ready once more for what TLS has deciphered already.
            self._loop.call_soon(self._read)

    def _closed(self, client: Client, userdata: object, sock: Any) -> None:
        self._loop.remove_reader(sock)
        self._loop.remove_writer(sock)
        self._reading = None

    def _has_to_write(self, client: Client, userdata: object, sock: Any) -> None:
        self._loop.call_soon_threadsafe(self._write_on, sock)

    def _write_on(self, sock: Any) -> None:
        if sock.fileno() >= 0 and self._client.socket() is sock:
            self._loop.add_writer(sock, self._client.loop_write)

    def _has_written(self, client: Client, userdata: object, sock: Any) -> None:
        self._loop.remove_writer(sock)

    def _connected(self, client: Client, userdata: object, flags: object, code: ReasonCode, _: object) -> None:
        if code.is_failure:
            self._warn(str(code))
            return
        self._up = True
        client.publish(self._status, b"here", self._options.qos, retain=True)
        qos = self._options.qos
        if not self._filters:
            self._ready()
        elif self.has_origins:
            client.subscribe([(one, SubscribeOptions(qos, noLocal=True)) for one in self._filters])
        else:
            client.subscribe([(one, qos) for one in self._filters])

    def _disconnected(self, client: Client, userdata: object, flags: object, code: ReasonCode, _: object) -> None:
        self._up = False
        self._moved.set()
        if code.is_failure:
            self._warn(self._cause or str(code))
        self._cause = ""

    def _in_force(self, *_: object) -> None:
        self._ready()

    def _confirmed(self, *_: object) -> None:
        self._moved.set()

    def _received(self, client: Client, userdata: object, message: MQTTMessage) -> None:
        self._inbox.append(message)
        self._arrived.set()

    # -----------------------------------------------------------------------------------------------

    async def _hand_on(self, take: Take) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._inbox:
                messages = [self._inbox.popleft() for _ in range(min(_BATCH, len(self._inbox)))]
                coming = [Incoming(message.topic, message.payload, _origin_of(message)) for message in messages]
                await take(coming, partial(self._acknowledge, messages))
            if self._full and self._reading is not None:
                self._full = False
                self._read_on(self._reading)
                self._read()

    async def _acknowledge(self, messages: list[MQTTMessage]) -> None:
        for message in messages:
            self._client.ack(message.mid, message.qos)

    async def send(self, messages: Sequence[Outgoing]) -> None:
        sent: deque[MQTTMessageInfo] = deque()
        for message in messages:
            sent.append(self._publish(message))
            if len(sent) >= _WINDOW:
                await self._confirm(sent, _WINDOW // 2)
        await self._confirm(sent, 0)

    async def _confirm(self, sent: deque[MQTTMessageInfo], left: int) -> None:
        """Wait until no more than ``left`` messages are without confirmation."""
        while len(sent) > left:
            if sent[0]._published:
                sent.popleft()
                continue
            # With quality of service 1, the client library sends it again, once there is a connection.
            if not self._up and not self._options.qos:
                raise ConnectionError("the connection ended")
            self._moved.clear()
            await self._moved.wait()

    def _publish(self, message: Outgoing) -> MQTTMessageInfo:
        properties = None
        if self.has_origins:
            properties = copy(_NO_PROPERTIES)
            properties.UserProperty = (ORIGIN, message.origin)
        retain = any(matches(pattern, message.key, self._separator) for pattern in self._options.retain)
        return self._client.publish(message.subject, message.payload, self._options.qos, retain, properties)

    async def close(self) -> None:
        if self._up:
            self._client.publish(self._status, b"away", self._options.qos, retain=True)
            while self._client.want_write() and self._client.loop_write() == MQTT_ERR_SUCCESS:
                await asyncio.sleep(0)
        with contextlib.suppress(OSError, ValueError):
            self._client.disconnect()
            self._client.loop_write()
        sock = self._client.socket()
        if sock is not None:
            self._client._sock_close()


def _origin_of(message: MQTTMessage) -> str | None:
    told = getattr(message.properties, "UserProperty", ())
    return next((value for name, value in told if name == ORIGIN), None)
