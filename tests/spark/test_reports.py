"""The pages of reports. What their tables hold is tested with the jobs, and by the commands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spark.frames import gap, message, recording

from sbuslib.spark import plan, reports, simulate
from sbuslib.spark.latency import CorrelationId
from sbuslib.spark.topology import Client, Hub, Topology

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


def test_the_page_of_latency_counts_requests_and_stray_replies(spark: SparkSession) -> None:
    rows = [
        message(b"ask/1", at=0),
        message(b"reply/1", at=0.25),
        message(b"reply/2", at=0.5),
        message(b"ask/3", at=1),
    ]
    report = reports.latency(recording(spark, rows), [b"ask/"], [b"reply/"], CorrelationId("segment", "2"))
    found = tiles(report.page())
    assert found["requests"] == "2"
    assert found["of them answered"] == "50.00 %"
    assert found["half of the replies took no longer"] == "250 ms"
    assert found["replies without a recorded request"] == "1"


def test_the_page_of_a_plan_shows_the_saving() -> None:
    topology = Topology({"root": Hub(), "left": Hub("root"), "right": Hub("root")}, {"x": Client("left", ("a",))})
    flows = [plan.Flow(0, None, b"a", 3, 30), plan.Flow(0, None, b"b", 3, 30)]
    report = reports.plan(topology.tree, plan.classes(flows, plan.interests(topology)), place=False)
    assert set(report.tables) == {"links"}
    found = tiles(report.page())
    assert found["hubs"] == "3"
    assert found["of the messages saved"] == "75.0 %"


def test_the_columns_of_a_plan_differ_and_its_axes_have_plain_numbers() -> None:
    tree = simulate.tree(30, 3)
    html = reports.plan(tree, plan.classes(simulate.traffic(tree), simulate.interests(tree)), place=False).page()
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", html)
    assert heads[:4] == ["link from hub", "to hub above", "messages up", "messages down"]
    assert len(heads) == len(set(heads))
    assert "mathdefault" not in html


def test_the_page_of_a_tree_of_one_hub() -> None:
    assert tiles(reports.plan(simulate.tree(1), []).page())["of the messages saved"] == "\N{EN DASH}"
