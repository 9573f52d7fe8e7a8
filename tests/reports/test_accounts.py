"""The page about completeness."""

from __future__ import annotations

from pathlib import Path

from lake.journals import START_NS, Row, segment
from reports.test_traffic import tiles

from sbuslib.reports.accounts import completeness
from sbuslib.spark.completeness import Ledger


def test_the_page_tells_what_is_known_and_what_is_not(tmp_path: Path) -> None:
    gaps = [(START_NS, "overflow", 7), (START_NS, "outage", None)]
    segment(tmp_path / "journal", 1, [Row(b"a", b"", START_NS)], *gaps)
    ledger = Ledger()
    ledger.add_journal(tmp_path / "journal")
    report = completeness(ledger)
    assert [row[2:] for row in report.tables["losses"].rows] == [("outage", None, 1), ("overflow", 7, 0)]
    found = tiles(report.page())
    assert (found["every message is accounted for"], found["recorded"], found["lost"]) == ("no", "1", "7 + ?")


def test_a_whole_journal_is_accounted_for(tmp_path: Path) -> None:
    segment(tmp_path / "journal", 1, [Row(b"a", b"", START_NS)])
    ledger = Ledger()
    ledger.add_journal(tmp_path / "journal")
    found = tiles(completeness(ledger).page())
    assert (found["every message is accounted for"], found["lost"]) == ("yes", "0")
