"""What the pages and docstrings name of the code is there; the drawings are what the code gives."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
from functools import cache
from types import ModuleType

import drawings
from docs.pages import DOCS, PAGES, named, tables, text_of
from support import ROOT
from test_imports import ENTRANCES, FLOORS, PACKAGE, modules, path_of

import sbuslib

PAGE = DOCS / "architecture.md"
OTHERS = {"asyncio", "gevent", "pyarrow", "pyspark", "select", "socket", "threading", "time"}
"""Packages that docstrings refer to besides ours."""


@cache
def loaded() -> list[ModuleType]:
    return [sbuslib, *(importlib.import_module(f"sbuslib.{name}") for name in modules() if name not in ENTRANCES)]


@cache
def homes(owner: str) -> list[object]:
    """Every class, or else every module, of this name."""
    if owner[0].isupper():
        return [kind for kind in (vars(module).get(owner) for module in loaded()) if inspect.isclass(kind)]
    return [module for module in loaded() if module.__name__.rpartition(".")[2] == owner]


def has(home: object, name: str) -> bool:
    return hasattr(home, name) or (inspect.isclass(home) and f"self.{name}" in inspect.getsource(home))


def test_every_folder_is_listed() -> None:
    (rows,) = [rows[1:] for rows in tables(PAGE) if rows[0] == ["folder", "what is in it"]]
    folders = {name.rpartition(".")[0].replace(".", "/") or "sbuslib" for name in modules() if name not in ENTRANCES}
    assert {named([folder])[0] for folder, _ in rows} == folders


def test_methods_that_pages_name_are_there() -> None:
    for path in PAGES:
        for kind, name in re.findall(r"`([A-Z]\w+)\.(\w+)[`(]", text_of(path)):
            assert not homes(kind) or any(has(home, name) for home in homes(kind)), f"{path.name}: {kind}.{name}"


def test_what_the_page_on_the_architecture_names_is_there() -> None:
    """Files, classes and functions; those of the drawing of a packet's journey, too."""
    text = text_of(PAGE) + re.sub(r">([\w.]+)</text>", r">`\1`</text>", text_of(DOCS / "images" / "journey.svg"))
    for name in {*named([text])}:
        owner, _, rest = name.partition(".")
        if re.fullmatch(r"[\w/]+\.(py|c|md)", name):
            assert (PACKAGE / name).exists() or (ROOT / name).exists(), name
        elif re.fullmatch(r"[A-Za-z_]\w*\.\w+", name):
            assert any(has(home, rest) for home in homes(owner)), name
        elif re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
            assert homes(name), name


def test_what_docstrings_refer_to_is_there() -> None:
    """By its last name: a module, class, function or attribute of ours is called so."""
    known, referred = {name.rpartition(".")[2] for name in modules()}, set()
    for name in modules():
        text = path_of(name).read_text("utf-8")
        for node in ast.walk(ast.parse(text)):
            for key in ("name", "id", "attr", "arg", "asname"):
                known.add(getattr(node, key, None) or "")
        referred |= {*re.findall(r":(?:class|meth|func|attr|mod|data|exc):`~?\.*([\w.]+)`", text)}
    ours = {target.rpartition(".")[2] for target in referred if target.partition(".")[0] not in OTHERS}
    assert ours - known - {*vars(builtins)} == set()


def test_the_drawings_are_what_the_code_gives() -> None:
    """Else: ``python docs/site/drawings.py`` writes them anew."""
    for name, drawing in drawings.made(FLOORS).items():
        assert (DOCS / "images" / f"{name}.svg").read_text("utf-8") == drawing, name
