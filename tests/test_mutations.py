"""The tool that changes one line at a time lists what no test notices, and nothing else."""

from __future__ import annotations

from pathlib import Path

import mutations
import pytest

RULE = """
from __future__ import annotations

def is_cheaper(count: int) -> bool:
    return count > 9

def label(count: int) -> str:
    return str(count)
"""
TESTS = """
import subprocess, sys
from shop.rule import is_cheaper

def test_many_are_cheaper():
    assert is_cheaper(20)

def test_a_label_says_how_many():
    assert subprocess.check_output([sys.executable, "-c", "from shop.rule import label; print(label(1))"]) == b"1\\n"
"""


def test_what_no_test_notices_is_listed_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name, content in {
        "shop/__init__.py": "",
        "shop/rule.py": RULE,
        "tests/test_rule.py": TESTS,
        "tests/mutations.txt": "shop/rule.py is_cheaper | 9 | 10 | nobody buys ten\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)

    assert mutations.main(["shop/rule.py", "--root", str(tmp_path)]) == 1

    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("2 tests pass without a change")
    assert dict(zip(said[1:-1:2], said[2:-1:2], strict=True)) == {
        "shop/rule.py:5 is_cheaper | return count > 9 | return None": (
            "    noticed by tests/test_rule.py::test_many_are_cheaper"
        ),
        "shop/rule.py:5 is_cheaper | count > 9 | count >= 9": "    NOT NOTICED by 1 of 1 tests",
        "shop/rule.py:8 label | return str(count) | return None": (
            "    noticed by tests/test_rule.py::test_a_label_says_how_many"
        ),
    }
    assert said[-1] == "shop/rule.py: 2 of 3 noticed, 1 explained"
    assert (tmp_path / "shop/rule.py").read_text() == RULE
