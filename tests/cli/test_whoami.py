"""``sbus whoami`` as a program: the credentials that it prints, and the hub that it asks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from support import PATIENCE, HubThread

Start = Callable[..., "subprocess.Popen[bytes]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_whoami_prints_the_credentials(start: Start, bus: HubThread, path: str) -> None:
    process = start("sbuslib", "whoami", "-a", path)
    output, _ = process.communicate(timeout=PATIENCE)
    assert output.decode() == f"!/cred/{os.getgid()}/{os.getuid()}/{process.pid}\n"


def test_the_address_is_taken_from_the_environment(run: Run, bus: HubThread, folder: str, path: str) -> None:
    assert run("sbuslib", "whoami", env={"SBUS_ADDRESS": path}).returncode == 0
    assert run("sbuslib", "whoami", "-a", path, env={"SBUS_ADDRESS": "/nowhere"}).returncode == 0
    done = run("sbuslib", "whoami", env={"SBUS_ADDRESS": "/nowhere", "XDG_RUNTIME_DIR": folder})
    assert done.returncode == 1
    assert done.stderr.startswith("sbus: no hub at /nowhere: No such file or directory; ")


def test_an_error_names_the_addresses_that_were_tried(run: Run, folder: str) -> None:
    done = run("sbuslib", "whoami", env={"XDG_RUNTIME_DIR": folder})
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"sbus: no hub at {folder}/sbus/bus: No such file or directory; nor at /run/sbus.socket"
    )
