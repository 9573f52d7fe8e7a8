"""What is read of a journal at the seam between sealed files and segments."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lake.journals import START_NS, rows, segment

from sbuslib.errors import CorruptJournalError, JournalError, StateError
from sbuslib.lake.pieces import batches, pieces, plan, sealed_rows
from sbuslib.lake.rows import SCHEMA, Filter
from sbuslib.lake.sealing import seal


def sequences(place: Path, least: int = 0, **wanted: Any) -> list[int]:
    """The numbers of the rows in all pieces of a journal."""
    some = pieces(str(place), least=least)
    return [n for batch in batches(some, SCHEMA, Filter(**wanted)) for n in batch.column("sequence").to_pylist()]


def sealed_and_open(journal: Path) -> None:
    """A journal of 30 rows: 20 are sealed, of which 10 are still in a segment, too."""
    segment(journal, 1, rows(10))
    segment(journal, 11, rows(10, 11))
    seal(journal, keep_segments=0)
    segment(journal, 21, rows(10, 21))


def test_the_data_source_reads_sealed_files_and_segments_each_row_once(journal: Path) -> None:
    sealed_and_open(journal)
    assert sequences(journal) == [*range(1, 31)]
    assert sequences(journal, least=21) == [*range(21, 31)]
    assert sequences(journal, least=15) == [*range(15, 31)]
    assert sequences(journal, key_prefix=b"room/3") == [n for n in range(1, 31) if n % 7 == 3]
    assert sequences(journal, start_ns=START_NS + 9_000_000_000, end_ns=START_NS + 23_000_000_000) == [*range(9, 23)]
    found = plan([str(journal)])
    assert ([(one.first, one.last) for one in found.sealed], found.tails) == ([(1, 20)], {str(journal): 21})
    seal(journal)
    assert plan([str(journal)]).tails == {}


def test_a_segment_that_vanished_is_read_from_the_sealed_file(journal: Path) -> None:
    for number in range(4):
        segment(journal, 1 + 10 * number, rows(10, 1 + 10 * number))
    planned = pieces(str(journal), least=5)
    assert [piece.end for piece in planned] == ["mark"] * 4
    seal(journal, keep_segments=0)
    read = [n for batch in batches(planned, SCHEMA, Filter()) for n in batch.column("sequence").to_pylist()]
    assert read == [*range(5, 41)]
    shutil.rmtree(journal / "sealed")
    with pytest.raises(JournalError, match=r"00001\.sbj: this segment was deleted before it was read"):
        list(batches(planned, SCHEMA, Filter()))


def test_copies_of_sealed_files_are_read_once_and_overlaps_are_refused(journal: Path, tmp_path: Path) -> None:
    sealed_and_open(journal)
    copy = tmp_path / "copy"
    shutil.copytree(journal / "sealed", copy)
    assert len(plan([str(journal), str(copy)]).sealed) == 1
    (path,) = copy.glob("*.parquet")
    path.rename(copy / path.name.replace(f"-{1:020d}-{20:020d}", f"-{5:020d}-{25:020d}"))
    with pytest.raises(StateError, match="share rows"):
        plan([str(journal), str(copy)])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_byte_flipped_or_cut_is_an_error_that_names_the_file_or_the_right_rows(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    journal = tmp_path_factory.mktemp("journal")
    segment(journal, 1, rows(20), (START_NS + 7, "overflow", 41), rows(5, 22))
    if sealed := data.draw(st.booleans(), label="sealed"):
        seal(journal)
    (path,) = journal.glob("sealed/*.parquet") if sealed else journal.glob("*.sbj")
    right = [row for batch in batches(pieces(str(journal)), SCHEMA, Filter()) for row in batch.to_pylist()]
    whole = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1), label="at")
    if data.draw(st.booleans(), label="cut"):
        del whole[at:]
    else:
        whole[at] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    path.write_bytes(whole)
    said, read = "", []
    try:
        read = [row for batch in batches(pieces(str(journal)), SCHEMA, Filter()) for row in batch.to_pylist()]
    except CorruptJournalError as error:
        said = str(error)
    assert read == right or (path.name in said and "byte " in said)


def test_a_damaged_or_missing_sealed_file_is_named(journal: Path) -> None:
    sealed_and_open(journal)
    (path,) = (journal / "sealed").glob("*.parquet")
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CorruptJournalError, match=path.name):
        list(sealed_rows(str(path), SCHEMA, Filter()))
    path.unlink()
    with pytest.raises(JournalError, match=f"{path.name}: this sealed file was deleted before it was read"):
        list(sealed_rows(str(path), SCHEMA, Filter()))
