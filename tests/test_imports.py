"""The floors: what each module may import, for the type checker too, and what importing it may load."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT, python

PACKAGE = ROOT / "sbuslib"

FLOORS = [
    "errors lazy limits matcher shares statistics",
    "covering secrets wire",
    "border kernel policy segments",
    "doors recipes",
    "core clients lake",
    "client blocking aio topic",
    "survey tree",
    "hub rates",
    "diagnosis relay testing",
    "bridge tcp journal spark bench web services pytest_plugin",
    "reading",
    "reports",
    "cli",
]
"""Modules of the top level and folders, the lowest floor first. A folder stands for all that is in it."""

ENTRANCES = {"__init__", "__main__"}

STILL_WRONG: set[tuple[str, str]] = set()
"""Imports that go up, or sideways. This list only shrinks."""

CIRCLES: list[str] = []
"""Modules that import each other in a circle. This list only shrinks."""

PURE = {
    "border",
    "wire.batches",
    "wire.columns",
    "wire.control",
    "wire.modes",
    "wire.offers",
    "wire.packets",
    "wire.text",
    "errors",
    "limits",
    "covering",
    "matcher",
    "policy",
    "statistics",
    "secrets",
    "topic",
    "recipes",
    "lazy",
    "doors.transfers",
    "clients.batch",
    "clients.mailboxes",
    "clients.questions",
    "clients.session",
    "clients.reconnect",
    "core.outbox",
    "core.quotas",
    "core.router",
    "core.violations",
    "tree.interest",
    "tcp.forwarding",
    "tcp.framing",
    "tcp.limits",
    "tcp.statistics",
    "tcp.substrings",
    "segments.encoding",
    "segments.layout",
    "segments.reading",
    "services.queue_rules",
    "bench.results",
    "bench.scenarios",
    "bench.tables",
}
"""Modules, and folders of modules, that do no input or output, read no clock and know no event loop."""

WITHOUT_GEVENT = {
    "kernel",
    "blocking",
    "aio",
    "clients.aio_channel",
    "clients.aio_patterns",
    "clients.batch",
    "clients.channel",
    "clients.endpoint",
    "clients.patterns",
    "spark",
    "reports",
    "services.queue",
    "lake",
    "reading",
    "segments.directory",
}


def modules() -> list[str]:
    """Every module of the package, by its name in it: ``hub``, ``cli.main``."""
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    names = [".".join(path.parts) for path in paths]
    return sorted(name.removesuffix(".__init__") for name in names)


def path_of(name: str) -> Path:
    path = PACKAGE.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def room(name: str) -> str:
    """The folder of a module, or the module itself on the top level."""
    return name.partition(".")[0]


FLOOR = {one: number for number, names in enumerate(FLOORS) for one in names.split()}


def is_in(name: str, names: set[str]) -> bool:
    """Whether a module or its folder is among some."""
    return name in names or room(name) in names


def imports(name: str) -> Iterator[str]:
    """What a module of ours imports of ours, for the type checker too."""
    tree = ast.parse(path_of(name).read_text("utf-8"))
    here = name.split(".") if path_of(name).name == "__init__.py" and name != "__init__" else name.split(".")[:-1]
    for node in ast.walk(tree):
        found: list[str] = []
        if isinstance(node, ast.ImportFrom):
            if node.level:
                start = here[: len(here) - node.level + 1]
                base = [*start, *(node.module or "").split(".")] if node.module else start
            elif node.module and node.module.split(".")[0] == "sbuslib":
                base = node.module.split(".")[1:]
            else:
                continue
            for alias in node.names:
                whole = ".".join([*base, alias.name])
                found.append(whole if whole in KNOWN else ".".join(base) or "__init__")
        elif isinstance(node, ast.Import):
            found = [
                alias.name.partition(".")[2] or "__init__"
                for alias in node.names
                if alias.name.split(".")[0] == "sbuslib"
            ]
        yield from found


KNOWN = set(modules())


def circles(graph: dict[str, set[str]]) -> list[str]:
    """The groups of two or more names of which each reaches each other."""
    reached: dict[str, set[str]] = {}
    for name in graph:
        seen: set[str] = set()
        left = [name]
        while left:
            for other in graph.get(left.pop(), set()) - seen:
                seen.add(other)
                left.append(other)
        reached[name] = seen
    groups = {
        frozenset(other for other in graph if other in reached[name] and name in reached[other]) for name in graph
    }
    return sorted(" ".join(sorted(group)) for group in groups if len(group) > 1)


def loads(name: str, *wanted: str) -> list[str]:
    """Which of ``wanted`` importing a module loads, in a fresh interpreter."""
    whole = f"sbuslib.{name}" if name != "__init__" else "sbuslib"
    code = f"import {whole}, sys; print(*sorted(set({wanted!r}) & set(sys.modules)))"
    return python("-c", code).split()


@pytest.mark.parametrize("name", modules())
def test_every_module_stands_on_a_floor(name: str) -> None:
    assert name in ENTRANCES or room(name) in FLOOR, f"{name} is missing from the table in {__file__}"


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
    assert wrong == STILL_WRONG


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles({name: set(imports(name)) - {name} for name in modules() if name != "__init__"}) == CIRCLES


@pytest.mark.parametrize("name", [name for name in modules() if is_in(name, PURE)])
def test_a_pure_module_loads_neither_gevent_nor_socket(name: str) -> None:
    assert loads(name, "gevent", "socket", "asyncio", "greenlet", "ssl") == []


@pytest.mark.parametrize("name", [name for name in modules() if is_in(name, PURE)])
def test_a_pure_module_reads_no_clock_and_does_no_input_or_output(name: str) -> None:
    tree = ast.parse(path_of(name).read_text("utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {
        node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level
        if (node.module, [alias.name for alias in node.names]) != ("io", ["BytesIO"])  # which is memory
    }
    assert not imported & {"time", "datetime", "os", "os.path", "pathlib", "io", "select", "threading", "subprocess"}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) if isinstance(node.func, ast.Name)}
    assert not called & {"open", "print", "input"}


@pytest.mark.parametrize("name", [name for name in modules() if is_in(name, WITHOUT_GEVENT)])
def test_what_never_loads_gevent(name: str) -> None:
    assert loads(name, "gevent", "greenlet") == []


@pytest.mark.parametrize("name", modules())
def test_all_is_sorted_and_true(name: str) -> None:
    tree = ast.parse(path_of(name).read_text("utf-8"))
    public = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "__all__"
        and isinstance(node.value, ast.List)
        if all(isinstance(element, ast.Constant) for element in node.value.elts)
    ]
    defined = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    defined |= {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for assigned in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in ast.walk(assigned)
        if isinstance(target, ast.Name)
    }
    for names in public:
        assert set(names) <= defined


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


@pytest.mark.parametrize("name", modules())
def test_a_module_says_what_belongs_in_it(name: str) -> None:
    docstring = ast.get_docstring(ast.parse(path_of(name).read_text("utf-8")))
    assert docstring
    assert docstring.strip()


@pytest.mark.parametrize("name", modules())
def test_no_module_monkey_patches_or_swallows_everything(name: str) -> None:
    tree = ast.parse(path_of(name).read_text("utf-8"))
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.type is None]
    assert "patch_all" not in ast.unparse(tree)
