"""The report beside other brokers: its tables and pages, and the names of scenarios that it uses."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.figures import measured
from support import PATIENCE, ROOT

from benchmarks.comparison import tables
from benchmarks.comparison.runner import BESIDE, COMPARED
from sbuslib.bench.results import encode
from sbuslib.bench.scenarios import find
from sbuslib.bench.tables import terminal


def test_compared_scenarios_exist() -> None:
    for name in (*COMPARED, *BESIDE, *(other for others in BESIDE.values() for other in others)):
        assert find(name).name == name


def test_the_table_of_the_readme_is_made_of_results() -> None:
    table = tables.markdown(measured(), short=True)
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert all(len(line) <= 120 for line in table.splitlines() if not line.startswith("|"))
    assert (
        rows[0] == "| deliveries/s | sbuslib | C forwarder | Redis | ZeroMQ proxy | speed by CPU, of the forwarder's |"
    )
    assert rows[2] == "| one to one | 2,000 | 4,000 | 500 | - | 0.75 |"
    assert "| round trip | 40.00 µs | 20.00 µs | - | - | 0.25 |" in rows
    assert "| Python client to Python client | 300 k | - | - | 150 k; 400 k in one frame | - |" in rows


def test_a_marked_block_of_a_page_is_replaced() -> None:
    page = f"before\n{tables.BEGIN}\nold\nlines\n{tables.END}\nafter\n"
    assert tables.replace_block(page, "new\n") == f"before\n{tables.BEGIN}\nnew\n{tables.END}\nafter\n"
    for wrong in ("", f"{tables.BEGIN}\n", f"{tables.END}\n{tables.BEGIN}\n", page + page):
        with pytest.raises(ValueError, match="one"):
            tables.replace_block(wrong, "new\n")


@pytest.mark.parametrize("name", ["README.md", "docs/performance.md"])
def test_the_pages_have_the_marked_block(name: str) -> None:
    page = (ROOT / name).read_text("utf-8")
    assert "\nnew\n" in tables.replace_block(page, "new\n")


MAIN = """
import sys
from pathlib import Path
from comparison.report import main
sys.exit(main(Path(sys.argv.pop(1)), "1"))
"""


def make_report(root: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """In a process of its own: matplotlib keeps the files of its fonts open."""
    return subprocess.run(
        [sys.executable, "-c", MAIN, root, "--output", root, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/benchmarks"},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,  # matplotlib takes long to load
        check=False,
    )


def test_the_page_loads_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "figures.json").write_bytes(encode(measured()))
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/performance.md"):
        (tmp_path / name).write_text(f"# Page\n{tables.BEGIN}\n{tables.END}\n")
    done = make_report(tmp_path, "--from", tmp_path / "figures.json", "--readme")
    assert terminal(measured(), tables.title_of) in done.stdout
    assert "| one to one | 2,000 |" in (tmp_path / "README.md").read_text()
    assert "| one to one | 2,000 (1,500-2,500), 3 lost |" in (tmp_path / "docs" / "performance.md").read_text()
    if not importlib.util.find_spec("matplotlib"):
        assert done.returncode == 1
        assert done.stderr == "report.py: plots need matplotlib: pip install 'sbuslib[bench]'\n"
        return
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "index.html").read_text("utf-8")
    assert page.count("<svg") == page.count("</svg>") == 5
    for elsewhere in ("<script", "src=", 'href="http', "url(http"):
        assert elsewhere not in page
    for text in ("pyzmq, key and payload apart", "0.75", "nats-server is not installed"):
        assert text in page
