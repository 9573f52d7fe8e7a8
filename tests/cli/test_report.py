"""``sbus report``: pages and tables about what was recorded."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from cli.conftest import Run
from journal.format.journals import Row, segment

pytest.importorskip("duckdb")


def dotted(journal: Path, hub: str, separator: bytes) -> None:
    journal.mkdir()
    keys = [separator.join((b"room", b"%d" % number, b"temp")) for number in range(10)]
    segment(journal, 1, [Row(key, b"x", 10**18) for key in keys], hub=hub, separator=separator, journal=hub * 2)


def test_keys_are_cut_at_the_separator_of_the_hub_that_was_recorded(run: Run, tmp_path: Path) -> None:
    dotted(tmp_path / "a", "aaaaaaaa", b".")
    (tmp_path / "patterns").write_text("room.*.temp\n")
    tables = str(tmp_path / "tables")
    arguments = ("--output", "-", "--csv", tables, "--engine", "duckdb")
    place, patterns = str(tmp_path / "a"), str(tmp_path / "patterns")
    done = run("sbuslib", "report", "subscriptions", place, patterns, *arguments)
    assert done.returncode == 0, done.stderr
    with open(f"{tables}/patterns.csv") as file:
        assert [(row["pattern"], row["messages"]) for row in csv.DictReader(file)] == [("room.*.temp", "10")]
    done = run("sbuslib", "report", "subscriptions", place, patterns, "--json", "--engine", "duckdb")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"table": "patterns", "pattern": "room.*.temp", "messages": 10, "bytes": 10, "keys": 10, "covered_by": []}
    ]
    done = run("sbuslib", "report", "traffic", place, *arguments)
    assert done.returncode == 0, done.stderr
    with open(f"{tables}/by_level.csv") as file:
        assert ("1", "room.") in [(row["level"], row["prefix"]) for row in csv.DictReader(file)]


def test_journals_of_hubs_with_several_separators_are_reported_one_by_one(run: Run, tmp_path: Path) -> None:
    dotted(tmp_path / "a", "aaaaaaaa", b".")
    dotted(tmp_path / "b", "bbbbbbbb", b"/")
    arguments = ("--output", "-", "--csv", str(tmp_path / "tables"), "--engine", "duckdb")
    lake = str(tmp_path / "lake")
    assert run("sbuslib", "journal", "ingest", str(tmp_path / "a"), str(tmp_path / "b"), lake).returncode == 0
    done = run("sbuslib", "report", "traffic", lake, *arguments)
    assert done.returncode == 2
    assert done.stderr.endswith("its hubs have the separators . and /: choose one of them with --hub\n")
    assert run("sbuslib", "report", "traffic", lake, "--hub", "aaaaaaaa", *arguments).returncode == 0
