"""``sbus peer`` as a program: what it shows and forwards, and whom it finds."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
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


def test_a_message_and_files_are_published_from_the_command_line(
    run: Run, listening: Listening, tmp_path: Path
) -> None:
    into = tmp_path / "into"
    into.mkdir()
    process, address = listening("peer", "--listen", ":0", "--sub", "//a", "--receive", "//docs", str(into))
    source = tmp_path / "report.bin"
    source.write_bytes(os.urandom(3_000_000))
    done = run("sbuslib", "peer", "--connect", address, "--pub", "//a/b", "hello", "--send", "//docs/1", str(source))
    assert (done.returncode, done.stderr) == (0, "")
    assert process.stdout.readline() == b"//a/b\thello\n"
    assert process.stdout.readline().decode() == f"{into}/report.bin\n"
    assert (into / "report.bin").read_bytes() == source.read_bytes()
    process.terminate()
    assert process.wait(20) == 0
    assert os.listdir(into) == ["report.bin"]


def test_retained_data_is_for_those_that_come_later(listening: Listening, make_peer: Make) -> None:
    _, address = listening("peer", "--listen", ":0", "--retain", "//motd", "closed on Monday")
    peer = make_peer()
    with peer.subscribe("//motd") as inbox:
        peer.connect(address)
        assert inbox.receive(timeout=20).data == b"closed on Monday"


def test_what_nobody_wants_is_an_error(run: Run, tmp_path: Path) -> None:
    done = run("sbuslib", "peer", "--listen", ":0", "--timeout", "0.01", "--pub", "//a", "x")
    assert done.returncode == 1
    assert "no peer wants //a within 0.01 s" in done.stderr
    done = run("sbuslib", "peer", "--listen", ":0", "--timeout", "0.01", "--send", "//a", "/nowhere")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "sbus: /nowhere: No such file or directory")


@pytest.mark.parametrize("where", ["nowhere", ":99999", "127.0.0.1"])
def test_an_address_that_is_none_is_refused_in_one_line(run: Run, where: str) -> None:
    done = run("sbuslib", "peer", "--listen", where)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "HOST:PORT" in done.stderr or where in done.stderr
