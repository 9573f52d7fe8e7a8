"""The bridge's connection to an MQTT broker, 3.1.1 or 5. See :mod:`.broker` for what all brokers share.

``paho-mqtt`` connects, reads and writes in a thread of its own, and calls back from there. With QoS 1, the server
confirms each message, in the order of sending, and the client library sends unconfirmed ones again. With QoS 0, a
message counts as confirmed once it is in the socket: messages that the server has not read when it dies are lost.

MQTT 3.1.1 has no user properties to mark a message with its origin: the bridge cannot recognize its own messages that
come back, or duplicates. So it refuses import and export patterns that overlap, and imports duplicates.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from paho.mqtt.client import CallbackAPIVersion, Client, MQTTMessage, MQTTMessageInfo, MQTTProtocolVersion
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from ..errors import UsageError
from ..federation.name_format import NameFormat
from ..matcher import matches
from ..wire.text import plainly
from .broker import ORIGIN, UNREAD, Broker, BrokerOptions, Incoming, Leaving, Take, Unread, next_batch

_VERSIONS: Final = {"5": MQTTProtocolVersion.MQTTv5, "3.1.1": MQTTProtocolVersion.MQTTv311}
_LEVELS: Final = 200
"""Most segments of a topic: mosquitto takes no more."""
_KEEPALIVE: Final = 15
_PAUSE: Final = 1
"""Seconds between attempts to connect; also how long :meth:`Mqtt.close` waits for the last message to be sent."""
_WINDOW: Final = 64
"""Most unconfirmed messages. Not more, since the client library looks through all of them for each confirmation."""
_NO_PROPERTIES: Final = Properties(PacketTypes.PUBLISH)
"""Copied for each message: making one takes 20 times as long."""


class _Connection(Client):  # type: ignore[misc]
    """The library's client, which also keeps the reason why there is no connection."""

    def __init__(self, version: MQTTProtocolVersion) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, protocol=version)
        self.cause = ""  # why there is no connection
        self.enable_logger(self)

    def log(self, level: int, text: str, *values: object) -> None:
        """Take a log message of the client library."""
        if level >= logging.ERROR and self.socket() is not None:
            self.cause = text % values

    def reconnect(self) -> MQTTErrorCode:
        try:
            return super().reconnect()
        except (OSError, ValueError) as error:  # a ValueError, as for an invalid host name, would end its thread
            self.cause = plainly(error)
            raise OSError(self.cause) from error


