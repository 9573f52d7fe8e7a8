"""Curves of a report."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest

from sbuslib.reports import traffic
from sbuslib.reports.curves import _round_up, curves
from sbuslib.reports.exports import Table
from sbuslib.reports.outages import Outage


@pytest.mark.parametrize(("seconds", "expected"), [(0, 1), (240, 1), (241, 2), (86_400, 600), (1e9, 604_800)])
def test_a_period_is_round_and_gives_few_points(seconds: float, expected: int) -> None:
    assert traffic.period(seconds) == expected


# -- Curves of rates over time: their steps, their scale, and the losses in them

START = datetime(2026, 3, 1, 12, tzinfo=UTC)

COLUMNS = dict.fromkeys(("hub", "start", "messages", "bytes", "lost", "unknown"), "")


def drawn(*rows: tuple[Any, ...], period: int = 10, away: Sequence[Outage] = ()) -> tuple[str, dict[str, Any]]:
    """The curve of messages, and what its script is told. A row is hub, seconds, messages, lost, unknown."""
    table = Table(
        COLUMNS,
        [
            (hub, None if seconds is None else START + timedelta(seconds=seconds), messages, 0, lost, unknown)
            for hub, seconds, messages, lost, unknown in rows
        ],
    )
    messages, _ = curves(table, period, away)
    (series,) = re.findall(r'data-series="([^"]*)"', messages)
    return str(messages), json.loads(unescape(series))


def test_a_curve_has_a_step_for_each_period_also_where_nothing_came() -> None:
    html, told = drawn(("a", 0, 100, 0, 0), ("a", 30, 50, 0, 0))
    assert told["lines"] == [["a", ["10", "0", "0", "5"]]]
    assert told["step"] == 10_000
    assert 'viewBox="0 0 4 100"' in html
    assert 'd="M0,100H0V0H1V100H3V50H4V100"' in html
    assert "<span>10</span><span>5</span><span>0</span>" in html
    assert "<span>12:00:00</span><span>12:00:10</span>" in html


def test_losses_are_drawn_where_they_were_known_and_unknown() -> None:
    html, told = drawn(("a", 0, 1, 7, 0), ("a", 10, 1, None, 1), ("b", 10, 1, 3, 0), ("a", 20, 1, 0, 0))
    assert told["lost"] == {"0": "7", "1": "3 and nobody knows how many"}
    gaps = re.findall(r'<i class="(gap[^"]*)" style="left:([\d.]+)%', html)
    assert gaps == [("gap", "0.0"), ("gap unknown", "33.333333333333336")]


def test_a_line_has_a_break_where_nothing_of_its_hub_is_known() -> None:
    second = 1_000_000_000
    began = round(START.timestamp()) * second
    away = Outage(began + 12 * second, began + 37 * second, "outage", frozenset({"a"}))
    html, told = drawn(("a", 0, 100, 0, 0), ("a", 30, 50, 0, 0), ("b", 20, 50, 0, 0), away=[away])
    assert told["lines"] == [["a", ["10", "?", "?", "5"]], ["b", ["0", "0", "5", "0"]]]
    assert told["lost"] == dict.fromkeys("123", "nobody knows how many")
    assert 'd="M0,100H0V0H1V100M3,100H3V50H4V100"' in html


def test_an_outage_at_either_end_is_drawn_as_far_as_the_curve_goes() -> None:
    began = round(START.timestamp()) * 1_000_000_000
    away = Outage(began - 10**12, None, "outage", frozenset({"a"}))
    _, told = drawn(("a", 0, 100, 0, 0), ("b", 20, 50, 0, 0), away=[away])
    assert told["lines"] == [["a", ["10", "?", "?"]], ["b", ["0", "0", "5"]]]


def test_the_busiest_hubs_have_a_line_each_and_the_others_one() -> None:
    _, told = drawn(*((f"hub-{n}", 0, n, 0, 0) for n in range(9)), (None, 0, 100, 0, 0))
    assert dict(told["lines"]) == {
        "\N{EN DASH}": ["10"],
        "hub-8": ["0.8"],
        "hub-7": ["0.7"],
        "hub-6": ["0.6"],
        "others": ["1.5"],
    }


def test_without_a_time_there_is_no_curve() -> None:
    assert curves(Table(COLUMNS, []), 10) == []
    assert curves(Table(COLUMNS, [("a", None, 0, 0, 7, 0)]), 10) == []


@pytest.mark.parametrize(
    ("value", "step", "expected"),
    [(0, 1_000, 1), (0.003, 1_000, 0.005), (7, 1_000, 10), (999, 1_000, 1_000), (1_001, 1_000, 2_000),
     (1_500, 1_024, 2 * 1_024), (1_000_000, 1_024, 1_000 * 1_024), (1 << 20, 1_024, 1 << 20)],
)  # fmt: skip
def test_scales_end_at_a_round_number(value: float, step: int, expected: float) -> None:
    assert _round_up(value, step) == pytest.approx(expected)
