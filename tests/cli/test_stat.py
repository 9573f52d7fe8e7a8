"""``sbus stat``, its clients and its tree, and how their tables are made."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

import msgspec
import pytest
from cli.conftest import Run
from programs import Programs
from support import HubThread, Peer

from sbuslib.blocking import Client
from sbuslib.cli import tables
from sbuslib.cli.stat import describe, draw
from sbuslib.cli.tables import View
from sbuslib.core import reporting
from sbuslib.limits import Limits
from sbuslib.monitor.rates import Look, Row
from sbuslib.monitor.survey import SeenHub, survey

# -- ``sbus stat`` as a program, and what it shows


def test_the_hub_its_users_clients_and_links_are_shown(run: Run, folder: str) -> None:
    path = f"{folder}/bus"
    with HubThread(path, limits=Limits(queued_packets=4)) as bus, Peer(path) as slow, Peer(path) as relay:
        slow.subscribe(b"k")
        slow.send(b"CMSG blocking/soft/discard")
        slow.barrier()
        relay.send(b"CMSG interest/on")
        relay.barrier()
        for _ in range(500):
            relay.publish(b"k", bytes(10_000))
        relay.barrier()
        with Peer(path) as wrong:
            wrong.send(b"nonsense")
            assert wrong.is_disconnected()
        done = run("sbuslib", "stat", "-a", path)
        told = bus.call(bus.hub.statistics)
        lost = told.lost["discard"]
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert lines[0] == f"{path}  id {told.hub_id}"
        assert "published  500" in lines
        assert f"lost       {lost:,} (discard {lost:,})" in lines
        assert "kicked     1 (unknown verb 1)" in lines
        user = next(line.split() for line in lines if line.startswith("root"))
        assert user[1:4] == ["3", "1", "500"]
        (client,) = (line for line in lines if line.startswith("!/cred/"))
        assert "discard discard queue" in client
        assert client.endswith(f"{lost:,} (discard {lost:,})")
        (link,) = (line.split() for line in lines if line.startswith("child "))
        assert link[1:7] == ["-", "root", "joined", "announce", "0", "500"]
        as_json = json.loads(run("sbuslib", "stat", "-a", path, "--json").stdout)
        assert (as_json["lost"], as_json["published"], as_json["waiting"]) == (told.lost, told.published, told.waiting)
        assert as_json["per_user"][0]["waiting_bytes"] == told.per_user[0].waiting_bytes


def test_clients_are_shown_by_their_losses_however_many_there_are(bus: HubThread, path: str, run: Run) -> None:
    told = bus.call(bus.hub.statistics)
    with Peer(path) as peer:
        peer.barrier()
        (one,) = bus.call(bus.hub.statistics).per_client
    clients = [
        msgspec.structs.replace(one, number=n, credentials=f"!/cred/1/1/{n}", lost={"overflow": n}) for n in range(50)
    ]
    lines = list(describe(msgspec.structs.replace(told, per_client=tuple(clients), clients=50)))
    shown = [line.split()[0] for line in lines if line.startswith("!/cred")]
    assert shown == [f"!/cred/1/1/{n}" for n in range(49, 39, -1)]
    assert lines[-1] == "and 39 more: sbus stat --clients"


def test_clients_of_a_crowded_hub_are_in_the_json(bus: HubThread, path: str, run: Run) -> None:
    peers = [Peer(path) for _ in range(reporting.PAGE + 1)]
    try:
        for peer in peers:
            peer.barrier()
        told = json.loads(run("sbuslib", "stat", "-a", path, "--json").stdout)
        assert len(told["per_client"]) == len(peers) + 1
        lines = run("sbuslib", "clients", "-a", path).stdout.splitlines()
        assert len(lines) == len(peers) + 2
    finally:
        for peer in peers:
            peer.close()


# -- ``sbus clients`` as a program


def numbers(done: subprocess.CompletedProcess[str]) -> list[int]:
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    assert re.split(r" {2,}", head)[:4] == ["CLIENT", "SOFT, HARD, ORDER", "USER", "PROGRAM"]
    return [int(re.split(r" {2,}", line)[4]) for line in lines]


def test_clients_are_shown_in_any_order(run: Run, bus: HubThread, path: str) -> None:
    with Peer(path) as quiet, Peer(path) as busy, Peer(path) as curious:
        quiet.barrier()
        for _ in range(3):
            busy.publish(b"k")
        busy.barrier()
        curious.subscribe(b"a", b"b")
        assert numbers(run("sbuslib", "stat", "--clients", "-a", path)) == [1, 2, 3, 4]
        assert numbers(run("sbuslib", "clients", "-a", path, "--sort", "published", "--rows", "1")) == [2]
        assert numbers(run("sbuslib", "clients", "-a", path, "--sort", "patterns", "--rows", "1")) == [3]
        told = json.loads(run("sbuslib", "clients", "-a", path, "--json", "--rows", "2").stdout)
        assert [(one["number"], one["published"]) for one in told] == [(1, 0), (2, 3)]


# -- ``sbus tree`` as a program, and what it draws


@pytest.fixture
def programs(programs: Programs) -> Programs:
    """A tree of three hubs, ``top``, ``left`` and ``leaf``, one below the other."""
    programs.start("top")
    for name, above in (("left", "top"), ("leaf", "left")):
        programs.start(name, above)
        programs.wait_until_joined(name)
    return programs


def test_a_tree_is_drawn_with_its_load(run: Run, programs: Programs) -> None:
    top, left, leaf = map(programs.address, ("top", "left", "leaf"))
    with Client(leaf) as client, Client(top) as publisher:
        client.subscribe(b"room/")
        client.sync("tree")
        publisher.publish_many([(b"room/1", b"")] * 1_200)
        while client.hub.clients()[-1].delivered < 1_200:
            client.receive_many()
        done = run("sbuslib", "tree", "-a", top)
        lines = done.stdout.splitlines()
        assert (done.returncode, done.stderr, len(lines)) == (0, "", 5)
        assert lines[0].startswith(f"{top}: ")
        assert lines[0].endswith("1,200 published, lost 0")
        assert lines[1].startswith(f"└─ {left}: user root, joined, announce, up 0, down 1,200, 2 patterns")
        assert lines[3].startswith(f"   └─ {leaf}: user root, joined, announce, up 0, down 1,200, 2 patterns")
        below = run("sbuslib", "tree", "-a", leaf).stdout.splitlines()
        assert below[0] == f"(below {left}: joined, announce, up 0, down 1,200, 1 pattern)"
        told = json.loads(run("sbuslib", "tree", "-a", top, "--json").stdout)
        assert msgspec.convert(told, SeenHub).children[0].link.down == 1_200
        assert "/s)" in run("sbuslib", "tree", "-a", top, "--window", "0.01").stdout


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


# -- How counts are shown


def test_columns_are_aligned_and_cannot_steer_a_terminal() -> None:
    assert tables.columns(
        [["NAME", "COUNT", "LOST"], ["a", 1_234, tables.losses({"x": 1, "y": 0})], ["b\n\x1b", 5, "0"]]
    ) == [
        "NAME     COUNT  LOST",
        "a        1,234  1 (x 1)",
        "b\\n\\x1b      5  0",
    ]


# -- Which rows ``sbus top`` shows, and in which order


def row(**told: Any) -> Row:
    counts = dict.fromkeys(("published_rate", "delivered_rate", "waiting", "lost_rate", "lost", "patterns"), 0)
    return {**counts, "user": "", "program": "", "modes": "", **told}


LOOK = Look(
    address="/bus",
    hub={},
    users=[
        row(user="root", connections=1, waiting_bytes=0),
        row(user="2147483648", connections=2, waiting_bytes=1_000),
    ],
    clients=[
        row(who="b", published_rate=1, delivered_rate=9, program="nginx"),
        row(who="A", published_rate=5),
        row(who="c", published_rate=5),
    ],
    links=[row(name="above", direction="up", state="joined"), row(name="below", direction="down", state="joined")],
)


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        (View(), "A c b"),
        (View(sort="delivered_rate"), "b A c"),
        (View(reverse=True), "b A c"),
        (View(sort="who"), "A b c"),
        (View(sort="who", reverse=True), "c b A"),
        (View(wanted="a"), "A"),
        (View(wanted="NGIN"), "b"),
        (View(wanted="nobody"), ""),
    ],
)
def test_rows_are_sorted_and_filtered(view: View, shown: str) -> None:
    rows = view.rows(LOOK)
    assert rows is not None
    assert " ".join(row["who"] for row in rows) == shown
    assert view.rows(Look("/bus", {}, [], None, [])) is None, "they were not asked for"


def test_another_kind_is_sorted_as_before_if_it_has_the_column() -> None:
    view = View(sort="patterns")
    view.change("users")
    assert (view.kind, view.sort) == ("users", "patterns")
    view.change("links")
    assert (view.kind, view.sort) == ("links", View("links", sort="patterns").sort) == ("links", "up_rate")
