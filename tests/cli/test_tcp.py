"""What ``sbus peer`` and ``sbus gateway`` share: wrong arguments, and errors that nobody foresaw."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from gevent import subprocess as waiting
from support import ROOT

from sbuslib import Hub
from sbuslib.tcp import Peer

Make = Callable[..., Peer]

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


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
