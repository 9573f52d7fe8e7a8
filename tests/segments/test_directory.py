"""Directories of segments: the order, and the lock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from segments.journals import EXAMPLE, records_of, write
from support import python

from sbuslib.errors import JournalInUseError
from sbuslib.segments.directory import DirectoryLock, durable_sequence, is_recorded, list_segments, read_header

ROWS = [record for blocks in EXAMPLE for rows in blocks for record in rows]


def test_segments_are_listed_in_order_without_other_files(journal: str) -> None:
    write(journal, *reversed(EXAMPLE))
    Path(journal, "notes.txt").write_text("mine")
    assert [one.first_sequence for one in list_segments(journal)] == [1, 4]
    assert records_of(journal) == ROWS
    assert [read_header(one.path).first_sequence for one in list_segments(journal)] == [1, 4]


def test_the_last_durable_row_stays_known_while_the_next_recorder_starts(folder: str) -> None:
    lock = DirectoryLock(folder)
    assert durable_sequence(folder) == 0
    lock.tell(12)
    lock.release()
    lock = DirectoryLock(folder)
    assert durable_sequence(folder) == 12
    lock.release()


def test_a_directory_has_one_recorder(folder: str) -> None:
    lock = DirectoryLock(folder)
    assert is_recorded(folder)
    for _ in range(2):
        with pytest.raises(JournalInUseError, match=f"already by process {os.getpid()}$"):
            DirectoryLock(folder)
    code = f"""
from sbuslib.segments.directory import DirectoryLock, is_recorded
print(is_recorded({folder!r}))
try:
    DirectoryLock({folder!r})
except Exception as error:
    print(type(error).__name__)
"""
    assert python("-c", code).split() == ["True", "JournalInUseError"]
    lock.release()
    lock.release()
    assert not is_recorded(folder)
    DirectoryLock(folder).release()
    assert (os.stat(os.path.join(folder, "recorder.lock")).st_mode & 0o777) == 0o600
