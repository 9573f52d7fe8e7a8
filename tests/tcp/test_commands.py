"""``sbus peer`` and ``sbus gateway`` from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gevent import subprocess as waiting
from support import ROOT, eventually

from sbuslib import Hub
from sbuslib.tcp import Discovery, Peer

Make = Callable[..., Peer]
Start = Callable[..., Any]

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def start() -> Iterator[Start]:
    """Start ``sbus`` with arguments, and return when it listens: the process, and where."""
    processes: list[Any] = []

    def start(*arguments: str) -> tuple[Any, str]:
        command = [sys.executable, "-m", "sbuslib", *arguments]
        process: Any = waiting.Popen(command, stdout=waiting.PIPE, stderr=waiting.PIPE, env=ENVIRONMENT)
        processes.append(process)
        said = process.stderr.readline().decode()
        assert said.startswith("sbus: listening at "), said
        return process, said.split()[3]

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def refused(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "sbuslib", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_peer_shows_what_is_published_and_ends_on_a_signal(start: Start, make_peer: Make) -> None:
    process, address = start("peer", "--listen", ":0", "--sub", "//a")
    peer = make_peer()
    peer.connect(address)
    peer.wait_for_subscriber("//a/b", timeout=20)
    peer.publish("//a/b", b"\x1b[2J\n")
    assert process.stdout.readline() == b"//a/b\t\\x1b[2J\\n\n"
    process.terminate()
    assert process.wait(20) == 0


def test_a_peer_forwards_and_is_discovered(start: Start, make_peer: Make) -> None:
    _, seed = start("peer", "--listen", ":0", "--discover", "org", "--who", "seed", "--forward", "chat")
    start("peer", "--listen", ":0", "--connect", seed, "--discover", "org", "--who", "first")
    peer = make_peer(discover=Discovery(org="org", who="second"))
    peer.connect(seed)
    eventually(lambda: sorted(link.who or "" for link in peer.links) == ["first", "seed"])
    peer.wait_for_subscriber("//chat", timeout=20)


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (["peer"], 2, "--listen or --connect"),
        (["peer", "--listen", "0.0.0.0:0"], 2, "TLS"),
        (["peer", "--listen", "nonsense"], 2, "HOST:PORT"),
        (["peer", "--listen", ":0", "--who", "me"], 2, "--discover"),
        (["peer", "--listen", ":0", "--tls-cert", "x"], 2, "--tls-key"),
        (["peer", "--listen", ":0", "--tls-cert", "/x", "--tls-key", "/x", "--tls-ca", "/x"], 2, "cannot be read"),
        (["gateway", "--bus", "/nonexistent", "--listen", ":0", "--export", "a"], 1, "no hub"),
        (["peer", "--listen", "192.0.2.1:1", "--insecure"], 1, "192.0.2.1:1"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(arguments: list[str], status: int, word: str) -> None:
    code, said = refused(*arguments)
    assert (code, len(said.splitlines())) == (status, 1), said
    assert said.startswith("sbus: ")
    assert word in said


@pytest.mark.parametrize("command", ["peer", "gateway"])
def test_the_help_has_examples(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sbuslib", command, "--help"],
        capture_output=True, text=True, timeout=30, env=ENVIRONMENT, check=True,
    )  # fmt: skip
    assert f"sbus {command} --" in done.stdout.split("examples:")[1]


PLANTED = """
import sys
from gevent import socket
from sbuslib.cli.main import main
from sbuslib.cli.relay import main as relay
from sbuslib.tcp import gateway, connections, discovery, link
from sbuslib import relay as relays
def fail(*arguments, **options):
    raise ZeroDivisionError("planted")
{0}
sys.exit({1})
"""


@pytest.mark.parametrize(
    ("planted", "command", "name"),
    [
        ("gateway.Gateway._stay_known = fail", "gateway", "gateway of 'bus'"),
        ("gateway.Gateway._import_all = fail", "gateway", "gateway of 'bus'"),
        ("gateway.Gateway._export_all = fail", "gateway", "gateway of 'bus'"),
        ("connections.Connections._watch_time = fail", "peer", "peer at 127.0.0.1:"),
        ("connections.Connections._dial = fail", "peer", "peer at 127.0.0.1:"),
        ("connections.Connections._serve = fail", "peer", "peer at 127.0.0.1:"),
        ("link.Link._read = fail", "peer", "peer at 127.0.0.1:"),
        ("link.Link._write = fail", "peer", "peer at 127.0.0.1:"),
        ("discovery.Discoverer._connect = fail", "peer", "peer at 127.0.0.1:"),
        ("relays.HubAbove.stay = fail", "relay", "relay to "),
    ],
)
def test_an_unforeseen_error_in_any_greenlet_ends_the_command_with_its_name_and_status_1(
    hub: Hub, folder: str, make_peer: Make, planted: str, command: str, name: str
) -> None:
    peer = make_peer()  # it wants what the commands offer, so that each of their greenlets has work
    ours = ["--listen", "127.0.0.1:0", "--connect", peer.address]
    run = {
        "gateway": f"main({['gateway', '--bus', hub.address, '--export', 'a', '--import', 'b', *ours]!r})",
        "peer": f"main({['peer', '--discover', 'org', '--sub', 'a', *ours]!r})",
        "relay": f"relay({['--upstream', hub.address, '--listen', os.path.join(folder, 'below')]!r})",
    }[command]
    process: Any = waiting.Popen(
        [sys.executable, "-c", PLANTED.format(planted, run)],
        stdout=waiting.PIPE, stderr=waiting.PIPE, env=ENVIRONMENT, text=True,
    )  # fmt: skip
    said = process.communicate(timeout=50)[1]
    assert process.returncode == 1
    last = said.splitlines()[-1]
    assert last.startswith(f"sbus-relay: {name}" if command == "relay" else f"sbus: {name}"), said
    assert last.endswith("ended by an unforeseen error: ZeroDivisionError: planted")
    assert "Traceback" in said


def test_an_unforeseen_error_outside_greenlets_ends_the_command_likewise() -> None:
    planted = "from sbuslib.cli import messages\nmessages.run = fail"
    done = subprocess.run(
        [sys.executable, "-c", PLANTED.format(planted, "main(['whoami'])")],
        capture_output=True, text=True, timeout=50, env=ENVIRONMENT, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("sbus: whoami ended by an unforeseen error: ZeroDivisionError: planted\n")