class Mqtt(Broker):
    """A connection to an MQTT server, by ``paho-mqtt``."""

    def __init__(self, url: str, options: BrokerOptions, separator: bytes, warn: Callable[[str], object]) -> None:
        super().__init__(url, options, separator, warn)
        if options.version not in _VERSIONS or options.qos not in (0, 1):
            raise UsageError("MQTT has the versions 3.1.1 and 5 here, and quality of service 0 and 1")
        # Topics.
        self.name_format = NameFormat(options.start("/"), "/", "+", "+/#", specials="/+#$", separator=separator)
        self.has_origins = options.version == "5"  # only MQTT 5 has user properties
        self._separator = separator
        self._filters: list[str] = []  # subscribed to at each connection
        # Received messages, until the bridge takes them.
        self._unread: Unread[MQTTMessage] = Unread(lambda message: len(message.payload) + len(message.topic))
        self._awaited: tuple[int, asyncio.Future[None]] | None = None  # the message whose confirmation ``send`` awaits
        self._client = self._make_client()

    def _make_client(self) -> _Connection:
        options, place = self._options, urlsplit(self._url)
        client = _Connection(_VERSIONS[options.version])

        # Credentials and certificates of the options take precedence over those in the URL.
        is_secure = place.scheme == "mqtts"
        if (tls := options.tls(is_secure)) is not None:
            client.tls_set_context(tls)
        user = options.user if options.user is not None else place.username and unquote(place.username)
        if user is not None:
            client.username_pw_set(user, options.password or (place.password and unquote(place.password)))

        # Nothing that comes is confirmed before the bus has it.
        client.max_inflight_messages_set(_WINDOW)
        client.manual_ack_set(True)
        client.reconnect_delay_set(_PAUSE, _PAUSE)
        properties = None
        if self.has_origins:
            properties = Properties(PacketTypes.CONNECT)
            properties.ReceiveMaximum = UNREAD  # the server keeps at most so many of QoS 1 unconfirmed

        port = place.port or (8883 if is_secure else 1883)
        client.connect_async(place.hostname or "localhost", port, _KEEPALIVE, properties=properties)
        return client

    def fits(self, subject: str) -> bool:
        return super().fits(subject) and subject.count("/") < _LEVELS

    async def run(self, take: Take, patterns: Sequence[bytes], bus: str, name: str) -> None:
        client = self._client
        self._filters = self.name_format.filters_for(patterns)
        self._status = self.name_format.name_of(f"sbus-bridge/{name}".encode())
        client.will_set(self._status, b"away", self._options.qos, retain=True)
        client.on_socket_open = _send_at_once

        callbacks: dict[str, Callable[..., None]] = {
            "on_connect": self._connected,
            "on_connect_fail": self._not_connected,
            "on_disconnect": self._disconnected,
            "on_message": self._received,
            "on_publish": self._confirmed,
            "on_subscribe": self._in_force,
        }
        for event, function in callbacks.items():
            setattr(client, event, partial(asyncio.get_running_loop().call_soon_threadsafe, function))

        client.loop_start()
        while True:
            messages = await next_batch(self._unread)
            coming = [Incoming(message.topic, message.payload, _origin_of(message)) for message in messages]
            await take(coming, partial(self._acknowledge, messages))

    def _connected(self, client: _Connection, userdata: object, flags: object, code: ReasonCode, _: object) -> None:
        if code.is_failure:
            self.warn_once(str(code))
            return
        self._on_connected()
        client.cause = ""
        qos = self._options.qos
        client.publish(self._status, b"here", qos, retain=True)
        if not self._filters:
            self.ready.set()
        elif self.has_origins:
            client.subscribe([(filter_, SubscribeOptions(qos, noLocal=True)) for filter_ in self._filters])
        else:
            client.subscribe([(filter_, qos) for filter_ in self._filters])

    def _not_connected(self, client: _Connection, userdata: object) -> None:
        self.warn_once(client.cause)

    def _disconnected(self, client: _Connection, userdata: object, flags: object, code: ReasonCode, _: object) -> None:
        self.connected.clear()
        if code.is_failure:
            self.warn_once(client.cause or str(code))
        if self._awaited is not None and not self._options.qos and not self._awaited[1].done():
            self._awaited[1].set_exception(ConnectionError("the connection ended"))

    def _in_force(self, client: Client, userdata: object, mid: int, codes: list[ReasonCode], _: object) -> None:
        refused = [str(code) for code in codes if code.is_failure]
        if refused:
            self.warn_once(f"the server refuses to send what is imported: {refused[0]}")
        else:
            self.ready.set()

    def _confirmed(self, client: Client, userdata: object, mid: int, code: ReasonCode, _: object) -> None:
        if code.is_failure:
            self.warn_once(f"the server refuses what is exported: {code}")
        if self._awaited is not None and self._awaited[0] == mid and not self._awaited[1].done():
            self._awaited[1].set_result(None)

    def _received(self, client: Client, userdata: object, message: MQTTMessage) -> None:
        try:
            self._unread.put_nowait(message)
        except (asyncio.QueueFull, UnicodeDecodeError):  # the second: its topic is not UTF-8
            self.lost += 1
            client.ack(message.mid, message.qos)

    async def _acknowledge(self, messages: list[MQTTMessage]) -> None:
        for message in messages:
            self._client.ack(message.mid, message.qos)

    async def send(self, messages: Sequence[Leaving]) -> None:
        for start in range(0, len(messages), _WINDOW):
            # With QoS 1, the client library sends unconfirmed messages again after it reconnects.
            if not self.connected.is_set() and not self._options.qos:
                raise ConnectionError("the connection ended")
            sent = [self._publish(message) for message in messages[start : start + _WINDOW]]
            self._awaited = sent[-1].mid, asyncio.get_running_loop().create_future()
            await self._awaited[1]

    def _publish(self, message: Leaving) -> MQTTMessageInfo:
        properties = None
        if self.has_origins:
            properties = copy(_NO_PROPERTIES)
            properties.UserProperty = (ORIGIN, message.origin)
        retain = any(matches(pattern, message.key, self._separator) for pattern in self._options.retain)
        return self._client.publish(message.subject, message.payload, self._options.qos, retain, properties)

    async def close(self) -> None:
        client = self._client
        if self.connected.is_set():
            farewell = client.publish(self._status, b"away", self._options.qos, retain=True)
            with suppress(RuntimeError):  # the connection has just ended
                await asyncio.to_thread(farewell.wait_for_publish, _PAUSE)
        client.disconnect()
        await asyncio.to_thread(client.loop_stop)  # up to a second, while the server is away
        client._reset_sockets()  # else its socket pair stays open until the garbage collection


def _send_at_once(client: Client, userdata: object, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _origin_of(message: MQTTMessage) -> str | None:
    properties = getattr(message.properties, "UserProperty", ())
    return next((value for name, value in properties if name == ORIGIN), None)
