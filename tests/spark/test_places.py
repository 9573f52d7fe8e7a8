"""Places of journals: paths and URIs, and directories that are not journals."""

from __future__ import annotations

from pathlib import Path

import pytest
from spark.journals import rows, segment

from sbuslib.errors import JournalError
from sbuslib.spark.manifest import changed
from sbuslib.spark.places import absolute, list_segments, opened


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
        pytest.raises(JournalError, match=rf"{first.name}: this segment was deleted before it was read"),
        opened(str(first)),
    ):
        pass


def test_a_directory_without_a_journal_is_refused(tmp_path: Path) -> None:
    with changed(tmp_path / "lake"):
        pass
    for place, said in (
        ("bogus://x", "bogus://x: "),
        (str(tmp_path / "nothing"), "no such directory"),
        (str(tmp_path / "lake"), "is a lake, and no journal"),
        ((tmp_path / "lake").as_uri(), "is a lake, and no journal"),
    ):
        with pytest.raises(JournalError, match=said):
            list_segments(place)
