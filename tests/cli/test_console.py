"""What the programs share."""

from __future__ import annotations

import pytest

from sbuslib.cli.console import explain
from sbuslib.errors import NoHubError


@pytest.mark.parametrize(
    ("error", "address", "line"),
    [
        (NoHubError("no hub at /a: gone"), "/a", "no hub at /a: gone"),
        (NoHubError("gone"), "/a", "/a: gone"),
        (OSError(2, "No such file"), "/a", "/a: No such file"),
        (OSError(2, "No such file", "/b"), "/a", "/b: No such file"),
        (TimeoutError("too late"), None, "too late"),
        (ValueError("one\ntwo\x1b\udcff\\"), None, "one\\ntwo\\x1b\\xff\\"),
    ],
)
def test_explain(error: Exception, address: str | None, line: str) -> None:
    assert explain(error, address) == line
