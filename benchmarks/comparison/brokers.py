"""The brokers that are known: Redis, NATS, Mosquitto, a proxy of ZeroMQ, RabbitMQ, D-Bus."""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

from sbuslib.errors import StateError

from .broker import (
    KEY,
    PATIENCE,
    Broker,
    NotInstalledError,
    connect_stream,
    exactly,
    find_program,
    free_port,
    until,
    version_of,
)
from .dbus import Dbus
from .rabbitmq import RabbitMq

__all__ = ["BROKERS", "Mosquitto", "Nats", "Redis", "ZeroMq"]


class Redis(Broker):
    """Redis over a Unix socket, publishers without replies (RESP2: https://redis.io/docs/reference/protocol-spec)."""

    name = "redis"
    title = "Redis"

    @property
    def address(self) -> str:
        return str(self.folder / "redis")

    def command(self) -> list[str]:
        settings = ["--port", "0", "--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        settings += ["--unixsocket", self.address, "--client-output-buffer-limit", "pubsub 0 0 0"]
        return [find_program("redis-server"), *settings]

    @classmethod
    def version(cls) -> str:
        return version_of(find_program("redis-server"), "--version").removeprefix("v=")

    def _array(self, *words: bytes) -> bytes:
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)

    def publisher(self) -> socket.socket:
        sock = self.dial()
        sock.sendall(self._array(b"CLIENT", b"REPLY", b"OFF"))
        return sock

    def subscriber(self) -> socket.socket:
        sock = self.dial()
        sock.sendall(self._array(b"SUBSCRIBE", KEY))
        exactly(sock, len(self._array(b"subscribe", KEY)) + len(b":1\r\n"))
        return sock

    def frame(self, payload: bytes) -> bytes:
        return self._array(b"PUBLISH", KEY, payload)

    def unit(self, payload: bytes) -> int:
        return len(self._array(b"message", KEY, payload))


class Nats(Broker):
    """NATS over loopback TCP (https://docs.nats.io/reference/reference-protocols/nats-protocol)."""

    name = "nats"
    title = "NATS"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port = free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def command(self) -> list[str]:
        settings = self.folder / "nats.conf"
        settings.write_text(f"listen: {self.address}\nmax_pending: 4GB\nwrite_deadline: '60s'\nping_interval: '1h'\n")
        return [find_program("nats-server"), "-c", str(settings)]

    @classmethod
    def version(cls) -> str:
        return version_of(find_program("nats-server"), "--version")

    def _talk(self, said: bytes) -> socket.socket:
        sock = self.dial()
        until(sock, b"\r\n")
        sock.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\n' + said + b"PING\r\n")
        while until(sock, b"\r\n") != b"PONG\r\n":
            pass
        return sock

    def publisher(self) -> socket.socket:
        return self._talk(b"")

    def subscriber(self) -> socket.socket:
        return self._talk(b"SUB %b 1\r\n" % KEY)

    def frame(self, payload: bytes) -> bytes:
        return b"PUB %b %d\r\n%b\r\n" % (KEY, len(payload), payload)

    def unit(self, payload: bytes) -> int:
        return len(b"MSG %b 1 %d\r\n%b\r\n" % (KEY, len(payload), payload))


class Mosquitto(Broker):
    """Mosquitto over a Unix socket, at quality of service 0 (MQTT 3.1.1, OASIS)."""

    name = "mosquitto"
    title = "Mosquitto"

    @property
    def address(self) -> str:
        return str(self.folder / "mosquitto")

    def command(self) -> list[str]:
        settings = self.folder / "mosquitto.conf"
        user = "user root\n" if not os.getuid() else ""
        settings.write_text(
            f"listener 0 {self.address}\nallow_anonymous true\npersistence false\nlog_dest none\n"
            f"max_queued_messages 0\nmax_inflight_messages 0\n{user}"
        )
        return [find_program("mosquitto"), "-c", str(settings)]

    @classmethod
    def version(cls) -> str:
        return version_of(find_program("mosquitto"), "-h")

    def _packet(self, kind: int, body: bytes) -> bytes:
        length, head = len(body), bytearray([kind])
        while True:
            length, seven = divmod(length, 128)
            head.append(seven | 128 * bool(length))
            if not length:
                return bytes(head) + body

    def publisher(self) -> socket.socket:
        sock = self.dial()
        # A clean session without a keep-alive, and without a client identifier, which the broker then draws.
        sock.sendall(self._packet(0x10, b"\0\4MQTT\4\2\0\0\0\0"))
        if exactly(sock, 4) != b"\x20\2\0\0":
            raise StateError("mosquitto refuses the connection")
        return sock

    def subscriber(self) -> socket.socket:
        sock = self.publisher()
        sock.sendall(self._packet(0x82, struct.pack("!HH", 1, len(KEY)) + KEY + b"\0"))
        exactly(sock, 5)
        return sock

    def frame(self, payload: bytes) -> bytes:
        return self._packet(0x30, struct.pack("!H", len(KEY)) + KEY + payload)

    def unit(self, payload: bytes) -> int:
        return len(self.frame(payload))


class ZeroMq(Broker):
    """A proxy of ZeroMQ, ``zmq.proxy`` between XSUB and XPUB, over Unix sockets (ZMTP 3.0,
    https://rfc.zeromq.org/23).
    """

    name = "zeromq"
    title = "ZeroMQ proxy"

    @property
    def address(self) -> str:
        return str(self.folder / "zeromq")

    def command(self) -> list[str]:
        with suppress(ImportError):
            import zmq  # noqa: F401

            return [sys.executable, str(Path(__file__).with_name("clients.py")), "proxy", self.address]
        raise NotInstalledError("pyzmq is not installed")

    @classmethod
    def version(cls) -> str:
        try:
            import zmq
        except ImportError:
            raise NotInstalledError("pyzmq is not installed") from None
        return f"{zmq.zmq_version()} (pyzmq {zmq.__version__})"

    def is_up(self) -> bool:
        return all(os.path.exists(self.address + side) for side in ("-in", "-out"))

    def _talk(self, side: str, kind: bytes) -> socket.socket:
        sock = connect_stream(self.address + side, PATIENCE)
        sock.sendall(b"\xff" + bytes(8) + b"\x7f\3\0NULL".ljust(55, b"\0"))
        exactly(sock, 64)
        ready = b"\5READY\x0bSocket-Type" + struct.pack("!I", len(kind)) + kind
        sock.sendall(bytes([4, len(ready)]) + ready)
        exactly(sock, exactly(sock, 2)[1])
        return sock

    def publisher(self) -> socket.socket:
        sock = self._talk("-in", b"PUB")
        # What the subscribers want comes through the proxy: from here on it is in force.
        exactly(sock, len(self._subscription()))
        return sock

    def subscriber(self) -> socket.socket:
        sock = self._talk("-out", b"SUB")
        sock.sendall(self._subscription())
        return sock

    def _subscription(self) -> bytes:
        return bytes([0, len(KEY) + 1, 1]) + KEY

    def frame(self, payload: bytes) -> bytes:
        body = KEY + payload
        return (bytes([0, len(body)]) if len(body) < 256 else b"\2" + struct.pack("!Q", len(body))) + body

    def unit(self, payload: bytes) -> int:
        return len(self.frame(payload))


BROKERS: tuple[type[Broker], ...] = (Redis, Nats, Mosquitto, ZeroMq, RabbitMq, Dbus)
"""All that are known, in the order in which they are shown."""
