"""Hubs that systemd starts when somebody connects."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

import pytest
from programs import Programs
from support import PATIENCE, ROOT

from sbuslib.blocking import Client


@pytest.mark.skipif(
    not shutil.which("systemd-socket-activate"), reason="needs systemd-socket-activate: apt-get install systemd"
)
@pytest.mark.parametrize("program", ["daemon", "relay"])
def test_socket_activation(programs: Programs, folder: str, program: str) -> None:
    address = f"{folder}/bus"
    command = [sys.executable, "-m", f"sbuslib.cli.{program}"]
    if program == "relay":
        programs.start("top")
        command += ["--upstream", programs.address("top"), "--listen", "/dev/fd/3"]
    else:
        command += ["-f", "-a", "/dev/fd/3"]
    activate = ["systemd-socket-activate", "--seqpacket", "-l", address, "-E", "PYTHONPATH"]
    process = subprocess.Popen([*activate, *command], env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        while not os.path.exists(address):
            assert process.poll() is None
        while True:  # it binds, and listens a moment later
            with contextlib.suppress(ConnectionError):
                client = Client(address)
                break
        with client:
            assert client.hub.whoami().count(b"!/cred/") == (2 if program == "relay" else 1)
            client.subscribe(b"k")
            client.publish(b"k", b"1")
            assert client.receive(timeout=PATIENCE).payload == b"1"
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
