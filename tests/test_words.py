"""How the code reads: paragraphs, words for attributes, one word for one thing, names. The lists may only shrink."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from support import ROOT, TESTS

SOURCES = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "sbuslib").rglob("*.py"))}
LINES = {path: path.read_text().splitlines() for path in SOURCES}

LONG = 15
"""Lines of a function from which on it has paragraphs."""

SHARED_CLASSES = {"Client"}
"""Names of several public classes. ``Client`` stays: there is one for each way to wait."""

SHARED_MODULES = {"limits", "connection"}
"""Names of several modules outside ``cli``, where a module is named for its command."""

VAGUE = {"told", "left", "some", "found", "one"}

VAGUE_PARTS = {"told": 22, "left": 140, "some": 44, "found": 306, "one": 309}
"""How often each is a name, or a part of one, anywhere, in locals and arguments too."""

ACROSS_MODULES = {
    "base", "brokers", "comparison", "events", "failing_jobs", "forks", "fuzz", "house", "howtos", "imports", "kills",
    "lakes", "large", "monitors", "mutations", "namespaces", "night", "outages", "present_in_processes", "presumed",
    "promises", "queue_kills", "random_presences", "random_trees", "receive_buffer_safety", "refusals",
    "relayed_batches", "reload", "replay", "scheduler_world", "spark", "tenants", "tree_in_unrest", "verify", "words",
}  # fmt: skip
"""Tests of what several modules do together, beside whole folders of these. All others have the name of a module."""

WITHOUT_A_FILE = 90
"""Modules that have no file of tests of their own: those of others exercise them."""


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield path, node


def test_long_functions_have_paragraphs() -> None:
    """A blank line, or a comment, stands between the steps of each."""
    walls = []
    for path, node in functions():
        first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0]
        inside = LINES[path][first.lineno - 1 : node.end_lineno]
        if len(inside) >= LONG and all(line.strip() and "# " not in line for line in inside):
            walls.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert walls == []


def test_each_attribute_has_a_word_about_what_it_holds() -> None:
    """A comment above or beside it, or a string below; but for parameters that are kept as they are."""
    wordless = []
    for path, node in functions():
        if node.name != "__init__":
            continue
        parameters = {argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        for part, below in zip(node.body, [*node.body[1:], None], strict=True):
            targets = part.targets if isinstance(part, ast.Assign) else [getattr(part, "target", None)]
            own = any(isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self" for one in targets)
            value = getattr(part, "value", None)
            if not own or (isinstance(value, ast.Name) and value.id in parameters):
                continue
            near = LINES[path][part.lineno - 2 : part.end_lineno]
            described = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if not described and not any("  # " in line or line.strip().startswith("#") for line in near):
                wordless.append(f"{path.relative_to(ROOT)}:{part.lineno}")
    assert wordless == []


def test_one_word_stands_for_one_thing() -> None:
    classes, modules = defaultdict(set), defaultdict(set)
    for path, tree in SOURCES.items():
        names = {node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")}
        for name in names:
            classes[name].add(path)
        if path.parent.name != "cli" and not path.stem.startswith("__"):
            modules[path.stem].add(path)
    assert {name for name, paths in classes.items() if len(paths) > 1} == SHARED_CLASSES
    assert {name for name, paths in modules.items() if len(paths) > 1} == SHARED_MODULES


def test_attributes_are_called_what_they_are() -> None:
    vague = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.attr}"
        for path, tree in SOURCES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.strip("_") in VAGUE
    ]
    assert vague == []


def test_fewer_names_are_vague_than_before() -> None:
    counts = Counter[str]()
    for tree in SOURCES.values():
        for node in ast.walk(tree):
            name = getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "attr", None) or ""
            counts.update(set(name.split("_")) & VAGUE)
    assert all(counts[word] <= most for word, most in VAGUE_PARTS.items()), counts


def test_docstrings_name_a_thing_or_begin_with_a_verb() -> None:
    """None begins with "What" or "Who", and nothing is told."""
    wrong = [
        f"{path.relative_to(ROOT)} {getattr(node, 'name', '')}: {sentence}"
        for path, tree in SOURCES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for sentence in re.split(r"(?<=[.!?])\s+", ast.get_docstring(node) or "")
        if sentence.startswith(("What ", "Who ")) or re.search(r"\b(is|are|was|were) told\b", sentence)
    ]
    assert wrong == []


def test_files_of_tests_have_the_names_of_modules() -> None:
    modules = {path.relative_to(ROOT / "sbuslib").with_suffix("") for path in SOURCES if path.stem[:2] != "__"}
    folders = {module.parent for module in modules}
    tests = {path.relative_to(TESTS).with_name(path.stem[5:]) for path in TESTS.rglob("test_*.py")}
    assert {test.name for test in tests - modules if test.parent in folders} == ACROSS_MODULES
    assert len(modules - tests) <= WITHOUT_A_FILE
