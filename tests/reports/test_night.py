"""The night, from recordings in memory."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

pytest.importorskip("duckdb")

from reports.rows import Row, gap, in_memory, message

from sbuslib.reports.night import night

HOUR = 3_600


def outages(rows: Iterable[Row]) -> list[str]:
    """The texts of the outages, in order of time."""
    with in_memory(rows) as recorded:
        report = night(recorded)
        assert report is not None
        return [text for _, kind, text in report.tables["night"].rows if kind == "outage"]


def test_an_outage_ends_with_the_next_row_of_its_own_journal() -> None:
    rows = [
        message(b"a", at=0),
        gap(None, "outage", at=1),
        *(message(b"b", at=second, journal="journal-2") for second in range(0, HOUR, 60)),
        message(b"a", at=1 + HOUR),
    ]
    assert outages(rows) == ["nothing was recorded for 60 min: outage"]


def test_two_outages_within_a_minute_are_two() -> None:
    rows = [
        message(b"a", at=0),
        gap(None, "away", at=1),
        message(b"a", at=11),
        gap(None, "away", at=12),
        message(b"a", at=32),
    ]
    assert outages(rows) == ["nothing was recorded for 10 s: away", "nothing was recorded for 20 s: away"]


def test_the_end_of_a_killed_recorder_and_the_start_of_the_next_are_one_outage() -> None:
    rows = [message(b"a", at=0), gap(None, "cut", at=1), gap(None, "outage", at=2), message(b"a", at=61)]
    assert outages(rows) == ["nothing was recorded for 60 s: cut"]


def test_an_outage_without_a_later_row_lasts_to_the_end() -> None:
    rows = [message(b"a", at=0), gap(None, "outage", at=1), message(b"b", at=HOUR, journal="journal-2")]
    assert outages(rows) == ["nothing was recorded to the end: outage"]


def test_a_loss_that_is_reported_meanwhile_ends_no_outage() -> None:
    rows = [gap(None, "away", at=1), gap(7, "hub", at=0), message(b"a", at=101)]
    assert outages(rows) == ["nothing was recorded for 100 s: away"]


def test_a_clock_that_was_set_back_makes_no_negative_outage() -> None:
    assert outages([gap(None, "away", at=100), message(b"a", at=1)]) == [
        "nothing was recorded for a time that nobody knows, as the clock was set back: away"
    ]
