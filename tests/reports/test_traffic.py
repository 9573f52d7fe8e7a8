"""Reports: traffic by key and time, subscriptions, and tables in files."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from reports.rows import SECOND, START_NS, gap, in_memory, message
from support import vectors

from sbuslib.errors import UsageError
from sbuslib.keys.covering import covers
from sbuslib.matcher import matches
from sbuslib.reports import traffic
from sbuslib.reports.by_key import KeyCount, by_level, by_pattern, coverage
from sbuslib.reports.exports import Table, write_csv, write_parquet
from sbuslib.reports.html import Report
from sbuslib.reports.subscriptions import read_patterns, subscriptions

# -- What a bus carried, counted, and the page that shows it

OTHER = b"!/cred/100/1001/99"

ROWS = [
    message(b"room/1/temp", b"21.5", at=0.25),
    message(b"room/2/temp", b"19", at=0.75),
    message(b"room/1/temp", b"", at=11, hub="hub-2", sender=OTHER, uid=1001),
    message(b"log", b"x" * 1_000, at=11.5),
    gap(7, "overflow", at=12),
    gap(2, "overflow", at=19.9),
    gap(None, "overflow", at=19.95),
    gap(None, "outage", at=19.9, hub="hub-2"),
    gap(1, "corrupt", at=None, hub="hub-2"),
]


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Table]]:
    with in_memory(ROWS) as recorded:
        yield traffic.summaries(recorded, 10)


def made(*rows: Any, **options: Any) -> Report:
    with in_memory(rows) as recorded:
        report = traffic.traffic(recorded, **options)
    assert report is not None
    return report


def tiles(html: str) -> dict[str, str]:
    """The figures at the top of a page, by what they count."""
    return {what: figure for figure, what in re.findall(r"<b>([^<]*)</b><span>([^<]*)</span>", html)}


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(START_NS / SECOND + seconds, UTC)


def test_span_is_the_time_from_the_first_row_to_the_last() -> None:
    with in_memory(ROWS) as recorded:
        span = traffic.span(recorded)
    assert span == (START_NS + SECOND // 4, START_NS + 1995 * SECOND // 100, 9)
    assert span is not None
    assert span.seconds == pytest.approx(19.7)
    with in_memory([]) as recorded:
        assert traffic.span(recorded) is None
        assert traffic.traffic(recorded) is None
    with in_memory([gap(None, "outage", at=None)]) as recorded:
        assert traffic.span(recorded) == (0, 0, 1)


def test_over_time_counts_by_hub_and_period(found: dict[str, Table]) -> None:
    """``lost`` is the sum of what is known, and null where there are gaps and nothing is known."""
    assert found["over_time"].rows == [
        ("hub-1", at(0), 2, 6, 0, 0),
        ("hub-1", at(10), 1, 1_000, 9, 1),
        ("hub-2", at(10), 1, 0, None, 1),
        ("hub-2", None, 0, 0, 1, 0),
    ]


def test_messages_are_counted_by_sender_and_by_user(found: dict[str, Table]) -> None:
    assert found["by_sender"].rows == [(b"!/cred/100/1000/4711", 1000, 3, 1_006), (OTHER, 1001, 1, 0)]
    assert found["by_user"].rows == [(1000, 100, 3, 1_006), (1001, 100, 1, 0)]


def test_gaps_are_counted_by_hub_and_cause(found: dict[str, Table]) -> None:
    assert found["gaps"].rows == [
        ("hub-1", "overflow", 3, 9, 1, at(12), at(19.95)),
        ("hub-2", "corrupt", 1, 1, 0, None, None),
        ("hub-2", "outage", 1, None, 1, at(19.9), at(19.9)),
    ]


@pytest.mark.promise("reports.md", "A number that nobody knows is never told as 0")
def test_a_number_that_nobody_knows_is_never_told_as_0(tmp_path: Path) -> None:
    """Neither in the page nor in the table: 3,000 messages were missing, and both said 0."""
    report = made(message(b"a", at=0), gap(None, "cut", at=1))
    write_csv(report.tables, str(tmp_path))
    with (tmp_path / "gaps.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["gaps"], row["lost"], row["unknown"]) == ("1", "", "1")
    assert tiles(report.page())["lost before they were recorded: once, and nobody knows how many"] == "?"
    page = made(message(b"a", at=0), gap(None, "cut", at=1), gap(7, "overflow", at=61), gap(None, "cut", at=2)).page()
    assert tiles(page)["lost before they were recorded, and 2 times nobody knows how many"] == "7 + ?"
    assert tiles(made(message(b"a"), gap(7, "overflow")).page())["lost before they were recorded"] == "7"
    assert tiles(made(message(b"a")).page())["lost before they were recorded"] == "0"


def test_sizes_are_powers_of_two() -> None:
    sizes = [0, 1, 2, 3, 4, 5, 1024, 1025, 2**29, 409_600, 2**40]
    with in_memory([message(b"k", size=size) for size in sizes]) as recorded:
        found = traffic.summaries(recorded, 60)["sizes"].rows
    counts = {0: 1, 1: 1, 2: 1, 4: 2, 8: 1, 1024: 1, 2048: 1, 524_288: 1, 2**29: 1, 2**40: 1}
    assert {size_to: count for size_to, count, _ in found} == counts
    assert sum(total for _, _, total in found) == sum(sizes)


def test_times_before_1970_are_in_the_period_before_them() -> None:
    before = -START_NS / SECOND
    with in_memory([message(b"a", at=before - 1), message(b"a", at=before + 1)]) as recorded:
        rows = traffic.summaries(recorded, 60)["over_time"].rows
    assert [row[1] for row in rows] == [datetime(1969, 12, 31, 23, 59, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)]


def test_wrong_periods_are_refused() -> None:
    with in_memory([message(b"a")]) as recorded, pytest.raises(UsageError, match="period"):
        traffic.summaries(recorded, 0)


def test_the_busiest_period_is_that_of_all_hubs_together() -> None:
    rows = [message(b"a", at=second / 10, hub=f"hub-{second % 2}") for second in range(20)]
    found = tiles(made(*rows, seconds=1).page())
    assert found["a second in the busiest second"] == "10"


# -- What is told by key: levels, patterns, and which patterns cover others


def counts(*keys: bytes) -> list[KeyCount]:
    """One message of two bytes under each key."""
    return [KeyCount(key, 1, 2, 2) for key in keys]


def test_levels_are_bytes_up_to_a_separator() -> None:
    keys = [b"a/b/c", b"a/b", b"a/\xff\xfe/d", b"a", b"", b"/x", b"$1/*/'\\"]
    found = {(level, prefix): keys for level, prefix, _, _, keys, _ in by_level(counts(*keys), 2, b"/")}
    assert found == {
        (1, b"a/"): 3,
        (1, b"a"): 1,
        (1, b""): 1,
        (1, b"/"): 1,
        (1, b"$1/"): 1,
        (2, b"a/b/"): 1,
        (2, b"a/b"): 1,
        (2, b"a/\xff\xfe/"): 1,
        (2, b"/x"): 1,
        (2, b"$1/*/"): 1,
    }


def test_levels_come_busiest_first_with_another_separator() -> None:
    rows = [KeyCount(b"b.x", 1, 1, 1), KeyCount(b"a.x", 1, 1, 1), KeyCount(b"b.y", 1, 3, 3)]
    assert by_level(rows, 1, b".") == [(1, b"b.", 2, 4, 2, 3), (1, b"a.", 1, 1, 1, 1)]
    with pytest.raises(UsageError, match="levels"):
        by_level(rows, 0, b"/")
    with pytest.raises(UsageError, match="separator"):
        by_level(rows, 1, b"7")


def test_matches_are_those_of_the_matcher() -> None:
    """For the keys and patterns of the protocol's vectors, all at once."""
    cases = [case for case in vectors() if not case[2].startswith(b"!/")]
    patterns, keys = sorted({pattern for _, pattern, _ in cases})[::30], {key for _, _, key in cases}
    assert len(patterns) * len(keys) > 3_000
    for pattern, messages, size, distinct in by_pattern(counts(*keys), patterns, b"/"):
        assert messages == distinct == size // 2 == sum(matches(pattern, key) for key in keys), pattern


