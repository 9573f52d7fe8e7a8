"""The floors: what each module may import, and what importing it may load."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT, python

PACKAGE = ROOT / "sbuslib"

FLOORS = {
    0: "errors limits packets batches columns matcher secrets outbox quota interest demand router control breaches "
    "statistics session topic backoff text lazy",
    1: "addresses areas seqpacket users dialer",
    2: "crowd sendbuffers trimming backlog parties delivery unpacking connection lines fanout inbox acceptor links "
    "tree hub channel endpoint gathering client blocking aiochannel aio uplink conversation relay",
    3: "metrics",
}
"""Floor to modules. A package is one entry below, and stands for all that is in it."""

PACKAGES = {"patterns": 3, "tcp": 3, "journal": 3, "spark": 3, "web": 3, "bench": 3, "cli": 4}
ENTRANCES = {"__init__": 4, "__main__": 4}
PURE = {
    "tcp.crossing",
    "tcp.forwarding",
    "tcp.framing",
    "tcp.limits",
    "tcp.quota",
    "tcp.statistics",
    "tcp.substrings",
    "journal.format",
    "bench.results",
    "bench.scenarios",
    "bench.tables",
}
"""Modules of upper floors that are as pure as those of floor 0."""

SHARED = {"journal.format", "journal.directory"}
"""Modules that folders of the top floors may import though they belong to another: how the bytes of a journal are read
stands in one place, for the recorder and for Spark alike. They import nothing of gevent's."""

FLOOR = {name: floor for floor, names in FLOORS.items() for name in names.split()} | ENTRANCES
WITHOUT_GEVENT = {"blocking", "aio", "aiochannel", "channel", "endpoint", "spark"}


def modules() -> list[str]:
    """Every module of the package, by its name in it: ``hub``, ``cli.main``."""
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    names = [".".join(path.parts) for path in paths]
    return sorted(name.removesuffix(".__init__") for name in names)


def path_of(name: str) -> Path:
    path = PACKAGE.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def floor(name: str) -> int:
    package = name.partition(".")[0]
    return PACKAGES[package] if package in PACKAGES else FLOOR[name]


def imports(name: str, typing: bool) -> Iterator[str]:
    """What a module of ours imports of ours; with ``typing``, what it imports for annotations alone, too."""
    tree = ast.parse(path_of(name).read_text("utf-8"))
    for_typing = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in block.body
        for node in ast.walk(statement)
    }
    here = name.split(".") if path_of(name).name == "__init__.py" and name != "__init__" else name.split(".")[:-1]
    known = set(modules()) | set(PACKAGES)
    for node in ast.walk(tree):
        if not typing and id(node) in for_typing:
            continue
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
                found.append(whole if whole in known else ".".join(base) or "__init__")
        elif isinstance(node, ast.Import):
            found = [
                alias.name.partition(".")[2] or "__init__"
                for alias in node.names
                if alias.name.split(".")[0] == "sbuslib"
            ]
        yield from found


def loads(name: str, *wanted: str) -> list[str]:
    """Which of ``wanted`` importing a module loads, in a fresh interpreter."""
    whole = f"sbuslib.{name}" if name != "__init__" else "sbuslib"
    code = f"import {whole}, sys; print(*sorted(set({wanted!r}) & set(sys.modules)))"
    return python("-c", code).split()


@pytest.mark.parametrize("name", modules())
def test_every_module_stands_on_a_floor(name: str) -> None:
    assert name.partition(".")[0] in PACKAGES or name in FLOOR, f"{name} is missing from the table in {__file__}"


@pytest.mark.parametrize("name", modules())
def test_a_module_imports_from_its_own_floor_or_lower_ones(name: str) -> None:
    if name in ENTRANCES:
        return
    higher = [other for other in imports(name, typing=False) if floor(other) > floor(name)]
    assert higher == []


@pytest.mark.parametrize("name", modules())
def test_folders_of_the_top_floors_do_not_import_each_other(name: str) -> None:
    package = name.partition(".")[0]
    if PACKAGES.get(package) != 3:
        return
    others = {other.partition(".")[0] for other in imports(name, typing=True) if other not in SHARED} & {
        other for other, number in PACKAGES.items() if number == 3
    }
    assert others <= {package}


def test_no_cycles() -> None:
    graph = {name: set(imports(name, typing=False)) - {name} for name in modules() if name != "__init__"}
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        assert name not in path, " imports ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, [*path, name])
            done.add(name)

    for name in graph:
        visit(name, [])


@pytest.mark.parametrize("name", [name for name in modules() if FLOOR.get(name) == 0 or name in PURE])
def test_the_pure_floor_loads_neither_gevent_nor_socket(name: str) -> None:
    assert loads(name, "gevent", "socket", "asyncio", "greenlet", "ssl") == []


@pytest.mark.parametrize("name", [name for name in modules() if FLOOR.get(name) == 0 or name in PURE])
def test_the_pure_floor_reads_no_clock_and_does_no_input_or_output(name: str) -> None:
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


@pytest.mark.parametrize("name", [name for name in modules() if FLOOR.get(name) == 1])
def test_the_floor_of_sockets_loads_no_gevent(name: str) -> None:
    assert loads(name, "gevent", "greenlet", "asyncio") == []


@pytest.mark.parametrize(
    "name", [name for name in modules() if name.partition(".")[0] in WITHOUT_GEVENT or name in SHARED]
)
def test_what_never_loads_gevent(name: str) -> None:
    assert loads(name, "gevent", "greenlet") == []


def test_importing_the_package_is_lazy() -> None:
    loaded = python("-c", "import sbuslib, sys; print(*sorted(m for m in sys.modules if m.startswith('sbuslib')))")
    assert loaded.split() == ["sbuslib", "sbuslib.lazy"]
    assert loads("__init__", "gevent", "socket", "msgspec") == []


def test_naming_what_needs_no_gevent_loads_none() -> None:
    code = """
import sys, sbuslib
sbuslib.matches, sbuslib.Message, sbuslib.Limits, sbuslib.Credentials, sbuslib.Topic, sbuslib.errors
print("socket" in sys.modules)
sbuslib.blocking, sbuslib.aio
print("gevent" in sys.modules)
sbuslib.Hub, sbuslib.Client
print("gevent" in sys.modules)
"""
    assert python("-c", code).split() == ["False", "False", "True"]


def test_what_the_package_offers_is_there() -> None:
    import sbuslib

    for name in sbuslib.__all__:
        assert getattr(sbuslib, name) is not None
        assert name in dir(sbuslib)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = sbuslib.nonsense
    assert sbuslib.Hub is sys.modules["sbuslib.hub"].Hub


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
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
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
