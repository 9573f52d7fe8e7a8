"""How counts are shown."""

from __future__ import annotations

import json
import os

import pytest

from sbuslib.cli import tables


def test_columns_are_aligned_and_cannot_steer_a_terminal() -> None:
    assert tables.columns([["NAME", "COUNT", "LOST"], ["a", 1_234, "1 (x 1)"], ["b\n\x1b", 5, "0"]]) == [
        "NAME     COUNT  LOST",
        "a        1,234  1 (x 1)",
        "b\\n\\x1b      5  0",
    ]


def test_losses_are_told_by_cause() -> None:
    assert tables.losses({}) == "0"
    assert tables.losses({"overflow": 1_000, "quota": 0, "a\nb": 2}) == "1,002 (overflow 1,000, a\\nb 2)"


def test_users_have_names_where_there_are_any() -> None:
    assert tables.name_of_user(0) == "root"
    assert tables.name_of_user(2**32 - 2) == str(2**32 - 2)
    assert tables.name_of_user(2**40) == str(2**40)
    assert os.getuid() != 0 or tables.name_of_user(os.getuid()) == "root"


def test_json_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show_json({"a": "ü😀\x1b"})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"a": "ü😀\x1b"}
