"""The page on troubleshooting has an entry for each text of an error that circumstances bring about."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from docs.pages import DOCS, tables
from test_imports import PACKAGE

PAGE = DOCS / "how-to" / "troubleshooting.md"

KINDS = {"AddressInUseError", "DisconnectedError", "HubIdentityError", "NoHubError", "ServiceError", "StateError"}
"""Errors that do not say of an argument what is wrong with it."""

PLACES = ["hub.py", "relay.py", "statistics.py", "aio.py", "core", "clients", "kernel", "tree", "journal/recorder.py"]
"""The bus itself; what services and commands say names what to do."""


def words_of(node: ast.expr) -> str | None:
    """A text of the code, with ``…`` for what is put into it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


def texts() -> Iterator[str]:
    for place in PLACES:
        path = PACKAGE / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", None) in KINDS and node.args:
                    text = words_of(node.args[-1])
                    if text is not None and text != "…":
                        yield text


def entries() -> list[str]:
    rows = [row for rows in tables(PAGE) for row in rows if rows[0][0] == "what it says"]
    return [row[0].strip("`").strip() for row in rows]


def test_every_text_has_an_entry() -> None:
    """With ``…`` for what differs; else add a row: what it says, why, and what to do."""
    assert {*texts()} - {*entries()} == set()


def test_no_entry_is_of_a_text_that_is_gone() -> None:
    """Every entry is found in the code, in pieces where something is put into it."""
    code = re.sub(r'"\s*f?"', "", "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py")))
    for entry in entries():
        for piece in re.split("[…`]", entry):
            assert entry == "what it says" or piece.strip(" :") in code, entry
