"""What is told of journals: by their headers, when they are verified, and which messages are missing."""

from __future__ import annotations

import os
from typing import Any

import pytest
from journal.format.journals import EXAMPLE, flip, write

from sbuslib.errors import UsageError
from sbuslib.journal.limits import JournalLimits
from sbuslib.journal.summary import summarize

# -- Summaries, rows and checks of journals that are whole, damaged, or being written


@pytest.fixture
def journal(folder: str) -> str:
    write(f"{folder}/journal", *EXAMPLE)
    return f"{folder}/journal"


def flip_in(journal: str, segment: int, position: int) -> str:
    path = os.path.join(journal, sorted(os.listdir(journal))[segment])
    flip(path, position)
    return path


def test_a_journal_is_told_by_its_headers(journal: str) -> None:
    (found,) = summarize(journal)
    assert (found.separator, found.recorded, found.missing) == ("/", False, 0)
    assert [(one.first_row, one.rows, one.state) for one in found.files] == [(1, 3, "ended"), (4, 6, "ended")]
    assert sum(one.bytes for one in found.files) == sum(
        os.path.getsize(os.path.join(journal, name)) for name in os.listdir(journal)
    )
    assert found.files[1].latest == EXAMPLE[1][2][-1].time_ns


def test_a_damaged_header_is_told_with_its_segment(journal: str) -> None:
    flip_in(journal, 1, 50)
    first, second = summarize(journal)[0].files
    assert first.state == "ended"
    assert (second.rows, second.state) == (0, "the segment's header is damaged")


# -- The limits of a recorder


def test_limits_are_positive() -> None:
    for name in JournalLimits.__struct_fields__:
        wrong: dict[str, Any] = {name: 0}
        with pytest.raises(UsageError, match=name):
            JournalLimits(**wrong)
