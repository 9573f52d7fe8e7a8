"""Other brokers, each started for the purpose where it is installed, and driven as it is fastest: by batched writes.

A broker here is a program that is started in a folder, and three things about its protocol: how a publisher and a
subscriber introduce themselves, what a message is on its way in, and how long it is on its way out. The handshakes are
made here; the streams that then stand are handed to the load (``load stream`` of ``load.c``), which writes as many
messages at once as go into 64 KiB and counts what comes. Brokers that drop what a slow subscriber has not read yet are
told not to, so that nothing is lost that could be kept.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from ..errors import StateError
from .native import Load
from .results import Run

__all__ = ["BROKERS", "KEY", "Broker", "NotInstalledError", "free_port"]

KEY = b"bench/0000000/00000000"
"""The routing key: as long as the load's own are."""

_PATIENCE = 60.0


class NotInstalledError(StateError):
    """A broker is not installed here; the message says what is missing."""


def free_port() -> int:
    """A TCP port of this machine that nobody listens at, for now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Broker(ABC):
    """A broker that runs. ``folder`` is its own, for sockets, settings and whatever it writes."""

    name: ClassVar[str]
    """What it is called in results, and in :mod:`sbuslib.bench.clients`."""
    title: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it listens: a path, or ``127.0.0.1:PORT``."""

    @abstractmethod
    def command(self) -> list[str]:
        """The program and its arguments. Raises :exc:`NotInstalledError`."""

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """Which release this is."""

    def environment(self) -> dict[str, str]:
        """What the program finds in its environment beside what is there already."""
        return {}

    @property
    def pids(self) -> list[int]:
        """The processes whose CPU time counts."""
        assert self.process is not None
        return [self.process.pid]

    @contextmanager
    def running(self) -> Iterator[Broker]:
        """Start it, and stop it in the end.

        Raises :exc:`NotInstalledError`, and :exc:`StateError` when it does not start.
        """
        command = self.command()
        self.process = subprocess.Popen(
            command,
            env=os.environ | self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            end = time.monotonic() + _PATIENCE
            while not self.is_up():
                if self.process.poll() is not None or time.monotonic() > end:
                    raise StateError(f"{command[0]} did not start")
                time.sleep(0.02)
            yield self
        finally:
            self.stop()
            self.process.wait()

    def stop(self) -> None:
        """End its process."""
        assert self.process is not None
        self.process.terminate()

    def is_up(self) -> bool:
        """Whether clients may come."""
        with suppress(OSError):
            self.dial().close()
            return True
        return False

    def dial(self) -> socket.socket:
        """A connection that says nothing yet."""
        host, _, port = self.address.rpartition(":")
        if host:
            sock = socket.create_connection((host, int(port)), _PATIENCE)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        sock = _stream_socket()
        try:
            sock.settimeout(_PATIENCE)
            sock.connect(self.address)
        except BaseException:
            sock.close()
            raise
        return sock

    # -- the protocol -----------------------------------------------------------------------------------------

    @abstractmethod
    def publisher(self) -> socket.socket:
        """A connection that may publish. Made after the subscribers."""

    @abstractmethod
    def subscriber(self) -> socket.socket:
        """A connection that has subscribed to :data:`KEY`."""

    @abstractmethod
    def frame(self, payload: bytes) -> bytes:
        """What a publisher writes for a message."""

    @abstractmethod
    def unit(self, payload: bytes) -> int:
        """How many bytes a subscriber reads for a message."""

    def run(self, load: Load, count: int, *, receivers: int = 1, size: int = 100, trips: bool = False) -> Run:
        """Messages from one publisher to ``receivers``, or as many round trips."""
        payload = b"x" * size
        path = self.folder / "frame"
        path.write_bytes(self.frame(payload))
        socks: list[socket.socket] = []
        try:
            socks.extend(self.subscriber() for _ in range(receivers))
            socks.append(self.publisher())
            *incoming, outgoing = (str(sock.fileno()) for sock in socks)
            pids = ",".join(map(str, self.pids))
            return load(
                *("streamtrip" if trips else "stream", "-n", count, "-w", max(1, count // 10), "-P", pids),
                *("-i", ",".join(incoming), "-o", outgoing, "-f", path, "-z", self.unit(payload)),
                pass_fds=tuple(sock.fileno() for sock in socks),
            )
        finally:
            for sock in socks:
                sock.close()


def _stream_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _exactly(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = sock.recv(length - len(data))
        if not more:
            raise StateError("the broker closed the connection")
        data += more
    return data


def _until(sock: socket.socket, end: bytes) -> bytes:
    """What comes, byte by byte, until it ends so: handshakes are short, and nothing behind may be taken."""
    data = b""
    while not data.endswith(end):
        data += _exactly(sock, 1)
    return data


def _find(*names: str) -> str:
    """The first of these programs that is here; servers are often where no user's path leads."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    for name in names:
        found = shutil.which(name, path=path)
        if found:
            return found
    raise NotInstalledError(f"{names[0]} is not installed")


def _version(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    numbers = [word.strip("v=,") for word in (done.stdout + done.stderr).split() if "." in word]
    return next((word for word in numbers if word[:1].isdigit()), "unknown")


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
        return [_find("redis-server"), *settings]

    @classmethod
    def version(cls) -> str:
        return _version(_find("redis-server"), "--version").removeprefix("v=")

    def _array(self, *words: bytes) -> bytes:
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)

    def publisher(self) -> socket.socket:
        sock = self.dial()
        sock.sendall(self._array(b"CLIENT", b"REPLY", b"OFF"))
        return sock

    def subscriber(self) -> socket.socket:
        sock = self.dial()
        sock.sendall(self._array(b"SUBSCRIBE", KEY))
        _exactly(sock, len(self._array(b"subscribe", KEY)) + len(b":1\r\n"))
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
        return [_find("nats-server"), "-c", str(settings)]

    @classmethod
    def version(cls) -> str:
        return _version(_find("nats-server"), "--version")

    def _talk(self, said: bytes) -> socket.socket:
        sock = self.dial()
        _until(sock, b"\r\n")
        sock.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\n' + said + b"PING\r\n")
        while _until(sock, b"\r\n") != b"PONG\r\n":
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
        return [_find("mosquitto"), "-c", str(settings)]

    @classmethod
    def version(cls) -> str:
        return _version(_find("mosquitto"), "-h")

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
        if _exactly(sock, 4) != b"\x20\2\0\0":
            raise StateError("mosquitto refuses the connection")
        return sock

    def subscriber(self) -> socket.socket:
        sock = self.publisher()
        sock.sendall(self._packet(0x82, struct.pack("!HH", 1, len(KEY)) + KEY + b"\0"))
        _exactly(sock, 5)
        return sock

    def frame(self, payload: bytes) -> bytes:
        return self._packet(0x30, struct.pack("!H", len(KEY)) + KEY + payload)

    def unit(self, payload: bytes) -> int:
        return len(self.frame(payload))


class ZeroMq(Broker):
    """A proxy of ZeroMQ, ``zmq.proxy`` between XSUB and XPUB, over Unix sockets (ZMTP 3.0, https://rfc.zeromq.org/23)."""

    name = "zeromq"
    title = "ZeroMQ proxy"

    @property
    def address(self) -> str:
        return str(self.folder / "zeromq")

    def command(self) -> list[str]:
        with suppress(ImportError):
            import zmq  # noqa: F401

            return [sys.executable, "-m", "sbuslib.bench.clients", "proxy", self.address]
        raise NotInstalledError("pyzmq is not installed")

    @classmethod
    def version(cls) -> str:
        import zmq

        return f"{zmq.zmq_version()} (pyzmq {zmq.__version__})"

    def is_up(self) -> bool:
        return all(os.path.exists(self.address + side) for side in ("-in", "-out"))

    def _talk(self, side: str, kind: bytes) -> socket.socket:
        sock = _stream_socket()
        sock.settimeout(_PATIENCE)
        sock.connect(self.address + side)
        sock.sendall(b"\xff" + bytes(8) + b"\x7f\3\0NULL".ljust(55, b"\0"))
        _exactly(sock, 64)
        ready = b"\5READY\x0bSocket-Type" + struct.pack("!I", len(kind)) + kind
        sock.sendall(bytes([4, len(ready)]) + ready)
        _exactly(sock, _exactly(sock, 2)[1])
        return sock

    def publisher(self) -> socket.socket:
        sock = self._talk("-in", b"PUB")
        # What the subscribers want comes through the proxy: from here on it is in force.
        _exactly(sock, len(self._subscription()))
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


class RabbitMq(Broker):
    """RabbitMQ over loopback TCP, without confirmations or acknowledgements (AMQP 0-9-1, https://www.rabbitmq.com)."""

    name = "rabbitmq"
    title = "RabbitMQ"
    _EXCHANGE = b"bench"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port, self._distribution, self._mapper = free_port(), free_port(), free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @staticmethod
    def _program() -> str:
        # The one in the path is often a wrapper that insists on a user of its own.
        inner = "/usr/lib/rabbitmq/bin/rabbitmq-server"
        return inner if os.access(inner, os.X_OK) else _find("rabbitmq-server")

    def command(self) -> list[str]:
        return [self._program()]

    def environment(self) -> dict[str, str]:
        folder = str(self.folder)
        return {
            "HOME": folder,
            "ERL_EPMD_PORT": str(self._mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{self._port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": folder,
            "RABBITMQ_LOG_BASE": folder,
            "RABBITMQ_CONFIG_FILE": folder + "/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder + "/plugins",
        }

    @classmethod
    def version(cls) -> str:
        cls._program()
        done = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"], capture_output=True, text=True, check=False
        )
        return done.stdout.partition("-")[0] or "unknown"

    @property
    def pids(self) -> list[int]:
        """The virtual machine's process, which a script has started."""
        assert self.process is not None
        found = [self.process.pid]
        for pid in found:
            with suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return found

    def stop(self) -> None:
        assert self.process is not None
        for pid in reversed(self.pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self.process.wait()
        with suppress(OSError, NotInstalledError):  # the port mapper, which it leaves behind
            subprocess.run(
                [_find("epmd"), "-port", str(self._mapper), "-kill"],
                capture_output=True,
                timeout=_PATIENCE,
                check=False,
            )

    def is_up(self) -> bool:
        with suppress(OSError, StateError):
            self.publisher().close()
            return True
        return False

    @staticmethod
    def _method(kind: int, arguments: bytes, channel: int = 1) -> bytes:
        body = struct.pack("!I", kind) + arguments
        return struct.pack("!BHI", 1, channel, len(body)) + body + b"\xce"

    @staticmethod
    def _short(text: bytes) -> bytes:
        return bytes([len(text)]) + text

    @staticmethod
    def _await(sock: socket.socket, kind: int) -> bytes:
        _, _, length = struct.unpack("!BHI", _exactly(sock, 7))
        body = _exactly(sock, length + 1)
        if struct.unpack_from("!I", body)[0] != kind:
            raise StateError("RabbitMQ answers something else")
        return body[4:-1]

    def publisher(self) -> socket.socket:
        sock = self.dial()
        sock.sendall(b"AMQP\0\0\x09\x01")
        self._await(sock, 0x000A000A)
        login = b"\0guest\0guest"
        start = struct.pack("!I", 0) + self._short(b"PLAIN") + struct.pack("!I", len(login)) + login
        sock.sendall(self._method(0x000A000B, start + self._short(b"en_US"), 0))
        channels, longest, _ = struct.unpack("!HIH", self._await(sock, 0x000A001E))
        sock.sendall(self._method(0x000A001F, struct.pack("!HIH", channels, longest, 0), 0))
        sock.sendall(self._method(0x000A0028, self._short(b"/") + b"\0\0", 0))
        self._await(sock, 0x000A0029)
        sock.sendall(self._method(0x0014000A, b"\0"))
        self._await(sock, 0x0014000B)
        declare = b"\0\0" + self._short(self._EXCHANGE) + self._short(b"topic") + b"\0" + struct.pack("!I", 0)
        sock.sendall(self._method(0x0028000A, declare))
        self._await(sock, 0x0028000B)
        return sock

    def subscriber(self) -> socket.socket:
        sock = self.publisher()
        sock.sendall(self._method(0x0032000A, b"\0\0\0\4" + struct.pack("!I", 0)))  # exclusive, with a drawn name
        answer = self._await(sock, 0x0032000B)
        name = answer[1 : 1 + answer[0]]
        bind = b"\0\0" + self._short(name) + self._short(self._EXCHANGE) + self._short(KEY) + b"\0" + bytes(4)
        sock.sendall(self._method(0x00320014, bind))
        self._await(sock, 0x00320015)
        sock.sendall(self._method(0x003C0014, b"\0\0" + self._short(name) + self._short(b"t") + b"\2" + bytes(4)))
        self._await(sock, 0x003C0015)
        return sock

    def _content(self, method: bytes, payload: bytes) -> bytes:
        header = struct.pack("!HHQH", 60, 0, len(payload), 0)
        return (
            method
            + (struct.pack("!BHI", 2, 1, len(header)) + header + b"\xce")
            + (struct.pack("!BHI", 3, 1, len(payload)) + payload + b"\xce")
        )

    def frame(self, payload: bytes) -> bytes:
        publish = b"\0\0" + self._short(self._EXCHANGE) + self._short(KEY) + b"\0"
        return self._content(self._method(0x003C0028, publish), payload)

    def unit(self, payload: bytes) -> int:
        deliver = self._short(b"t") + bytes(8) + b"\0" + self._short(self._EXCHANGE) + self._short(KEY)
        return len(self._content(self._method(0x003C003C, deliver), payload))


BROKERS: tuple[type[Broker], ...] = (Redis, Nats, Mosquitto, ZeroMq, RabbitMq)
"""All that are known, in the order in which they are shown."""
