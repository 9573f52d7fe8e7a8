"""Real NATS, MQTT and Redis servers for tests, on free ports of this machine, which can be killed and restarted."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest


def free_port() -> int:
    """A port where nobody listens just now."""
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


STARTED: list[Server] = []
"""Servers that run, or ran: the fixtures of this folder kill them after each test."""


class Server:
    """One server. ``command`` makes its arguments of its port and a folder where it may keep things."""

    def __init__(self, program: str, folder: str, command: Callable[[int, str], list[str]]) -> None:
        path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
        if path is None:
            pytest.skip(f"{program} is not installed")
        # Held so that no test that runs beside takes the port before the server listens there, which it still may.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port: int = self._held.getsockname()[1]
        self._place = os.path.join(folder, f"{program}-{self.port}")
        os.mkdir(self._place)
        self._command = [path, *command(self.port, self._place)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> Self:
        STARTED.append(self)
        with open(os.path.join(self._place, "log"), "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self._place)
        if wait:
            self.wait()
        return self

    def wait(self) -> None:
        """Return when the server takes connections."""
        assert self._process is not None
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            assert self._process.poll() is None, Path(self._place, "log").read_text()
            time.sleep(0.01)

    def reload(self) -> None:
        """Let the server read its configuration again."""
        self._signal(signal.SIGHUP)

    def pause(self) -> None:
        """Let the server stand still, with its connections open."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        os.waitpid(self._process.pid, os.WUNTRACED)  # until it does

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        self._held.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def nats_server(folder: str, *arguments: str, streams: bool = True) -> Server:
    def command(port: int, place: str) -> list[str]:
        kept = ["-js", "-sd", f"{place}/js"] if streams else []
        return ["-a", "127.0.0.1", "-p", str(port), *kept, *arguments]

    return Server("nats-server", folder, command)


def mosquitto(folder: str, *lines: str) -> Server:
    def command(port: int, place: str) -> list[str]:
        with open(f"{place}/conf", "w") as file:
            # What would be queued for a slow client is not dropped.
            base = [
                f"listener {port} 127.0.0.1",
                "max_queued_messages 0",
                "max_inflight_messages 0",
                "set_tcp_nodelay true",
            ]
            if os.geteuid() == 0:
                base.append("user root")  # who may read what is in the folder
            if not any(line.startswith("password_file") for line in lines):
                base.append("allow_anonymous true")
            file.write("\n".join([*base, *lines]) + "\n")
        return ["-c", f"{place}/conf"]

    return Server("mosquitto", folder, command)


def redis_server(folder: str, *arguments: str, certificates: dict[str, str] | None = None) -> Server:
    def command(port: int, place: str) -> list[str]:
        ports = ["--port", str(port)]
        if certificates is not None:
            ports = ["--port", "0", "--tls-port", str(port)]
            for option, name in (("cert", "cert"), ("key", "key"), ("ca-cert", "ca")):
                ports += [f"--tls-{option}-file", certificates[name]]
        return [
            *(*ports, "--bind", "127.0.0.1", "--dir", place, "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "always"),
            *arguments,
        ]

    return Server("redis-server", folder, command)


def secure_server(broker: str, folder: str, certificates: dict[str, str], *arguments: str) -> Server:
    """A server that shows a certificate, and demands one of the same authority."""
    cert, key, ca = (certificates[name] for name in ("cert", "key", "ca"))
    match broker:
        case "nats":
            files = ("--tlscert", cert, "--tlskey", key, "--tlscacert", ca)
            return nats_server(folder, "--tlsverify", *files, *arguments, streams=False)
        case "mqtt":
            lines = (f"certfile {cert}", f"keyfile {key}", f"cafile {ca}", "require_certificate true")
            return mosquitto(folder, *lines)
        case _:
            return redis_server(folder, certificates=certificates)
