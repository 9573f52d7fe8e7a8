"""The limits of a recorder, and their table."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support import ROOT

from sbuslib.errors import UsageError
from sbuslib.journal.limits import JournalLimits
from sbuslib.limits import describe


def test_the_documentation_holds_the_table() -> None:
    table = describe(JournalLimits)
    assert table in (ROOT / "docs" / "journal.md").read_text("utf-8")
    assert all(re.fullmatch(r"\| `(\w+)` \| ([\d.,]+) \| (.+\.) \|", row) for row in table.splitlines()[2:])


@pytest.mark.parametrize("name", JournalLimits.__struct_fields__)
def test_each_is_a_positive_number(name: str) -> None:
    wrong: list[Any] = [0, -1, None, float("nan")]
    for value in wrong:
        with pytest.raises(UsageError, match=name):
            JournalLimits(**{name: value})