def test_every_pattern_has_a_row_the_busiest_first() -> None:
    keys = [KeyCount(b"room/1/temp", 2, 5, 4), KeyCount(b"room/2/temp", 1, 0, 0), KeyCount(b"x", 1, 0, 0)]
    patterns = [b"room/*/temp", b"", b"room/1/", b"nothing/here", b"\xff"]
    assert by_pattern(keys, patterns, b"/") == [
        (b"", 4, 5, 3),
        (b"room/*/temp", 3, 5, 2),
        (b"room/1/", 2, 5, 1),
        (b"nothing/here", 0, 0, 0),
        (b"\xff", 0, 0, 0),
    ]
    assert by_pattern([], [b"b/", b"a"], b"/") == [(b"a", 0, 0, 0), (b"b/", 0, 0, 0)]


def test_secret_keys_match_nothing() -> None:
    assert by_pattern(counts(b"!/cred/1/2/3/x", b"!x"), [b"", b"!/"], b"/") == [(b"", 1, 2, 1), (b"!/", 0, 0, 0)]
    assert by_pattern(counts(b"!.cred.1", b"!/x"), [b""], b".") == [(b"", 1, 2, 1)]


def test_coverage_agrees_with_covers() -> None:
    patterns = sorted({pattern for _, pattern, _ in vectors()})[::20]
    assert len(patterns) > 100
    found = coverage([b"", *patterns], b"/")
    for narrow in patterns:
        assert found[narrow] == [wide for wide in patterns if wide and wide != narrow and covers(wide, narrow, b"/")]
    assert any(found.values())
    assert coverage([b"", b"a/b", b"a/"], b"/") == {b"": [], b"a/b": [b"a/"], b"a/": []}


