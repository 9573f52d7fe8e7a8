"""``sbus tree`` as a program, and what it draws."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator

import msgspec
import pytest
from programs import Programs
from support import HubThread, Peer

from sbuslib.blocking import Client
from sbuslib.cli.stat import draw
from sbuslib.survey import SeenHub, survey

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def programs(folder: str) -> Iterator[Programs]:
    """A tree of three hubs, ``top``, ``left`` and ``leaf``, one below the other."""
    made = Programs(folder)
    made.start("top")
    for name, above in (("left", "top"), ("leaf", "left")):
        made.start(name, above)
        made.wait_until_joined(name)
    yield made
    made.close()


def test_a_tree_is_drawn_with_its_load(run: Run, programs: Programs) -> None:
    top, left, leaf = map(programs.address, ("top", "left", "leaf"))
    with Client(leaf) as client, Client(top) as publisher:
        client.subscribe(b"room/")
        client.sync("tree")
        publisher.publish_many([(b"room/1", b"")] * 1_200)
        while client.client_statistics()[-1].delivered < 1_200:
            client.receive_many()
        done = run("sbuslib", "tree", "-a", top, "--key", "room/1")
        lines = done.stdout.splitlines()
        assert (done.returncode, done.stderr, len(lines)) == (0, "", 5)
        assert lines[0].startswith(f"{top}: ")
        assert lines[0].endswith("1,200 published, lost 0")
        assert lines[1].startswith(f"└─ {left}: user root, joined, announce, up 0, down 1,200, 2 patterns, key: ")
        assert "down" in lines[1].rpartition("key: ")[2]
        assert lines[3].startswith(f"   └─ {leaf}: user root, joined, announce, up 0, down 1,200, 2 patterns, key: ")
        below = run("sbuslib", "tree", "-a", leaf).stdout.splitlines()
        assert below[0] == f"(below {left}: joined, announce, up 0, down 1,200, 1 pattern)"
        told = json.loads(run("sbuslib", "tree", "-a", top, "--json").stdout)
        assert msgspec.convert(told, SeenHub).below[0].link.delivered == 1_200
        assert "/s)" in run("sbuslib", "tree", "-a", top, "--rates", "0.01").stdout
        ascii_only = run("sbuslib", "tree", "-a", top, env={"PYTHONIOENCODING": "ascii"})
        assert ascii_only.returncode == 0


def test_rates_are_what_passed_between_two_looks(programs: Programs) -> None:
    top = programs.address("top")
    with Client(programs.address("leaf")) as client, Client(top) as publisher:
        client.subscribe(b"room/")
        client.sync("tree")
        before = survey(top)
        publisher.publish_many([(b"room/1", b"")] * 100)
        for _ in range(100):
            client.receive(timeout=20)
        lines = list(draw(survey(top), before, 4.0))
        assert "down 100 (25.0/s)" in lines[1]
        assert "down 100 (25.0/s)" in lines[3]
        programs.kill("left")
        programs.start_again("left")
        programs.wait_until_joined("leaf")
        assert "/s)" not in "".join(draw(survey(top), before, 4.0)), "links that were made anew begin at 0"


def test_what_a_relay_claims_cannot_steer_the_terminal(run: Run, bus: HubThread, path: str) -> None:
    with Peer(path) as relay:
        relay.send(b"CMSG interest/on", b"CMSG interest/address\0/x\x1b[2J\n\xff\xe2\x80\xae")
        relay.barrier()
        done = run("sbuslib", "tree", "-a", path)
        assert done.returncode == 0
        assert "└─ /x\\x1b[2J\\n�\\xe2\\x80\\xae: user root, joined" in done.stdout
        assert "no hub at" in done.stdout
        assert done.stdout.replace("\n", "").isprintable()


def test_a_hub_without_links_is_one_line(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "tree", env={"SBUS_ADDRESS": path})
    assert done.stdout == f"{path}: 1 clients, 0 published, lost 0\n"
    assert os.path.exists(path)
