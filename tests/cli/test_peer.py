"""``sbus peer`` as a program: what it shows and forwards, and whom it finds."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from support import eventually

from sbuslib.tcp import Discovery, Peer

Make = Callable[..., Peer]
Listening = Callable[..., tuple[Any, str]]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_peer_shows_what_is_published_and_ends_on_a_signal(listening: Listening, make_peer: Make) -> None:
    process, address = listening("peer", "--listen", ":0", "--sub", "//a")
    peer = make_peer()
    peer.connect(address)
    peer.wait_for_subscriber("//a/b", timeout=20)
    peer.publish("//a/b", b"\x1b[2J\n")
    assert process.stdout.readline() == b"//a/b\t\\x1b[2J\\n\n"
    process.terminate()
    assert process.wait(20) == 0


def test_a_peer_forwards_and_is_discovered(listening: Listening, make_peer: Make) -> None:
    _, seed = listening("peer", "--listen", ":0", "--discover", "org", "--who", "seed", "--forward", "chat")
    listening("peer", "--listen", ":0", "--connect", seed, "--discover", "org", "--who", "first")
    peer = make_peer(discover=Discovery(org="org", who="second"))
    peer.connect(seed)
    eventually(lambda: sorted(link.who or "" for link in peer.links) == ["first", "seed"])
    peer.wait_for_subscriber("//chat", timeout=20)


@pytest.mark.parametrize("where", ["nowhere", ":99999", "127.0.0.1"])
def test_an_address_that_is_none_is_refused_in_one_line(run: Run, where: str) -> None:
    done = run("sbuslib", "peer", "--listen", where)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "HOST:PORT" in done.stderr or where in done.stderr
