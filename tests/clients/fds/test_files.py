"""Files that come from others: names that strangers chose, and a folder that nothing leaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbuslib.clients.fds import files
from sbuslib.clients.fds.files import FileSink, safe_name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../a",
        "/etc/passwd",
        "a/b",
        "a\0",
        "a\n",
        "-rf",
        ".bashrc",
        "~",
        "\udc80",
        "\u202eexe.txt",
        "ä" * 101,
    ],
)
def test_a_name_that_is_not_safe_is_replaced(name: str) -> None:
    assert safe_name(name, "id") == "id"


@given(st.text())
def test_no_name_leaves_its_folder(name: str) -> None:
    safe = safe_name(name, "id")
    assert os.path.normpath(os.path.join("/folder", safe)) == f"/folder/{safe}"
    assert safe in (name, "id")


def test_a_file_appears_when_it_is_whole_and_replaces_nothing(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").symlink_to(outside)
    for number in (1, 2):
        sink = FileSink(folder, "a.txt")
        sink.write(memoryview(b"x"))
        assert not (folder / f"a-{number}.txt").exists()
        assert sink.finish() == folder / f"a-{number}.txt"
        assert (folder / f"a-{number}.txt").read_bytes() == b"x"
    assert not outside.exists()
    assert len(os.listdir(folder)) == 3


def test_a_file_has_a_name_only_once_it_is_whole(tmp_path: Path) -> None:
    for end in (FileSink.discard, FileSink.discard, FileSink.finish):
        sink = FileSink(tmp_path, "a")
        sink.write(memoryview(b"x"))
        assert os.listdir(tmp_path) == [], "nothing is left of what a killed process received"
        end(sink)
    sink.discard()
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_a_file_system_without_files_without_a_name_gives_it_a_hidden_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = os.open

    def refuse(path: object, flags: int, *more: object, **named: object) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return given(path, flags, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    for end in (FileSink.finish, FileSink.discard):
        sink = FileSink(tmp_path, "a")
        sink.write(memoryview(b"x"))
        assert [name for name in os.listdir(tmp_path) if name.startswith(".sbus-")]
        end(sink)
    assert os.listdir(tmp_path) == ["a"]


def test_a_temporary_file_is_handed_over_at_its_start() -> None:
    sink = FileSink(None, "a")
    sink.write(memoryview(b"abc"))
    with sink.finish() as file:
        assert file.read() == b"abc"
    FileSink(None, "a").discard()


def test_too_many_files_of_one_name_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_OF_A_NAME", 2)
    for _ in range(2):
        FileSink(tmp_path, "a").finish()
    sink = FileSink(tmp_path, "a")
    with pytest.raises(FileExistsError):
        sink.finish()
    sink.discard()
    assert sorted(os.listdir(tmp_path)) == ["a", "a-1"]
