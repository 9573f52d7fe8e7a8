"""``sbus clients`` as a program."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable

import pytest
from support import HubThread, Peer

from sbuslib.cli.stat import ORDERS

Run = Callable[..., "subprocess.CompletedProcess[str]"]


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
        assert numbers(run("sbuslib", "clients", "-a", path, "--sort", "published", "-n", "1")) == [2]
        assert numbers(run("sbuslib", "clients", "-a", path, "--sort", "patterns", "--rows", "1")) == [3]
        told = json.loads(run("sbuslib", "clients", "-a", path, "--json", "-n", "2").stdout)
        assert [(one["number"], one["received"]) for one in told] == [(1, 0), (2, 3)]


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_is_one(run: Run, bus: HubThread, path: str, order: str) -> None:
    assert numbers(run("sbuslib", "clients", "-a", path, "--sort", order)) == [1]
