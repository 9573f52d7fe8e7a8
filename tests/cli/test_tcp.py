"""What ``sbus peer`` and ``sbus gateway`` share: wrong arguments, and errors that nobody foresaw."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from gevent import subprocess as waiting
from support import ROOT

from sbuslib import Hub
from sbuslib.tcp import Peer

Make = Callable[..., Peer]
Start = Callable[..., Any]

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


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
        ("relays.LinkAbove.stay = fail", "relay", "relay to "),
    ],
)
def test_an_unforeseen_error_in_any_greenlet_ends_the_command_and_is_told_with_its_name(
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
