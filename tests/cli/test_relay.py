"""``sbus-relay`` as a program: it joins a parent, and ends; and systemd starts it, or a hub, when somebody connects."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

import pytest
from cli.conftest import Run, Start
from programs import Programs
from support import PATIENCE, ROOT

from sbuslib.blocking import Client


def test_a_relay_joins_and_ends(serve: Start, folder: str) -> None:
    top, below = f"{folder}/top", f"{folder}/below"
    serve("-a", top)
    flags = ("--upstream", f"{folder}/none", "--upstream", top, "--listen", below, "--import", "a/")
    slave = serve(*flags, program="sbuslib.cli.relay")
    with Client(top) as above, Client(below) as client:
        assert client.hub.whoami().startswith(b"!/cred/%d/%d/%d/!/cred/" % (os.getgid(), os.getuid(), slave.pid))
        client.subscribe(b"")
        client.subscribe(client.hub.whoami() + b"/box")
        assert client.sync("tree") == "tree"
        above.publish(b"b/1", b"not imported")
        above.publish(b"a/1", b"imported")
        assert client.receive(timeout=PATIENCE).key == b"a/1"
        above.publish(client.hub.whoami() + b"/box", b"secret")
        assert client.receive(timeout=PATIENCE).payload == b"secret"
    slave.terminate()
    assert slave.wait(PATIENCE) == 0
    assert not os.path.exists(below)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), 2),
        (("--listen", "{}/x"), 2),
        (("--upstream", "", "--listen", "{}/x"), 2),
        (("--upstream", "{}/top", "--listen", "/nowhere/at/all"), 1),
        (("--upstream", "{}/top", "--listen", "{}/x", "--upstream-user", "no such user"), 2),
        (("--upstream", "{}/top", "--listen", "{}/x", "--relay", "@no such group"), 2),
    ],
)
def test_wrong_arguments_are_an_error_of_one_line(
    run_here: Run, folder: str, arguments: tuple[str, ...], status: int
) -> None:
    done = run_here("sbuslib.cli.relay", *(argument.format(folder) for argument in arguments))
    assert done.returncode == status
    assert status == 2 or done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


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
