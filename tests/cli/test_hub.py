"""``sbus hub`` as a program: a hub in the foreground."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Callable

import pytest
from support import PATIENCE

from sbuslib.blocking import Client

Start = Callable[..., "subprocess.Popen[bytes]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_hub_serves_in_the_foreground(start: Start, path: str, number: signal.Signals) -> None:
    hub = start("sbuslib", "hub", "-a", path)
    assert hub.stdout is not None
    assert hub.stderr is not None
    assert hub.stdout.read() == b""
    assert hub.stderr.readline().decode() == f"sbus: listening at {path} (Ctrl-C ends it)\n"
    with Client(path) as client:
        client.whoami()
    hub.send_signal(number)
    assert hub.wait(PATIENCE) == 0
    assert hub.stderr.read() == b""
    assert not os.path.exists(path)


def test_hub_listens_where_clients_look_first(start: Start, run: Run, folder: str) -> None:
    for environment, address in (
        ({"SBUS_ADDRESS": f"{folder}/a", "XDG_RUNTIME_DIR": folder}, f"{folder}/a"),
        ({"XDG_RUNTIME_DIR": folder}, f"{folder}/sbus/bus"),
    ):
        hub = start("sbuslib", "hub", env=environment)
        assert hub.stdout is not None
        hub.stdout.read()
        assert os.path.exists(address)
        assert run("sbuslib", "whoami", env=environment).returncode == 0
    assert stat.S_IMODE(os.stat(f"{folder}/sbus").st_mode) == 0o700
