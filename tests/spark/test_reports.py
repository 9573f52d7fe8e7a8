"""Reports are the same rows with DuckDB and with Spark: the SQL is one, and runs unchanged in both."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from reports.rows import Row as Recorded
from reports.rows import in_memory, recording
from segments.journals import START_NS, Row, segment

from sbuslib.lake.sealing import seal
from sbuslib.reports import traffic
from sbuslib.reports.by_key import by_key, by_level, by_pattern
from sbuslib.reports.sql import Choice, InSpark, in_duckdb, in_spark
from sbuslib.reports.sql import Recorded as Engine
from sbuslib.reports.subscriptions import subscriptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEPARATORS = (b"/", b".", b"x", b"F", b"\\", b"\n", b"'", b"$", b"\x7f")
"""Those that DuckDB would write into an escaped key (``\\xFF``), and those that SQL or expressions mean otherwise."""

PATTERNS = [b"", b"a/", b"a*/", b"*/b", b"\xff*", b"x", b"xFx", b"nothing/here"]


def random_rows(seed: int, count: int = 200) -> list[Recorded]:
    """Rows with whatever a journal may hold, and more: null times, keys that are no text, times before 1970."""
    chance = random.Random(seed)
    times = [
        None,
        -1.8e9,
        -1.75e9 - 0.5,
        0.0,
        0.000001,
        59.999999,
        60.0,
        1e9,
        *(chance.random() * 300 for _ in range(6)),
    ]
    pieces = [
        b"a",
        b"b",
        b"x",
        b"F",
        b"\\",
        b"\xff",
        b"\xc3",
        b"\0x"[1:],
        b"'",
        b"\n",
        b"/",
        b".",
        b"$",
        "é".encode(),
        b"*",
    ]
    sizes = [0, 1, 2, 3, 4, 5, 1_023, 1_024, 1_025, 2**40, 2**40 + 1, 2**52]
    rows = []
    for _ in range(count):
        at, hub = chance.choice(times), chance.choice([None, "", "hub-1", "hub-é", "9f2c'"])
        if chance.random() < 0.8:
            key = b"".join(chance.choices(pieces, k=chance.randrange(7)))
            sender = chance.choice([None, b"", b"\xff\xfe", b"!/cred/100/1000/4711"])
            ids = [chance.choice([None, 0, 1000, 2**32 - 1]) for _ in range(2)]
            size = chance.choice(sizes)
            rows.append(
                Recorded(kind="message", at=at, hub=hub, key=key, size=size, sender=sender, gid=ids[0], uid=ids[1])
            )
        else:
            lost, cause = chance.choice([None, 0, 1, 2**40]), chance.choice([None, "", "overflow", "cut"])
            rows.append(Recorded(kind="gap", at=at, hub=hub, lost=lost, cause=cause))
    return rows


def everything(rows: Engine, separator: bytes = b"/") -> dict[str, Any]:
    """All that reports ask, by name, with the types of the values."""
    counts = by_key(rows)
    found = {
        "span": traffic.span(rows),
        "keys": sorted(counts),
        "levels": by_level(counts, 3, separator),
        "patterns": by_pattern(counts, PATTERNS, separator),
        **{name: table.rows for name, table in traffic.summaries(rows, 60).items()},
    }
    return {name: (value, repr(value)) for name, value in found.items()}


@pytest.mark.parametrize("seed", range(6))
def test_both_engines_give_the_same_rows_of_random_tables(spark: SparkSession, seed: int) -> None:
    table = recording(random_rows(seed))
    separator = SEPARATORS[seed % len(SEPARATORS)]
    with in_memory(table) as rows:
        expected = everything(rows, separator)
    found = everything(InSpark(spark.createDataFrame(table)), separator)
    for name, value in expected.items():
        assert found[name] == value, name


def test_every_separator_cuts_keys_alike(spark: SparkSession) -> None:
    """Keys with each byte twice. The keys come from the engines, and are cut in Python."""
    table = recording([Recorded(kind="message", at=0, key=bytes([one, 0x61, one]), size=1) for one in range(256)])
    with in_memory(table) as rows:
        counts = by_key(rows)
    assert sorted(by_key(InSpark(spark.createDataFrame(table)))) == sorted(counts)
    for separator in SEPARATORS:
        assert (1, separator, 1, 1, 1, 1) in by_level(counts, 3, separator)
        assert (2, separator + b"a" + separator, 1, 1, 1, 1) in by_level(counts, 3, separator)


def test_an_empty_table_gives_no_rows(spark: SparkSession) -> None:
    table = recording([])
    with in_memory(table) as rows:
        assert everything(rows) == everything(InSpark(spark.createDataFrame(table)))
        assert traffic.traffic(rows) is None


def test_both_engines_give_the_same_reports_of_a_journal(spark: SparkSession, tmp_path: Path) -> None:
    """Sealed files, with the rows that are not sealed, of two journals; all of them, and those of a hub or a time."""
    second = 1_000_000_000
    for number, hub in enumerate(("hub-1", "hub-2")):
        folder, journal = tmp_path / hub, f"{number:016x}"
        rows = [
            Row(b"room/%d/\xff" % (n % 3), b"x" * n, START_NS + n * second, b"!/cred/100/1000/%d" % (n % 2))
            for n in range(40)
        ]
        segment(folder, 1, rows[:20], (START_NS + 20 * second, "overflow", 7), hub=hub, journal=journal)
        seal(folder)
        segment(folder, 22, rows[20:], (START_NS + 41 * second, "cut", None), hub=hub, journal=journal)

    times = Choice(start_ns=START_NS + 5 * second, end_ns=START_NS + 41 * second)
    for place in (str(tmp_path / "hub-1"), str(tmp_path / "hub-2")):
        for choice in (Choice(), Choice(hub="hub-2"), times):
            found = []
            with ExitStack() as stack:
                for recorded in (stack.enter_context(in_duckdb(place, choice)), in_spark(spark, place, choice)):
                    made = [traffic.traffic(recorded, levels=2), subscriptions(recorded, PATTERNS)]
                    found.append([report and report.tables for report in made])
                    assert all(f"with {recorded.engine} on" in report.page() for report in made if report is not None)
            assert found[0] == found[1]
            assert (found[0][0] is None) is (choice.hub == "hub-2" and place.endswith("hub-1"))
