"""Every row of a journal is accounted for, wherever it lies: the cases that separate readers got wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest
from journal.format.journals import READERS, START_NS, Row, flip, message_block, rows, segment

from sbuslib import read
from sbuslib.errors import CorruptJournalError, JournalError
from sbuslib.journal.consume import consume
from sbuslib.journal.format.layout import Record
from sbuslib.journal.format.recovery import recover
from sbuslib.journal.read.blocks import read_records
from sbuslib.journal.read.journal_files import Sealed, list_sealed
from sbuslib.journal.read.sealing import ingest, seal
from sbuslib.journal.read.selection import Selection
from sbuslib.journal.replay import from_journal
from sbuslib.journal.summary import summarize
from sbuslib.journal.verify import verify

Gaps = list[tuple[int, str | None, int | None]]


def told(*places: Path, **wanted: Any) -> tuple[list[int], Gaps]:
    """The messages, by number, and the gaps, by number, cause and count. Every engine of Python reads the same."""
    found = []
    for engine, rows_of in READERS.items():
        rows = sorted(rows_of(read(places, engine, **wanted)), key=lambda row: int(row["sequence"]))
        numbers = [row["sequence"] for row in rows if row["kind"] == "message"]
        gaps = [(row["sequence"], row["cause"], row["lost"]) for row in rows if row["kind"] == "gap"]
        found.append((numbers, gaps))
        assert found[-1] == found[0], engine
    return found[0]


def gaps_of(records: list[Record]) -> Gaps:
    return [(row.sequence, row.cause, row.lost) for row in records if row.key is None]


@pytest.fixture
def holed(journal: Path) -> Path:
    """A journal of 40 rows: 1 to 10 are sealed, 11 to 20 were deleted before that, and 31 to 35 are in no file."""
    segment(journal, 1, rows(10))
    segment(journal, 11, rows(10, 11))
    seal(journal)
    for path in (journal / "sealed").glob(f"*-{1:020d}-{20:020d}-*"):
        path.unlink()
    segment(journal, 1, rows(10))
    (journal / f"{11:020d}.sbj").unlink()
    seal(journal)
    segment(journal, 21, rows(10, 21))
    segment(journal, 36, rows(5, 36))
    return journal


HOLES = [(20, "deleted", 10), (35, "deleted", 5)]


# -- 1. numbers are accounted for


def test_rows_that_are_in_no_file_are_a_gap_once(holed: Path, tmp_path: Path) -> None:
    expected = [*range(1, 11), *range(21, 31), *range(36, 41)], HOLES
    for _ in range(2):
        assert told(holed) == expected
        seal(holed)
    ingest([holed], tmp_path / "lake")
    assert told(tmp_path / "lake") == told(holed, tmp_path / "lake") == expected


@pytest.mark.promise("journal.md", "Every reader gives the same rows")
def test_every_other_reader_tells_what_is_missing(holed: Path) -> None:
    def check() -> None:
        assert gaps_of(list(read_records(holed))) == HOLES
        found = verify(holed)
        assert (found.messages, found.lost, found.is_whole) == (25, {"deleted": 15}, False)
        assert found.verdict() == "every message is accounted for: 25 recorded, 15 lost by known causes"
        assert sum(run.lost for run in from_journal(holed)) == 15

    check()
    (found,) = summarize(holed)
    assert (found.missing, sum(one.rows for one in found.files)) == (15, 25)
    with consume("one", [b""], holed, follow=False, positions=holed) as consumer:
        assert gaps_of(list(consumer)) == HOLES
    seal(holed)
    check()
    (found,) = summarize(holed)
    assert (found.missing, sum(one.rows for one in found.files)) == (15, 25), "no file says that it has them"


def test_a_journal_whose_segments_were_all_sealed_is_counted(journal: Path) -> None:
    segment(journal, 1, rows(10), (START_NS, "overflow", 4))
    seal(journal)
    for path in journal.glob("*.sbj"):
        path.unlink()
    assert verify(journal).verdict() == "every message is accounted for: 10 recorded, 4 lost by known causes"
    assert [row.sequence for row in read_records(journal)] == [*range(1, 12)]


# -- 2. a killed recorder is normal life


@pytest.fixture(params=["whole", "torn", "empty", "zeros"])
def killed(request: pytest.FixtureRequest, journal: Path) -> Path:
    """A journal of 15 rows whose recorder was killed: after a block, within one, and before the next header."""
    segment(journal, 1, rows(10))
    path = segment(journal, 11, rows(5, 11), sealed=request.param in ("empty", "zeros"))
    if request.param == "torn":
        with path.open("ab") as file:
            file.write(message_block(16, rows(5, 16))[:-9])
    elif request.param != "whole":
        (journal / f"{16:020d}.sbj").write_bytes(bytes(4096) if request.param == "zeros" else b"sbusj")
    return journal


@pytest.mark.promise("journal.md", "A killed recorder is normal life")
def test_a_killed_recorder_leaves_a_gap_of_unknown_number(killed: Path, tmp_path: Path) -> None:
    there, cut = [*range(1, 16)], [(16, "cut", None)]
    for _ in range(2):
        assert told(killed) == (there, cut)
        seal(killed)
    ingest([killed], tmp_path / "lake")
    assert told(tmp_path / "lake") == (there, [])
    recover(str(killed))  # as the next recorder does
    ingest([killed], tmp_path / "lake")
    assert told(killed) == told(tmp_path / "lake") == (there, cut)


def test_every_other_reader_reads_after_a_kill(killed: Path) -> None:
    assert gaps_of(list(read_records(killed))) == [(16, "cut", None)]
    found = verify(killed)
    assert (found.messages, found.unknown, found.is_whole) == (15, {"cut": 1}, True)
    assert sum(len(run.columns) for run in from_journal(killed)) == 15
    assert sum(one.rows for one in summarize(killed)[0].files) == 15
    with consume("one", [b""], killed, follow=False) as consumer:
        assert [row.sequence for row in consumer] == [*range(1, 16)]
        consumer.acknowledge()
    recover(str(killed))
    with consume("one", [b""], killed, follow=False) as consumer:
        assert gaps_of(list(consumer)) == [(16, "cut", None)], "once, when it is written"


def test_damage_with_something_behind_it_is_an_error(journal: Path) -> None:
    path = segment(journal, 1, rows(5), rows(5, 6), sealed=False)
    flip(path, 200)
    with pytest.raises(CorruptJournalError):
        read(journal)
    assert told(journal, on_corrupt="skip") == ([*range(6, 11)], [(5, "damaged", 5), (11, "cut", None)])


# -- 3. many journals, one command


def test_one_journal_that_fails_is_named_and_the_others_are_taken_in(tmp_path: Path) -> None:
    good = [tmp_path / name for name in ("a", "c")]
    for number, place in enumerate(good):
        segment(place, 1, rows(5), journal=f"{number}123456789abcdef")
    bad = segment(tmp_path / "b", 1, rows(5), journal="b123456789abcdef")
    flip(bad, 200)
    failed: list[str] = []
    places = [good[0], tmp_path / "b", tmp_path / "none", good[1]]
    with pytest.raises(JournalError):
        ingest(places, tmp_path / "lake")
    ingest(places, tmp_path / "lake", failed=lambda failure: failed.append(failure.place))
    assert sorted(failed) == [str(tmp_path / "b"), str(tmp_path / "none")]
    assert len(told(tmp_path / "lake")[0]) == 10


# -- 5. sealed files say what they are


def test_a_pattern_is_matched_by_the_separator_of_the_journal(tmp_path: Path) -> None:
    for number, separator in enumerate((b".", b"/")):
        place, keys = tmp_path / str(number), (b"room.1.temp", b"room/1/temp", b"x.room.1.temp")
        segment(place, 1, [Row(key, b"x", START_NS) for key in keys], journal=f"{number}" * 16, separator=separator)
        for _ in range(2):
            assert told(place, pattern=separator.join([b"room", b"*", b"temp"])) == ([1 + number], [])
            seal(place)
    assert told(*tmp_path.iterdir(), pattern="room.*.temp") == ([1], [])


@pytest.mark.promise("journal.md", "A changed byte is found")
def test_a_flipped_bit_of_a_sealed_file_is_told_before_an_engine_sees_it(journal: Path) -> None:
    segment(journal, 1, rows(200))
    seal(journal)
    (path,) = (journal / "sealed").glob("*.parquet")
    data = path.read_bytes()
    for at in range(7, len(data), len(data) // 6):
        flip(path, at, 4)
        for engine in READERS:
            with pytest.raises(CorruptJournalError, match=path.name):
                read(journal, engine)
        assert (verify(journal).damages, verify(journal).is_whole) == (1, False)
        with pytest.raises(CorruptJournalError, match=path.name):
            ingest([journal], journal.parent / "lake")
        assert told(journal.parent / "lake") == ([], [])
        path.write_bytes(data)


# -- 6. ingest compares ranges


def test_a_hole_in_a_lake_is_filled(journal: Path, tmp_path: Path) -> None:
    for first in (1, 11, 21):
        segment(tmp_path / str(first), first, rows(10, first))
    lake = tmp_path / "lake"
    ingest([tmp_path / "1", tmp_path / "21"], lake)
    assert told(lake)[1] == [(20, "deleted", 10)]
    ingest([tmp_path / "11"], lake)
    assert told(lake) == ([*range(1, 31)], [])


def test_a_lake_is_listed_once_where_nothing_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sbuslib.journal.read import units

    places = [tmp_path / str(number) for number in range(5)]
    for number, place in enumerate(places):
        segment(place, 1, rows(3), journal=f"{number}123456789abcdef")
    ingest(places, tmp_path / "lake")
    listed: list[str] = []
    real = list_sealed

    def listing(place: str) -> list[Sealed]:
        listed.append(place)
        return real(place)

    monkeypatch.setattr(units, "list_sealed", listing)
    ingest(places, tmp_path / "lake")
    assert listed == [str(tmp_path / "lake")]


def test_files_of_other_times_are_not_opened(tmp_path: Path) -> None:
    """Three days, of which two cannot even be read."""
    lake = tmp_path / "lake"
    for day in range(3):
        first = 1 + 10 * day
        shifted = [row._replace(time_ns=row.time_ns + day * 86_400_000_000_000) for row in rows(10, first)]
        segment(tmp_path / str(day), first, shifted)
        ingest([tmp_path / str(day)], lake)
    for path in sorted(lake.glob("*.parquet"))[::2]:
        path.write_bytes(b"not opened")
    start, end = (START_NS + day * 86_400_000_000_000 for day in (1, 2))
    assert told(lake, start=start, end=end) == ([*range(11, 21)], [])
    assert sum(len(run.columns) for run in from_journal(lake, Selection(start, end))) == 10


# -- 7. pandas


def test_no_cause_is_none_in_pandas(journal: Path) -> None:
    segment(journal, 1, rows(2), (START_NS, "overflow", 4))
    with pandas.option_context("future.infer_string", True):  # the default of pandas 3
        found = read(journal, "pandas")
    assert found["cause"].tolist() == [None, None, "overflow"]
