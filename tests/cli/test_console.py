"""What the programs share."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbuslib.cli.console import explain, printable
from sbuslib.errors import NoHubError


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_printable_prints_and_can_be_read_back(data: bytes) -> None:
    shown = printable(data)
    assert shown.isprintable()
    escaped = ascii(shown.encode())[1:]  # as a literal of bytes, in which our escapes are Python's
    assert ast.literal_eval("b" + escaped.replace("\\\\", "\\")) == data


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
