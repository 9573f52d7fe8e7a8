"""``sbus-relay`` as a program: it joins a hub above, and ends."""

from __future__ import annotations

import os

import pytest
from cli.conftest import Program, Run, Start
from support import PATIENCE

from sbuslib.blocking import Client


def listening(process: Program) -> Program:
    """Wait until a hub listens: it closes its standard output then."""
    process.stdout.read()
    return process


def test_a_relay_joins_and_ends(start: Start, folder: str) -> None:
    top, below = f"{folder}/top", f"{folder}/below"
    listening(start("sbuslib.cli.daemon", "-f", "-a", top))
    slave = listening(
        start(
            "sbuslib.cli.relay", "--upstream", f"{folder}/none", "--upstream", top, "--listen", below, "--import", "a/"
        )
    )
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
    execute: Run, folder: str, arguments: tuple[str, ...], status: int
) -> None:
    done = execute("sbuslib.cli.relay", *(argument.format(folder) for argument in arguments))
    assert done.returncode == status
    assert status == 2 or done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
