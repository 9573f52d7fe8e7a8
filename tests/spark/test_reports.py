"""The pages of reports. What their tables hold is tested with the jobs, and by the commands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spark.frames import gap, message, recording

from sbuslib.spark import reports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tiles(html: str) -> dict[str, str]:
    """The figures at the top of a page, by what they count."""
    return {what: figure for figure, what in re.findall(r"<b>([^<]*)</b><span>([^<]*)</span>", html)}


def test_the_page_of_traffic_shows_losses(spark: SparkSession) -> None:
    report = reports.traffic(recording(spark, [message(b"<a>/b", b"xyz", at=1), gap(7, "overflow", at=61)]), levels=1)
    assert report is not None
    html = report.page()
    assert [tiles(html)[what] for what in ("messages", "distinct keys", "lost before they were recorded")] == [
        "1",
        "1",
        "7",
    ]
    assert "<code>overflow</code>" in html
    assert "&lt;a&gt;/" in html
    assert "First 2 segments" not in html


def test_without_rows_there_is_no_report_of_traffic(spark: SparkSession) -> None:
    assert reports.traffic(recording(spark, [])) is None


def test_the_page_of_subscriptions_lists_idle_and_covered_patterns(spark: SparkSession) -> None:
    rows = recording(spark, [message(b"a/b")])
    html = reports.subscriptions(rows, [b"a/", b"a/b", b"idle"]).page()
    assert tiles(html) == {"patterns": "3", "match nothing": "1", "are covered by others": "1"}
    assert html.count("<code>idle</code>") == 1
