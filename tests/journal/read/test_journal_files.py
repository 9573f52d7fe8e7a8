"""Files of journals, listed and opened by path and by URI."""

from __future__ import annotations

from pathlib import Path

import pytest
from journal.format.journals import rows, segment

from sbuslib.errors import JournalError
from sbuslib.journal.read.journal_files import absolute, list_sealed, list_segments, opened, sealed_name
from sbuslib.journal.read.read_plan import contents

JOURNAL = "0123456789abcdef"


def test_an_absolute_place_does_not_depend_on_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("journal/") == absolute("file:./journal") == f"{tmp_path}/journal"
    assert absolute("s3://bucket/journal/") == "s3://bucket/journal"


def test_segments_are_listed_and_read_by_path_and_by_uri(journal: Path) -> None:
    later, first = segment(journal, 4, rows(2)), segment(journal, 1, rows(3))
    (journal / "recorder.lock").touch()
    for place in (str(journal), journal.as_uri()):
        found = list_segments(place)
        assert [(one.first_sequence, one.size) for one in found] == [
            (1, first.stat().st_size),
            (4, later.stat().st_size),
        ]
        with opened(found[0].path) as read_at:
            assert read_at(8, 4_096) == first.read_bytes()[8:4_104]
    first.unlink()
    with (
        pytest.raises(JournalError, match=rf"{first.name}: this file was deleted before it was read"),
        opened(str(first)),
    ):
        pass


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for place, said in (("bogus://x", "bogus://x: "), (str(tmp_path / "nothing"), "no such directory")):
        with pytest.raises(JournalError, match=said):
            list_segments(place)
    assert list_sealed(str(tmp_path / "nothing")) == []


def test_sealed_files_are_found_by_their_names(journal: Path) -> None:
    segment(journal, 1, rows(3))
    folder = journal / "sealed"
    folder.mkdir()
    second = 1_000_000_000
    names = [sealed_name(JOURNAL, n, n + 9, (n * second + 5, n * second + 7), n) for n in (11, 1)]
    assert names[1] == f"{JOURNAL}-{1:020d}-{10:020d}-19700101T000001-19700101T000001-00000001.parquet"
    names.append(names[0].replace("T0000", "T9900"))
    for name in (*names, f"{JOURNAL}-{31:020d}-{40:020d}.parquet", "notes.parquet", f"_{JOURNAL}-{21:020d}.new"):
        (folder / name).write_bytes(b"x")
    found = contents(str(journal))
    assert [one[1:] for one in found.sealed] == [
        (JOURNAL, 1, 10, second, 2 * second, 1, 1),
        (JOURNAL, 11, 20, 11 * second, 12 * second, 11, 1),
    ]
    assert [one.name for one in found.sealed] == names[1::-1]
    assert (len(found.segments), found.is_growing, found.journal) == (1, False, JOURNAL)
    with pytest.raises(JournalError, match="the identity"):
        sealed_name("../../etc/passwd", 1, 2, (0, 0), 0)
