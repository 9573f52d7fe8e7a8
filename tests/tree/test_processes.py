"""Hubs as processes: a master that is killed, and systemd's socket activation."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from support import PATIENCE, ROOT

from sbuslib.blocking import Client

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program of ours as ``python -m``; killed after the test."""
    with contextlib.ExitStack() as stack:

        def run(*arguments: str, before: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [*before, sys.executable, "-m", *arguments],
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield run


def listening(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Wait until a hub listens: it closes its standard output then."""
    assert process.stdout is not None
    process.stdout.read()
    return process


# -- systemd ----------------------------------------------------------------------------------------


@pytest.mark.skipif(
    not shutil.which("systemd-socket-activate"), reason="needs systemd-socket-activate: apt-get install systemd"
)
@pytest.mark.parametrize("program", ["sbuslib.cli.daemon", "sbuslib.cli.relay"])
def test_socket_activation(start: Start, folder: str, program: str) -> None:
    address = f"{folder}/bus"
    arguments = {
        "sbuslib.cli.daemon": ("-f", "-a", "/dev/fd/3"),
        "sbuslib.cli.relay": ("--upstream", f"{folder}/top", "--listen", "/dev/fd/3"),
    }[program]
    if program == "sbuslib.cli.relay":
        listening(start("sbuslib.cli.daemon", "-f", "-a", f"{folder}/top"))
    activate = ("systemd-socket-activate", "--seqpacket", "-l", address, "-E", "PYTHONPATH")
    process = start(program, *arguments, before=activate)
    while not os.path.exists(address):
        assert process.poll() is None
    while True:  # it binds, and listens a moment later
        with contextlib.suppress(ConnectionError):
            client = Client(address)
            break
    with client:
        assert client.hub.whoami().count(b"!/cred/") == (1 if program == "sbuslib.cli.daemon" else 2)
        client.subscribe(b"k")
        client.publish(b"k", b"1")
        assert client.receive(timeout=PATIENCE).payload == b"1"
    process.terminate()
    assert process.wait(PATIENCE) == 0
