"""Texts for people: keys, payloads and errors."""

from __future__ import annotations

import ast

from hypothesis import given
from hypothesis import strategies as st

from sbuslib.wire.text import plainly, printable

# -- Bytes from strangers as text


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_printable_prints_and_can_be_read_back(data: bytes) -> None:
    shown = printable(data)
    assert shown.isprintable()
    escaped = ascii(shown.encode())[1:]  # as a literal of bytes, in which our escapes are Python's
    assert ast.literal_eval("b" + escaped.replace("\\\\", "\\")) == data


def test_errors_are_told_without_the_spelling_of_python() -> None:
    assert plainly(OSError(28, "No space left on device")) == "No space left on device"
    assert plainly(OSError(28, "No space left on device", "/tmp/x")) == "/tmp/x: No space left on device"
    assert plainly(ValueError("what it says")) == "what it says"
    assert plainly(ConnectionError("what it says")) == "what it says"
