"""``sbus stat`` as a program, and what it shows."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import msgspec
from support import HubThread, Peer

from sbuslib.cli.stat import describe
from sbuslib.core import reporting
from sbuslib.limits import Limits
from sbuslib.statistics import HubStatistics

Run = Callable[..., "subprocess.CompletedProcess[str]"]


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
        (link,) = (line.split() for line in lines if line.startswith("below "))
        assert link[1:7] == ["-", "root", "joined", "announce", "0", "500"]
        as_json = json.loads(run("sbuslib", "stat", "-a", path, "--json").stdout)
        assert msgspec.convert(as_json, HubStatistics).lost == told.lost


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
