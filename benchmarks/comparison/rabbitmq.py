"""RabbitMQ: a broker whose handshake is longer than the others'."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from sbuslib.errors import StateError

from .broker import (
    KEY,
    PATIENCE,
    Broker,
    NotInstalledError,
    exactly,
    find_program,
    free_port,
)

__all__ = ["RabbitMq"]


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
        return inner if os.access(inner, os.X_OK) else find_program("rabbitmq-server")

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
        pids = self.pids
        for pid in reversed(pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self.process.wait()
        # The port mapper is left behind, and goes only when all that it knew of are gone.
        end = time.monotonic() + PATIENCE
        while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < end:
            time.sleep(0.02)
        with suppress(OSError, NotInstalledError):
            command = [find_program("epmd"), "-port", str(self._mapper), "-kill"]
            while time.monotonic() < end:
                done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
                if not done.returncode and b"Killed" in done.stdout:
                    break
                if b"Cannot connect" in done.stdout + done.stderr:
                    break
                time.sleep(0.1)

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
        _, _, length = struct.unpack("!BHI", exactly(sock, 7))
        body = exactly(sock, length + 1)
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
