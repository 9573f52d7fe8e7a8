"""``sbus peer`` as a program: what it shows and forwards, and whom it finds."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
