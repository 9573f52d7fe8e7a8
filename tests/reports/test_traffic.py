"""What a bus carried, counted, and the page that shows it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from reports.rows import SECOND, START_NS, gap, in_memory, message

from sbuslib.errors import UsageError
from sbuslib.reports import traffic
from sbuslib.reports.exports import Table, write_csv
from sbuslib.reports.html import Report

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


@pytest.mark.parametrize(("seconds", "expected"), [(0, 1), (240, 1), (241, 2), (86_400, 600), (1e9, 604_800)])
def test_a_period_is_round_and_gives_few_points(seconds: float, expected: int) -> None:
    assert traffic.period(seconds) == expected


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


def test_the_page_tells_what_it_shows_and_which_engine_counted() -> None:
    html = made(message(b"<a>/b", b"xyz", at=1), gap(7, "overflow", at=61), levels=1).page()
    assert (tiles(html)["messages"], tiles(html)["distinct keys"]) == ("1", "1")
    assert "<code>overflow</code>" in html
    assert "&lt;a&gt;/" in html
    assert "First 2 segments" not in html
    assert "Made by sbus with DuckDB on " in html


def test_the_busiest_period_is_that_of_all_hubs_together() -> None:
    rows = [message(b"a", at=second / 10, hub=f"hub-{second % 2}") for second in range(20)]
    found = tiles(made(*rows, seconds=1).page())
    assert found["a second in the busiest second"] == "10"
