"""The man pages, which are made when the package is built: they tell of every command, and groff has no complaint."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from support import PATIENCE, ROOT

from sbuslib.cli import daemon, main, manual


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return manual.pages()


def test_every_group_of_commands_has_a_page_with_its_commands(pages: dict[str, str]) -> None:
    for group, (_, commands) in main.GROUPS.items():
        for command in commands:
            assert f"\n.SH SBUS {command.upper()}\n" in pages[f"sbus-{group}.1"]
            assert f"\n\\fBsbus {command}\\fR" in pages[f"sbus-{group}.1"]


def test_the_pages_have_the_defaults(pages: dict[str, str]) -> None:
    assert "/run/sbus.socket" in pages["sbusd.1"]
    assert daemon.PID_FILE in pages["sbusd.1"]


@pytest.mark.skipif(not shutil.which("groff"), reason="needs groff: apt-get install groff")
def test_the_pages_are_well_formed(pages: dict[str, str]) -> None:
    for text in pages.values():
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww"], input=text.encode(), capture_output=True, timeout=PATIENCE, check=True
        )
        assert done.stderr == b""


def test_text_keeps_backslashes_dots_and_indented_lines() -> None:
    text = manual._text("a \\n\n\n.b\n\nexamples:\n  'c -d", ".SS")
    assert "\n".join(text) == ".PP\na \\en\n.PP\n\\&.b\n.SS EXAMPLES\n.nf\n  'c \\-d\n.fi"


NOTHING_INSTALLED = """
import sys
for name in ("msgspec", "gevent"):
    sys.modules[name] = None
from sbuslib.cli import manual
print(len(manual.files()))
"""


def test_they_are_made_where_nothing_is_installed() -> None:
    """As where pip builds a wheel."""
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_INSTALLED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert int(done.stdout) == len(manual.files())
