"""The man pages tell of every command, and groff has no complaint. `tests/docs` compares them with the parsers."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from support import PATIENCE, ROOT

from sbuslib.cli import daemon, main, manual

MAN = ROOT / "man"
PAGES = sorted(path.name for path in MAN.iterdir())


def test_every_group_of_commands_has_a_page_with_its_commands() -> None:
    for group, (_, commands) in main.GROUPS.items():
        text = (MAN / f"sbus-{group}.1").read_text("utf-8")
        for command in commands:
            assert f"\n.SH SBUS {command.upper()}\n" in text
            assert f"\n\\fBsbus {command}\\fR" in text


def test_the_pages_have_the_defaults() -> None:
    text = (MAN / "sbusd.1").read_text("utf-8")
    assert "/run/sbus.socket" in text
    assert daemon.PID_FILE in text


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.skipif(not shutil.which("groff"), reason="needs groff: apt-get install groff")
def test_the_page_is_well_formed(name: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", MAN / name], capture_output=True, timeout=PATIENCE, check=True
    )
    assert done.stderr == b""


def test_text_keeps_backslashes_dots_and_indented_lines() -> None:
    text = manual._text("a \\n\n\n.b\n\nexamples:\n  'c -d", ".SS")
    assert "\n".join(text) == ".PP\na \\en\n.PP\n\\&.b\n.SS EXAMPLES\n.nf\n  'c \\-d\n.fi"
