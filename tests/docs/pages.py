"""The pages of the documentation as values: their blocks, links and tables.

A comment on the line before a fenced block tells what the tests do with it:

=============================  =======================================================================
``<!-- file: name.py -->``     the block is a file of the page's folder; it need not run by itself
``<!-- terminal: name -->``    the commands are run in this terminal, which keeps what it exported;
                               with ``; Ctrl-C: other`` after what stays in the other has ended so
``<!-- stays: name -->``       likewise, and the last command is left running; what it prints is what
                               the block shows after it, by the end of the page
``<!-- fragment -->``          Python that is only checked for its syntax
``<!-- not run -->``           commands that are only checked for their syntax
=============================  =======================================================================
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

_FENCE = re.compile(r"^(?:<!-- ([^\n]*) -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")


@dataclass
class Block:
    """A fenced block: its language, what its comment says (``terminal``, ``pub``), its text, its first line."""

    language: str
    what: str
    name: str
    text: str
    line: int


@dataclass
class Desk:
    """Where a reader sits: ``folder`` is the one worked in, ``address`` stands for ``/tmp/bus``."""

    folder: Path
    address: str
    environment: dict[str, str]

    def run(self, program: str, name: str = "") -> str:
        """What a Python program prints, with this address in ``SBUS_ADDRESS``; it may not complain."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-"],
            input=program,
            env=self.environment | {"SBUS_ADDRESS": self.address},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), f"{name}: {done.stderr}"
        return done.stdout


def text_of(path: Path) -> str:
    """The page."""
    return path.read_text("utf-8")


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = text_of(path)
    found = []
    for fence in _FENCE.finditer(text):
        what, _, name = (fence[1] or "").partition(": ")
        found.append(Block(fence[2], what, name, fence[3], text.count("\n", 0, fence.start(3)) + 1))
    return found


def _prose(path: Path) -> str:
    return _FENCE.sub("", text_of(path))


def links(path: Path) -> list[str]:
    """Where the links of a page lead."""
    return _LINK.findall(_prose(path))


def anchors(path: Path) -> set[str]:
    """The anchors that the headings of a page make, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", _prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def tables(path: Path) -> list[list[list[str]]]:
    """The tables of a page: the cells of their rows, the heading first."""
    whole = re.findall(r"(?:^\|.*\n)+", _prose(path), re.MULTILINE)
    rows = ([[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()] for text in whole)
    return [[cells for cells in table if not re.fullmatch(r"[:-]+", "".join(cells))] for table in rows]


def named(cells: list[str]) -> list[str]:
    """What stands in backticks, in order; blocks of code left out."""
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", _FENCE.sub("", cell))]
