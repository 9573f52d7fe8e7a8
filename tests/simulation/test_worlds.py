"""Worlds by seed: some hundred that are always the same, a few that change with the day, and all that were kept."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

KEPT = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.xfail(strict=True)] if "\n# open\n" in path.read_text() else [])
    for path in sorted((ROOT / "tests" / "simulation" / "kept").glob("*.txt"))
]
"""Plans that failed once; those that say "open" still do."""

LOTS = range(1, 101, 20)
"""The first seeds of lots of 20."""


def play(*arguments: str, hash_seed: str = "random") -> str:
    """Play worlds in a process of its own. Returns what it prints; fails where a world does, and shows that."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("first", LOTS)
def test_worlds_of_fixed_seeds_are_as_they_must_be(first: int) -> None:
    play("--first", str(first), "--seeds", "20")


def test_worlds_of_this_day_are_as_they_must_be() -> None:
    first = datetime.datetime.now(datetime.UTC).date().toordinal() * 1_000
    print(f"seeds from {first}")
    play("--first", str(first), "--seeds", "10")


@pytest.mark.parametrize("plan", KEPT)
def test_a_fault_that_was_mended_does_not_come_again(plan: Path) -> None:
    play("--plan", str(plan))


@pytest.mark.parametrize("seed", [1, 5, 17])
def test_the_same_seed_makes_the_same_events(seed: int) -> None:
    once = play("--first", str(seed), "--seeds", "1", "--events", hash_seed="1")
    again = play("--first", str(seed), "--seeds", "1", "--events", hash_seed="2")
    assert len(once.splitlines()) > 100
    assert once.splitlines()[:-1] == again.splitlines()[:-1]  # the last line has the time that it took
