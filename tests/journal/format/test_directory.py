"""The directory of a journal: its lock, and what is durable in it."""

from __future__ import annotations

import os
import threading

import pytest
from support import python

from sbuslib.errors import JournalInUseError
from sbuslib.journal.format.directory import DirectoryLock, durable_sequence, is_recorded


def test_the_last_durable_row_stays_known_while_the_next_recorder_starts(folder: str) -> None:
    lock = DirectoryLock(folder)
    assert durable_sequence(folder) == 0
    lock.write_note(b"%020d" % 12)
    lock.close()
    lock = DirectoryLock(folder)
    assert durable_sequence(folder) == 12
    lock.close()


def test_a_directory_has_one_recorder(folder: str) -> None:
    lock = DirectoryLock(folder)
    assert is_recorded(folder)
    for _ in range(2):
        with pytest.raises(JournalInUseError, match=f"already by process {os.getpid()}$"):
            DirectoryLock(folder)
    code = f"""
from sbuslib.journal.format.directory import DirectoryLock, is_recorded
print(is_recorded({folder!r}))
try:
    DirectoryLock({folder!r})
except Exception as error:
    print(type(error).__name__)
"""
    assert python("-c", code).split() == ["True", "JournalInUseError"]
    lock.close()
    lock.close()
    assert not is_recorded(folder)
    DirectoryLock(folder).close()
    assert (os.stat(os.path.join(folder, "recorder.lock")).st_mode & 0o777) == 0o600


def test_who_asks_whether_a_journal_is_recorded_keeps_no_recorder_from_starting(folder: str) -> None:
    DirectoryLock(folder).close()
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            is_recorded(folder)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(2_000):
            DirectoryLock(folder).close()
    finally:
        ended.set()
        for reader in readers:
            reader.join()
