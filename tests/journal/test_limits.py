"""The limits of a recorder, and their table."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support import ROOT

from sbuslib.errors import UsageError
from sbuslib.journal.limits import JournalLimits
from sbuslib.limits import describe


def test_the_docs_have_the_table_of_limits() -> None:
    table = describe(JournalLimits)
    assert table in (ROOT / "docs" / "journal.md").read_text("utf-8")
    assert all(re.fullmatch(r"\| `(\w+)` \| ([\d.,]+) \| (.+\.) \|", row) for row in table.splitlines()[2:])


@pytest.mark.parametrize("name", JournalLimits.__struct_fields__)
def test_limits_are_positive(name: str) -> None:
    wrong: list[Any] = [0, -1, None, float("nan")]
    for value in wrong:
        with pytest.raises(UsageError, match=name):
            JournalLimits(**{name: value})
