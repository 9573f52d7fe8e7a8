"""A file of a lake never spans rows that it does not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from journal.format.journals import START_NS, flip, rows, segment
from journal.read.test_verify import told

from sbuslib import read
from sbuslib.errors import CorruptJournalError, JournalError
from sbuslib.journal.format.recovery import NUMBERS_LEFT_OUT, recover
from sbuslib.journal.read.blocks import read_records
from sbuslib.journal.read.journal_files import list_sealed, sealed_name
from sbuslib.journal.read.sealing import ingest, seal, write
from sbuslib.journal.read.units import units
from sbuslib.journal.summary import summarize
from sbuslib.journal.verify import verify

JOURNAL = "0123456789abcdef"


def names(place: Path) -> list[tuple[int, int]]:
    """The first and last rows of the sealed files in a directory."""
    return [(one.first, one.last) for one in list_sealed(str(place))]


def renamed(path: Path, first: int, last: int) -> Path:
    """A sealed file under a name that says other rows."""
    data = path.read_bytes()
    name = sealed_name(JOURNAL, first, last, (START_NS, START_NS + last * 1_000_000_000), crc32(data))
    return path.rename(path.with_name(name))


@pytest.mark.promise("journal.md", "A file never spans what it does not hold")
def test_a_backup_that_is_taken_in_after_a_part_of_it_hides_no_row(tmp_path: Path) -> None:
    for first in (1, 102, 203):
        segment(tmp_path / "backup", first, rows(101, first))
    segment(tmp_path / "part", 102, rows(101, 102))
    lake = tmp_path / "lake"
    for _ in range(2):
        ingest([tmp_path / "part"], lake)
        ingest([tmp_path / "backup"], lake)
        assert names(lake) == [(1, 101), (102, 202), (203, 303)]
        assert told(lake) == ([*range(1, 304)], [])


def test_rows_that_were_missing_when_others_were_sealed_are_taken_in_later(tmp_path: Path, journal: Path) -> None:
    """Neither a sealer nor a lake says that it has what the journal did not have."""
    for first in (1, 11, 21):
        segment(tmp_path / "backup", first, rows(10, first))
        segment(journal, first, rows(10, first))
    (journal / f"{11:020d}.sbj").unlink()
    segment(journal, 31, rows(1, 31))
    lake = tmp_path / "lake"
    ingest([journal], lake)
    seal(journal)
    assert names(lake)[:2] == names(journal / "sealed")[:2] == [(1, 10), (21, 31)]
    assert told(lake) == told(journal) == ([*range(1, 11), *range(21, 32)], [(20, "deleted", 10)])
    assert read(journal, "arrow").equals(read([journal, lake], "arrow"))
    assert told(journal, tmp_path / "backup") == ([*range(1, 32)], [])
    ingest([tmp_path / "backup"], lake)
    assert told(lake) == ([*range(1, 32)], [])


def test_rows_that_are_deleted_while_they_are_sealed_are_in_no_name(journal: Path) -> None:
    for first in (1, 11, 21, 31):
        segment(journal, first, rows(10, first))
    target = str(journal / "sealed")
    (unit, *_), _ = units(str(journal), target, {})
    (journal / f"{11:020d}.sbj").unlink()
    with pytest.raises(JournalError, match="deleted before they were sealed"):
        write(unit)
    assert [*(journal / "sealed").iterdir()] == []


def test_a_file_with_rows_that_its_name_does_not_say_is_an_error(journal: Path) -> None:
    segment(journal, 1, rows(10))
    seal(journal)
    (path,) = (journal / "sealed").glob("*.parquet")
    renamed(path, 1, 5)
    (journal / f"{1:020d}.sbj").unlink()
    for engine in ("arrow", "polars", "duckdb"):
        with pytest.raises(CorruptJournalError, match="rows that its name does not say"):
            read(journal, engine)
    assert not verify(journal).is_whole


def test_numbers_that_a_crash_left_out_are_no_rows(journal: Path, tmp_path: Path) -> None:
    """Not those of ``info``, and not missing ones."""
    first = 1
    for _ in range(3):
        segment(journal, first, rows(10), boot=b"another boot....", sealed=False)
        first = recover(str(journal)).next_sequence
    assert first > 3 * NUMBERS_LEFT_OUT
    segment(journal, first, rows(10))
    seen = [told(journal)]
    before = list(read_records(journal))
    seal(journal)
    ingest([journal], tmp_path / "lake")
    for place in (journal, tmp_path / "lake"):
        seen.append(told(place))
        (found,) = summarize(place)
        assert (found.missing, sum(one.rows for one in found.files)) == (0, 43)
        assert verify(place).is_whole
        assert list(read_records(place)) == before
    assert seen[1:] == seen[:1] * 2


# -- a journal whose only segment has a damaged header, and one without a row


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_a_journal_whose_header_is_damaged_is_an_error_wherever_the_bit_is(journal: Path, policy: Any) -> None:
    path = segment(journal, 1, rows(3))
    lake = journal.parent / "lake"
    for at in range(112):
        flip(path, at, 1 << at % 8)
        for act in (lambda: seal(journal, on_corrupt=policy), lambda: ingest([journal], lake, on_corrupt=policy)):
            with pytest.raises(JournalError, match=f"{path.name}.*its rows are unknown"):
                act()
        flip(path, at, 1 << at % 8)
    assert names(lake) == []
    ingest([journal], lake, on_corrupt=policy)
    assert told(lake) == ([1, 2, 3], [])


@pytest.mark.parametrize("sealed", [False, True])
def test_what_is_good_is_taken_in_before_a_damaged_last_header_is_told(journal: Path, sealed: bool) -> None:
    segment(journal, 1, rows(5))
    flip(segment(journal, 6, rows(5, 6), sealed=sealed), 50)
    lake = journal.parent / "lake"
    for act in (lambda: seal(journal), lambda: ingest([journal], lake, on_corrupt="skip")):
        with pytest.raises(JournalError, match="header is damaged"):
            act()
    assert names(lake) == names(journal / "sealed") == [(1, 5)]


def test_a_journal_without_a_row_is_whole(journal: Path) -> None:
    journal.mkdir()
    (journal / "recorder.lock").touch()
    found = verify(journal)
    assert (found.is_whole, found.messages, found.first_row) == (True, 0, 0)


# -- damage that only a part of a range has


def test_a_damaged_block_counts_only_the_rows_that_a_lake_lacks(journal: Path, tmp_path: Path) -> None:
    path = segment(journal, 1, *(rows(10, first) for first in (1, 11, 21)))
    lake, part = tmp_path / "lake", tmp_path / "part"
    size = (path.stat().st_size - 112) // 3
    flip(path, 112 + size + 40)
    segment(part, 8, rows(7, 8), rows(2, 15))
    ingest([part], lake)
    ingest([journal], lake, on_corrupt="skip")
    assert names(lake) == [(1, 7), (8, 16), (17, 30)]
    assert told(lake) == ([*range(1, 17), *range(21, 31)], [(20, "damaged", 4)])
