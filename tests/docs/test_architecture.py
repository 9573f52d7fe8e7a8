"""The page on the architecture, held against the code: the folders and the names."""

from __future__ import annotations

import importlib
import inspect
import re
from functools import cache
from types import ModuleType

from docs.pages import DOCS, tables, text_of
from support import ROOT
from test_imports import ENTRANCES, FLOORS, PACKAGE, modules

import sbuslib

PAGE = DOCS / "architecture.md"


def folders() -> set[str]:
    """The folders of the package; its top level is ``sbuslib``."""
    return {name.rpartition(".")[0] or "sbuslib" for name in modules() if name not in ENTRANCES}


def named(text: str) -> list[str]:
    """What stands in backticks, in order; blocks of code left out."""
    return re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))


def test_every_folder_is_listed() -> None:
    (rows,) = [rows[1:] for rows in tables(PAGE) if rows[0] == ["folder", "what is in it"]]
    assert {named(folder)[0] for folder, _ in rows} == folders()


def dotted_names() -> list[str]:
    """Every ``Class.method`` and ``module.function`` of the page, without files."""
    found = {name for name in named(text_of(PAGE)) if re.fullmatch(r"[A-Za-z_]\w*\.\w+", name)}
    return sorted(name for name in found if not name.endswith((".py", ".md", ".c")))


@cache
def loaded() -> list[ModuleType]:
    return [sbuslib, *(importlib.import_module(f"sbuslib.{name}") for name in modules() if name not in ENTRANCES)]


def homes(owner: str) -> list[object]:
    """Every class, or else every module, of this name."""
    if owner[0].isupper():
        return [kind for kind in (vars(module).get(owner) for module in loaded()) if inspect.isclass(kind)]
    return [module for module in loaded() if module.__name__.rpartition(".")[2] == owner]


def has(home: object, name: str) -> bool:
    return hasattr(home, name) or (inspect.isclass(home) and f"self.{name}" in inspect.getsource(home))


def test_named_methods_and_functions_exist() -> None:
    assert len(dotted_names()) > 50
    for dotted in dotted_names():
        owner, _, name = dotted.partition(".")
        assert any(has(home, name) for home in homes(owner)), dotted


def test_a_named_class_exists() -> None:
    told = {name for name in named(text_of(PAGE)) if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name)}
    assert {name for name in told if not homes(name)} == set()


def test_named_files_exist() -> None:
    files = {name for name in named(text_of(PAGE)) if re.fullmatch(r"[\w/]+\.(py|c|md)", name)}
    assert files
    missing = {name for name in files if not ((PACKAGE / name).exists() or (ROOT / name).exists())}
    assert missing == set()


def bus_modules() -> list[str]:
    """The modules of the bus itself: what is below the services."""
    rooms = [room for floor in FLOORS[1:7] for room in floor.split()]
    return [name for name in modules() if "." in name and name.partition(".")[0] in rooms]


def test_every_module_of_the_bus_is_the_place_to_change_something() -> None:
    table = text_of(PAGE).partition("## Where do I change X?")[2]
    assert [name for name in bus_modules() if f"`{name.replace('.', '/')}.py`" not in table] == []
