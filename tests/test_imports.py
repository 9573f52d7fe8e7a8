"""The floors: what each module may import, for the type checker too, and what importing it may load."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

from support import ROOT, python

PACKAGE = ROOT / "sbuslib"

FLOORS = [
    "_lazy errors limits malformed matcher reasons secrets shares statistics",
    "wire",
    "keys",
    "federation kernel",
    "journal.format",
    "clients.fds clients.recipes",
    "clients core journal.read",
    "client blocking aio topic",
    "tree",
    "hub",
    "connecting monitor relay testing",
    "bridge integrations tcp journal spark bench web services pytest_plugin",
    "reading",
    "reports",
    "cli",
]
"""Modules of the top level and folders, the lowest floor first. A folder stands for all in it that has no own floor."""

ENTRANCES = {"__init__", "__main__"}

PURE = """
federation wire.batches wire.columns wire.control wire.modes wire.offers wire.packets wire.text errors limits keys
malformed
matcher statistics secrets topic clients.recipes _lazy clients.fds.transfers clients.batch clients.mailboxes
clients.hub_requests
clients.session clients.reconnect core.outbox core.quotas core.router core.violations tree.interest tcp.forwarding
tcp.framing tcp.limits tcp.peer_statistics tcp.substrings journal.format.encoding journal.format.layout
journal.format.decoding
services.queue_entries services.queue_rules bench.results bench.scenarios bench.tables
"""
"""Modules, and folders of modules, that do no input or output, read no clock and know no event loop."""

WITHOUT_GEVENT = """
kernel blocking aio clients clients.fds clients.recipes spark reports services.queue_service journal.read reading
journal.format
"""


def modules() -> list[str]:
    """Every module of the package, by its name in it: ``hub``, ``cli.main``."""
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    names = [".".join(path.parts) for path in paths]
    return sorted(name.removesuffix(".__init__") for name in names)


def path_of(name: str) -> Path:
    path = PACKAGE.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def room(name: str) -> str:
    """The folder of a module that has a floor of its own, or the module itself on the top level."""
    two = ".".join(name.split(".")[:2])
    return two if two in FLOOR else name.partition(".")[0]


FLOOR = {one: number for number, names in enumerate(FLOORS) for one in names.split()}


def chosen(names: str) -> list[str]:
    """The modules of these names, and all in the folders among them. A name that is neither is a mistake."""
    listed = set(names.split())
    assert listed <= KNOWN, f"no modules: {sorted(listed - KNOWN)}"
    return [name for name in modules() if name in listed or room(name) in listed]


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(path_of(name).read_text("utf-8"))


@cache
def imports(name: str) -> set[str]:
    """What a module of ours imports of ours, for the type checker too."""
    package = f"sbuslib.{name}" if path_of(name).name == "__init__.py" else f"sbuslib.{name}".rpartition(".")[0]
    found = set()
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            found |= {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    ours = {target.removeprefix("sbuslib.") for target in found if target.startswith("sbuslib.")}
    return {target if target in KNOWN else target.rpartition(".")[0] or "__init__" for target in ours}


KNOWN = set(modules())


def first_to_load(names: str, *wanted: str) -> list[str]:
    """The first module of these whose import loads one of ``wanted``, and which; in a fresh interpreter."""
    code = f"""
import importlib, sys
for name in {[f"sbuslib.{name}" for name in chosen(names)]!r}:
    importlib.import_module(name)
    if found := {set(wanted)!r} & set(sys.modules):
        print(name, *found)
        break
"""
    return python("-c", code).split()


def test_every_module_stands_on_a_floor_and_says_what_belongs_in_it() -> None:
    for name in modules():
        assert name in ENTRANCES or room(name) in FLOOR, f"{name} is missing from the table in {__file__}"
        assert (ast.get_docstring(tree_of(name)) or "").strip(), name
        assert "patch_all" not in path_of(name).read_text("utf-8"), name


def test_imports_go_down() -> None:
    wrong = {
        (name, other)
        for name in modules()
        if name not in ENTRANCES
        for other in imports(name)
        if other not in ENTRANCES
        and room(other) != room(name)
        and FLOOR[room(other)] >= FLOOR[room(name)]
        and FLOOR[room(name)] > 0
    }
    assert wrong == set()


def test_no_files_import_each_other_in_a_circle() -> None:
    """Raises a ``CycleError`` that names them."""
    TopologicalSorter({name: imports(name) - {name} for name in modules() if name != "__init__"}).prepare()


def test_a_pure_module_loads_neither_gevent_nor_socket() -> None:
    assert first_to_load(PURE, "gevent", "socket", "asyncio", "greenlet", "ssl") == []


def test_what_never_loads_gevent() -> None:
    assert first_to_load(WITHOUT_GEVENT, "gevent", "greenlet") == []


def test_a_pure_module_reads_no_clock_and_does_no_input_or_output() -> None:
    outside = {"time", "datetime", "os", "os.path", "pathlib", "io", "select", "threading", "subprocess"}
    for name in chosen(PURE):
        imported, called = set(), set()
        for node in ast.walk(tree_of(name)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                if (node.module, [alias.name for alias in node.names]) != ("io", ["BytesIO"]):  # which is memory
                    imported.add(node.module or "")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called.add(node.func.id)
        assert not imported & outside, name
        assert not called & {"open", "print", "input"}, name


def test_nothing_is_patched_on_import() -> None:
    code = f"""
import builtins, importlib, select, signal, socket, subprocess, sys, threading, time, os
watched = [builtins, select, signal, socket, subprocess, threading, time, os]
before = [dict(vars(module)) for module in watched]
for name in {[name for name in modules() if name not in ENTRANCES and not name.startswith("spark")]!r}:
    try:
        importlib.import_module("sbuslib." + name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sbuslib"):
            raise
import gevent.monkey
changed = [
    f"{{module.__name__}}.{{name}}"
    for module, was in zip(watched, before)
    for name in was
    if name != "__warningregistry__" and vars(module).get(name) is not was[name]
]
print(changed, gevent.monkey.saved)
"""
    assert python("-c", code) == "[] {}\n"
