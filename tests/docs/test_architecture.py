"""The page on the architecture, and references of docstrings, held against the code."""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from docs.pages import DOCS, tables, text_of
from support import ROOT
from test_imports import ENTRANCES, PACKAGE, modules, path_of

import sbuslib

# -- The page on the architecture, held against the code: the folders and the names

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


# -- What docstrings refer to exists, in the package and with the names that they give

REFERENCE = re.compile(r":(class|meth|func|attr|mod|data|exc):`(~?)([\w.]+)`")

OTHERS = {"asyncio", "select", "socket", "threading", "time", "pyarrow", "gevent", "pyspark"}
"""Packages that docstrings refer to besides ours."""


def references(name: str) -> list[str]:
    text = path_of(name).read_text("utf-8")
    return sorted({target for _, _, target in REFERENCE.findall(text)})


def places(name: str, target: str) -> Iterator[str]:
    """The absolute names that a reference in a module may mean."""
    package = f"sbuslib.{name}" if path_of(name).name == "__init__.py" else f"sbuslib.{name}".rpartition(".")[0]
    if target.startswith("."):
        yield package + target
    elif target.partition(".")[0] == "sbuslib":
        yield target
    else:
        yield f"sbuslib.{name}.{target}"


def exists(whole: str) -> bool:
    """Whether an absolute name leads to a module, or to something in one."""
    parts = whole.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for position, part in enumerate(parts[cut:], cut):
            if hasattr(found, part):
                found = getattr(found, part)
                continue
            is_last = position == len(parts) - 1
            return is_last and inspect.isclass(found) and has_attribute(found, part)
        return True
    return False


def has_attribute(kind: type, name: str) -> bool:
    ours = [base for base in kind.__mro__ if base.__module__.startswith("sbuslib")]
    return any(re.search(rf"(self\.{name}\b|^    {name}:)", inspect.getsource(base), re.MULTILINE) for base in ours)


def in_a_class(name: str, target: str) -> bool:
    """Whether a class of the module has what is named by itself: ``:meth:`start```."""
    module = importlib.import_module(f"sbuslib.{name}")
    kinds = [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]
    return any(hasattr(kind, target) or has_attribute(kind, target) for kind in kinds)


def test_references_of_docstrings_lead_somewhere() -> None:
    missing = [
        (name, target)
        for name in modules()
        if name not in ENTRANCES
        for target in references(name)
        if target.partition(".")[0] not in OTHERS
        and not hasattr(builtins, target)
        and not any(exists(place) for place in places(name, target))
        and not ("." not in target and in_a_class(name, target))
    ]
    assert missing == []