# -- What each pattern would have received, as a page, and the file of patterns


def test_the_report_lists_idle_and_covered_patterns() -> None:
    with in_memory([message(b"a/b", b"xyz")]) as recorded:
        report = subscriptions(recorded, [b"a/", b"a/b", b"idle"])
    assert report.tables["patterns"].rows == [
        (b"a/", 1, 3, 1, []),
        (b"a/b", 1, 3, 1, [b"a/"]),
        (b"idle", 0, 0, 0, []),
    ]
    html = report.page()
    assert tiles(html) == {"patterns": "3", "match nothing": "1", "are covered by others": "1"}
    assert html.count("<code>idle</code>") == 1


def test_patterns_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "patterns"
    path.write_bytes(b'# rooms\nroom/*/temp\n\n""\nroom/*/temp\n\xff/\r\n')
    assert read_patterns(str(path)) == [b"room/*/temp", b"", b"\xff/"]
    path.write_bytes(b"a\nb\0c\n")
    with pytest.raises(UsageError, match=r"patterns, line 2: .*NUL"):
        read_patterns(str(path))


# -- The tables of a report as CSV and Parquet

TIME = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_tables_are_written_and_replaced(tmp_path: Path) -> None:
    columns = {"key": "binary", "count": "int64", "others": "keys", "at": "time"}
    table = Table(columns, [(b'a"b\xff', 2, [b"x y", b"", b"z"], TIME), (None, None, [], None)])
    for _ in range(2):
        write_csv({"keys": table}, f"{tmp_path}/once")
        write_parquet({"keys": table, "none": Table(columns, [])}, f"{tmp_path}/parquet")
    with (tmp_path / "once" / "keys.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["key", "count", "others", "at"],
            ['a"b\\xff', "2", 'x\\x20y "" z', "2026-03-01 12:00:00+00:00"],
            ["", "", "", ""],
        ]
    read = parquet.read_table(tmp_path / "parquet" / "keys.parquet")
    assert [tuple(row.values()) for row in read.to_pylist()] == table.rows
    empty = parquet.read_table(tmp_path / "parquet" / "none.parquet")
    assert (empty.num_rows, empty.schema) == (0, read.schema)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)"])
def test_no_cell_of_a_stranger_is_a_formula_to_a_spreadsheet(tmp_path: Path, text: str) -> None:
    table = Table({"key": "binary", "cause": "string", "keys": "keys", "n": "int64"}, [(text.encode(), text, [], -1)])
    write_csv({"keys": table._replace(rows=[*table.rows, (b"", "", [text.encode()], -1)])}, str(tmp_path))
    with (tmp_path / "keys.csv").open(newline="") as file:
        _, first, second = csv.reader(file)
    escaped = f"\\x{ord(text[0]):02x}{text[1:]}"
    assert [*first, *second] == [escaped, escaped, "", "-1", "", "", escaped, "-1"]
