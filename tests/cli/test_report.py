"""``sbus report`` with DuckDB: what it prints, writes and refuses. ``tests/spark`` has it with Spark.

The numbers are those of ``docs/tutorial-spark.md``.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from docs.pages import DOCS, blocks
from lake.journals import START_NS, Row, segment

from sbuslib.cli.main import main

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, without Java, with the journal of what the tutorial's program publishes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    rows = []
    for number in range(500):
        at = START_NS + number * 10_000_000
        rows += [Row(b"room/%d/temp" % room, b"21.5", at) for room in (1, 2)]
        if number % 10 == 0:
            rows.append(Row(b"ask/target", b'{"id": %d}' % number, at))
            rows.append(Row(b"answer/target", b'{"id": %d, "target": 21}' % number, at + 3_000_000))
    segment(tmp_path / "journal", 1, rows)
    return tmp_path


def test_traffic_is_a_page_and_tables(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "traffic", "journal", "--csv", "tables", "--levels", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == ["traffic.html", "tables"]
    text = (recorded / "traffic.html").read_text("utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "<b>1,100</b><span>messages</span>" in text
    assert text.count("<svg") == 2
    assert "Made by sbus with DuckDB on " in text
    with (recorded / "tables" / "by_level.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert first == {"level": "1", "prefix": "room/", "messages": "1000", "bytes": "4000", "keys": "2", "largest": "4"}


def test_subscriptions_are_those_of_the_tutorial(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (patterns,) = [block.text for block in blocks(DOCS / "tutorial-spark.md") if block.language == "text"]
    (recorded / "patterns.txt").write_text(patterns)
    assert main(["report", "subscriptions", "journal", "patterns.txt", "--output", "-", "--csv", "tables"]) == 0
    assert capsys.readouterr().out == "tables\n"
    with (recorded / "tables" / "patterns.csv").open(newline="") as file:
        found = [(row["pattern"], row["messages"], row["covered_by"]) for row in csv.DictReader(file)]
    assert found == [
        ("room/*/temp", "1000", ""),
        ("room/1/temp", "500", "room/*/temp"),
        ("ask/", "50", ""),
        ("room/*/humidity", "0", ""),
    ]


@pytest.mark.parametrize(
    ("choice", "status", "said"),
    [
        (("--hub", "none"), 1, "journal: nothing of hub none was recorded"),
        (("--start", "2040-01-01"), 1, "journal: nothing was recorded in that time"),
        (("--end", f"@{START_NS // 1_000_000_000}"), 1, "journal: nothing was recorded in that time"),
        (("--engine", "duckdb", "--conf", "a=b"), 2, "--master and --conf are for Spark"),
        (("--output", "/nowhere/x.html"), 2, "cannot be written"),
    ],
)
def test_what_gives_no_report_is_told(
    recorded: Path, choice: tuple[str, ...], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "traffic", "journal", *choice]) == status
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
