"""Segments become Parquet files: which, when, how they are named, and what a kill leaves."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow.parquet
import pytest
from journal.format.journals import START_NS, flip, rows, segment

from sbuslib import read
from sbuslib.errors import CorruptJournalError, JournalError, JournalInUseError
from sbuslib.journal.format.directory import DirectoryLock, list_segments
from sbuslib.journal.read import sealing, units
from sbuslib.journal.read.blocks import read_records
from sbuslib.journal.read.footer import footer_of
from sbuslib.journal.read.journal_files import list_sealed
from sbuslib.journal.read.sealing import Written, ingest, seal, write

JOURNAL = "0123456789abcdef"


def names(place: Path) -> list[tuple[int, int]]:
    """The first and last rows of the sealed files in a directory."""
    return [(one.first, one.last) for one in list_sealed(str(place))]


def sequences(*places: Path, **options: Any) -> list[int]:
    """The numbers of all rows, as they are read."""
    found: list[int] = read(places, **options).column("sequence").to_pylist()
    return found


def test_ended_segments_become_one_file_with_every_column(journal: Path) -> None:
    segment(journal, 1, rows(5), (START_NS + 7, "overflow", 41))
    segment(journal, 7, rows(5, 6), sealed=False)
    whole = read(journal, durable_only=True, on_corrupt="skip")
    made: list[Written] = []
    assert seal(journal, progress=made.append) == 1
    (path,) = (journal / "sealed").glob("*.parquet")
    crc = f"{crc32(path.read_bytes()):08x}"
    assert path.name == f"{JOURNAL}-{1:020d}-{6:020d}-20250615T150640-20250615T150645-{crc}.parquet"
    assert made == [Written(path.name, 6, path.stat().st_size)]
    table = pyarrow.parquet.read_table(path)
    expected = [row for row in read_records(journal) if row.sequence < 7]
    for name in ("time_ns", "sequence", "kind", "key", "payload", "sender", "gid", "uid", "pid", "lost", "cause"):
        assert table.column(name).to_pylist() == [getattr(row, name) for row in expected], name
    metadata = pyarrow.parquet.read_metadata(path)
    assert metadata.metadata[b"sbus.schema"] == b"1"
    assert (metadata.metadata[b"sbus.separator"], metadata.metadata[b"sbus.hub"]) == (b"/", b"hub-1")
    columns = [metadata.row_group(0).column(n) for n in range(metadata.num_columns)]
    (keys,) = [column.statistics for column in columns if column.path_in_schema == "key"]
    assert keys.has_min_max
    assert seal(journal) == 0, "nothing is new"
    assert whole.column("sequence").to_pylist()[:6] == [*range(1, 7)]


@pytest.mark.promise("journal.md", "The name is the transaction")
def test_small_segments_are_merged_and_the_files_do_not_depend_on_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "UNIT_BYTES", 4_000)
    once, killed = tmp_path / "once", tmp_path / "killed"
    for journal in (once, killed):
        for number in range(12):
            segment(journal, 1 + 10 * number, rows(10, 1 + 10 * number))
    seal(once)
    # Killed after each file, and while one was written aside.
    for _ in range(20):
        there = units.listed(str(killed / "sealed"))
        for unit in units.units(str(killed), str(killed / "sealed"), there)[0][:1]:
            write(unit)
        (killed / "sealed" / f"_{JOURNAL}-{51:020d}.new").write_bytes(b"half a file")
    assert 1 < len(names(once / "sealed")) < 12
    assert [path.name for path in sorted((once / "sealed").glob("*.parquet"))] == [
        path.name for path in sorted((killed / "sealed").glob("*.parquet"))
    ]
    assert sequences(once) == sequences(killed) == [*range(1, 121)]
    assert pyarrow.parquet.read_table(once / "sealed").num_rows == 120, "any glob is right"


def test_a_segment_is_opened_for_its_two_ends_and_for_its_rows_as_it_is_sealed(journal: Path) -> None:
    ended, last = segment(journal, 1, rows(5)), segment(journal, 6, rows(5, 6), sealed=False)
    opens = Counter[str]()

    def count(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and is_sealing:
            opens[str(arguments[0])] += 1

    is_sealing = True
    sys.addaudithook(count)  # it stays, as there is no way to remove one
    try:
        assert seal(journal) == 1
    finally:
        is_sealing = False
    assert not ended.exists()
    assert (opens[str(ended)], opens[str(last)]) == (2, 1)


@pytest.mark.promise("journal.md", "No file is ever changed")
def test_segments_are_deleted_once_they_are_sealed_but_for_the_last(journal: Path) -> None:
    for number in range(4):
        segment(journal, 1 + 3 * number, rows(3, 1 + 3 * number))
    seal(journal)
    assert [one.first_sequence for one in list_segments(journal)] == [10], "numbers go on from it"
    assert sequences(journal) == [*range(1, 13)]
    files = {path: path.read_bytes() for path in (journal / "sealed").iterdir()}
    segment(journal, 13, rows(3, 13))
    assert seal(journal) == 1
    assert {path: path.read_bytes() for path in files} == files
    assert sequences(journal) == [*range(1, 16)]


def test_a_full_disk_keeps_nothing_of_what_was_begun(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment(journal, 1, rows(5))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            seal(journal)
    assert [path.name for path in (journal / "sealed").iterdir()] == []
    assert seal(journal) == 1


@pytest.mark.parametrize("target", ["seal", "ingest"])
def test_one_damaged_segment_stops_no_other(tmp_path: Path, journal: Path, target: str) -> None:
    for first in range(1, 131, 10):
        segment(journal, first, rows(10, first))
    path = journal / f"{51:020d}.sbj"
    flip(path, path.stat().st_size // 2)
    place = journal / "sealed" if target == "seal" else tmp_path / "lake"
    for _ in range(2):
        with pytest.raises(CorruptJournalError, match=f"{path.name}: byte"):
            seal(journal) if target == "seal" else ingest([journal], place)
        assert names(place) == [(1, 50), (61, 130)]
    if target == "seal":
        assert sorted(journal.glob("*.sbj")) == [path, journal / f"{121:020d}.sbj"]
        assert seal(journal, on_corrupt="skip") == 1
        assert names(place) == [(1, 50), (51, 60), (61, 130)]


def test_damage_ends_the_sealing_or_becomes_a_gap(journal: Path) -> None:
    path = segment(journal, 1, rows(10), rows(10, 11))
    flip(path, path.stat().st_size // 4)
    with pytest.raises(CorruptJournalError, match=rf"{path.name}: byte \d+: a block is damaged"):
        seal(journal)
    assert names(journal / "sealed") == []
    assert seal(journal, on_corrupt="skip") == 1
    table = read(journal)
    assert table.column("cause").to_pylist() == ["damaged", *[None] * 10]
    assert table.column("lost").to_pylist()[0] == 10


def test_journals_of_many_hosts_become_one_lake_each_row_once(tmp_path: Path) -> None:
    """One is sealed, one is not, one is being recorded; later there is more of each."""
    lake = tmp_path / "lake"
    journals = [tmp_path / name for name in ("sealed", "plain", "open")]
    for number, journal in enumerate(journals):
        identity = f"{number}123456789abcdef"
        segment(journal, 1, rows(5), journal=identity)
        segment(journal, 6, rows(5, 6), journal=identity, sealed=journal.name != "open")
    seal(journals[0])
    lock = DirectoryLock(journals[2])
    made: list[Written] = []
    for _ in range(2):
        ingest(journals, lake, progress=made.append)
        assert [one.rows for one in made] == [10, 10, 10]
    lock.close()
    with (journals[2] / f"{6:020d}.sbj").open("ab") as file:
        whole = segment(tmp_path / "more", 6, rows(5, 6), rows(5, 11), journal="2123456789abcdef").read_bytes()
        file.write(whole[file.tell() :])
    segment(journals[0], 11, rows(5, 11), journal="0123456789abcdef")
    for _ in range(2):
        ingest(journals, lake, progress=made.append)
        assert [one.rows for one in made[3:]] == [5, 5]
    table = read(lake)
    found = sorted(zip(table.column("journal").to_pylist(), table.column("sequence").to_pylist(), strict=True))
    assert found == [
        (f"{number}123456789abcdef", sequence)
        for number, last in enumerate((15, 10, 15))
        for sequence in range(1, last + 1)
    ]
    assert pyarrow.parquet.read_table(lake).num_rows == 40, "any glob is right"


def test_what_was_sealed_after_it_was_taken_in_half_is_taken_in_once(tmp_path: Path, journal: Path) -> None:
    lake = tmp_path / "lake"
    path = segment(journal, 1, rows(5), sealed=False)
    lock = DirectoryLock(journal)
    ingest([journal], lake)
    path.unlink()
    segment(journal, 1, rows(5), rows(5, 6))
    segment(journal, 11, rows(1, 11))
    lock.close()
    seal(journal)
    ingest([journal], lake)
    assert names(lake) == [(1, 5), (6, 11)]
    assert sequences(lake) == [*range(1, 12)]


@pytest.mark.parametrize("older_first", [True, False])
def test_a_journal_and_an_older_copy_of_it_are_taken_in_once(tmp_path: Path, journal: Path, older_first: bool) -> None:
    segment(journal, 1, rows(10))
    copy = tmp_path / "copy"
    shutil.copytree(journal, copy)
    segment(journal, 11, rows(5, 11))
    lake = tmp_path / "lake"
    ingest([copy, journal] if older_first else [journal, copy], lake)
    assert sequences(lake) == [*range(1, 16)]


def test_wrong_places_are_refused(journal: Path, tmp_path: Path) -> None:
    segment(journal, 1, rows(3))
    with pytest.raises(JournalError, match="is a journal, and no lake"):
        ingest([tmp_path], journal)
    lake = tmp_path / "lake"
    lake.mkdir()
    lock = DirectoryLock(lake, f"_{JOURNAL}.lock")
    with pytest.raises(JournalInUseError):
        ingest([journal], lake)
    lock.close()


def test_row_groups_are_small_and_have_statistics(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "_GROUP_ROWS", 10)
    for number in range(3):
        segment(journal, 1 + 20 * number, rows(20, 1 + 20 * number))
    seal(journal)
    (path,) = (journal / "sealed").glob("*.parquet")
    metadata = pyarrow.parquet.read_metadata(path)
    place = metadata.schema.names.index("sequence")
    groups = [metadata.row_group(number).column(place).statistics for number in range(metadata.num_row_groups)]
    assert [(one.min, one.max) for one in groups] == [(1, 20), (21, 40), (41, 60)]
    flip(path, metadata.row_group(0).column(place).data_page_offset + 40)
    footer_of.cache_clear()
    (file,) = list_sealed(str(journal / "sealed"))
    assert footer_of(file).rows == 60, "these say that all is there, so no page is read"
