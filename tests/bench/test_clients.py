"""Clients in Python are measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbuslib.bench import clients, daemons
from sbuslib.bench.scenarios import SCENARIOS
from sbuslib.errors import StateError

KINDS = [str(kind) for scenario in SCENARIOS if scenario.job == "clients" for kind in scenario.options]


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_python_clients_are_measured(place: Path, kind: str) -> None:
    receivers = 3 if kind == "many" else 1
    with daemons.hub(str(place / "bus")) as hub:
        run = clients.run(kind, hub.address, hub.pids, 300, receivers=receivers)
    assert (run.messages, run.received, run.lost) == (300, 300 * receivers, 0)
    assert run.seconds > 0
    assert run.cpu > 0


def test_a_client_that_fails_says_why(place: Path) -> None:
    with pytest.raises(StateError, match="no hub at"):
        clients.run("blocking", str(place / "none"), [os.getpid()], 10)
