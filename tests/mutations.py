"""Mutation tests: change one line at a time, and list the changes that no test notices.

    python tests/mutations.py sbuslib/core sbuslib/clients/fds/descriptor_store.py:37 --limit 60 --jobs 2

Each argument is a folder, a module, or one line of a module. The tests first run in a copy of the checkout whose
modules note which lines each test executes, also in processes that it starts or kills. Then one change is made at a
time in another copy: another comparison, sign or number, a condition turned round or left out, a statement or a result
left out. The tests that execute the line run until one fails, twice: first those of the module's own file, then the
fastest. What hangs twice, the second time for long, is noticed too.

Only what is in functions is changed: a number of a module only tunes the machine. ``mutations.txt`` lists changes after
which the code does the same, and why; they are not tried.

cosmic-ray runs every test for each change; mutmut chooses tests, but forks them where an event loop runs already, and
sees nothing of other processes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

START = 20.0
"""Seconds in which a run of tests has started."""
FIRST = 5.0
"""Seconds of tests in the first run for a change. Each further run has four times as many."""
PER_TEST = 0.1
"""Seconds added for each test, for the import of its file."""

OTHER: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
"""The operator that stands in the place of each."""
OPPOSITE = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}
"""The same where a clock is read, which hardly ever says just that time."""
CLOCK = re.compile(r"\bmonotonic\(\)|\btime\(\)|\bnow\b")
OTHER_FUNCTION = {"min": "max", "max": "min", "any": "all", "all": "any"}

_WRITING = threading.Lock()

PLUGIN = """
import ctypes, json, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
memory = os.open({folder!r} + "/mutation_hits", os.O_RDWR)
hits = (ctypes.c_ubyte * {size}).from_address(libc.mmap(None, {size}, 3, 1, memory, 0))
os.close(memory)
failed, begin = False, 0.0

def pytest_runtest_logstart(nodeid, location):
    global failed, begin
    failed, begin = False, time.monotonic()
    ctypes.memset(hits, 0, {size})

def pytest_runtest_logreport(report):
    global failed
    failed |= report.failed

def pytest_runtest_logfinish(nodeid, location):
    lines = [number for number, hit in enumerate(hits) if hit]
    with open({folder!r} + "/mutation_results", "a") as file:
        print(json.dumps([nodeid, time.monotonic() - begin, failed, lines]), file=file)
"""
"""A plugin of pytest that notes each test. The counting modules import it, in every process: a byte for each line is
in memory that they share, which outlives those that are killed. No descriptor stays open: tests count those."""


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    path: Path
    line: int
    """The line on which the innermost statement around the change begins."""
    key: str
    """As in ``mutations.txt``, without the reason."""
    source: Callable[[], str]


@dataclass(frozen=True)
class Test:
    """A test that passes without a change, and the lines that it executes, of all modules one after another."""

    name: str
    seconds: float
    lines: frozenset[int]


def changes(node: ast.AST, function: str) -> Iterator[ast.AST]:
    """What may stand in the place of a node."""

    def changed(**fields: Any) -> ast.AST:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        return other

    match node:
        case ast.Compare(ops=ops):
            others = OTHER | OPPOSITE if CLOCK.search(ast.unparse(node)) else OTHER
            for place, op in enumerate(ops):
                yield changed(ops=[*ops[:place], others[type(op)](), *ops[place + 1 :]])
        case ast.BoolOp(values=values):
            for value in values:
                rest = [one for one in values if one is not value]
                yield changed(values=rest) if len(rest) > 1 else rest[0]
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(left=ast.Constant(value=str() | bytes())) | ast.BinOp(right=ast.Constant(value=str() | bytes())):
            pass  # texts have no other operator
        case ast.BinOp(op=op) if type(op) in OTHER:
            yield changed(op=OTHER[type(op)]())
        case ast.AugAssign(op=op):
            yield changed(op=OTHER[type(op)]()) if type(op) in OTHER else ast.Pass()
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            # Others are changed by themselves.
            if not isinstance(test, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant)):
                yield changed(test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in OTHER_FUNCTION:
            yield changed(func=ast.Name(OTHER_FUNCTION[name]))
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if function != "__init__":
            yield ast.Pass()
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete() | ast.Raise() | ast.Break() | ast.Continue():
            yield ast.Pass()


def text(node: ast.AST) -> str:
    """A node in one line; of what has a body, its condition."""
    if isinstance(node, (ast.If, ast.While)):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
    return " ".join(ast.unparse(node).split())


def written(tree: ast.Module, node: ast.AST, name: str, field: object) -> str:
    """The source of a module with another field of one node."""
    with _WRITING:
        before = getattr(node, name)
        setattr(node, name, field)
        source = ast.unparse(tree)
        setattr(node, name, before)
    return source


def mutants(root: Path, path: Path) -> Iterator[Mutant]:
    """Each change of a module. Annotations, assertions, decorators, and defaults of parameters are left alone."""
    tree = ast.parse(path.read_bytes())

    def walk(node: Any, around: tuple[str, ...], function: str, line: int) -> Iterator[Mutant]:
        if isinstance(node, ast.stmt):
            line = node.lineno
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            around = (*around, node.name)
            function = function if isinstance(node, ast.ClassDef) else node.name
        for name, field in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            several = isinstance(field, list)
            for place, child in enumerate(field if several else [field]):
                if not isinstance(child, ast.AST) or isinstance(child, (ast.Assert, ast.arguments)):
                    continue
                begin = child.lineno if isinstance(child, ast.stmt) else line
                for new in changes(child, function) if function else ():
                    key = f"{path.relative_to(root)} {'.'.join(around)} | {text(child)} | {text(new)}"
                    other = [*field[:place], new, *field[place + 1 :]] if several else new
                    yield Mutant(path, begin, key, partial(written, tree, node, name, other))
                yield from walk(child, around, function, begin)

    yield from walk(tree, (), "", 0)


def counting(path: Path, first: int) -> str:
    """The source of a module that notes its lines. Its line 0 has the number ``first``."""
    tree = ast.parse(path.read_bytes())
    for node in list(ast.walk(tree)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            new: list[ast.stmt] = []
            for place, statement in enumerate(block):
                # A docstring, and what comes from the future, stay in front.
                ahead = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and not place
                if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                    new = [*new, statement, *ast.parse("from mutation_plugin import hits as __hits__").body]
                    continue
                if not ahead and "__hits__" not in ast.unparse(statement).partition("\n")[0]:
                    new += ast.parse(f"__hits__[{first + statement.lineno}] = 1").body
                new.append(statement)
            setattr(node, name, new)
    return ast.unparse(tree)


class Copy:
    """A copy of the checkout in which tests run, in a process of their own."""

    def __init__(self, root: Path, place: Path, size: int = 1) -> None:
        shutil.copytree(root, place, symlinks=True, ignore=shutil.ignore_patterns(".?*", "__pycache__", "build"))
        place.chmod(0o755)
        self._root = root
        self._place = place
        self._age = 0
        (place / "mutation_plugin.py").write_text(PLUGIN.format(folder=str(place), size=size))
        memory = place / "mutation_hits"
        memory.write_bytes(bytes(size))
        memory.chmod(0o666)  # some tests start processes of other users

    def write(self, path: Path, source: str) -> None:
        """Put another source in the place of a module's."""
        target = self._place / path.relative_to(self._root)
        target.write_text(source, "utf-8")
        # Python compiles what has another time, in seconds.
        self._age += 1
        os.utime(target, (self._age, self._age))

    def run(self, tests: list[str], seconds: float | None = None, *options: str) -> tuple[int | None, list[Any]]:
        """Run tests. Returns pytest's status, *None* after a time-out, and what the plugin wrote about each test."""
        results = self._place / "mutation_results"
        results.write_text("")
        with open(self._place / "mutation_output", "w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-q", "--assert=plain", "-p", "no:cacheprovider",
                 "-p", "mutation_plugin", "-p", "no:xdist", "-p", "no:anyio", *options, *tests],  # which load slowly
                cwd=self._place, env=os.environ | {"PYTHONPATH": str(self._place)}, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds and seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
        status = process.poll()
        self._end_all()
        process.wait()
        return status, [json.loads(line) for line in results.read_text().splitlines()]

    def output(self) -> str:
        return (self._place / "mutation_output").read_text()

    def _end_all(self) -> None:
        """End what is left of a run, also in other groups of processes: whatever has our copy in its environment."""
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if re.search(rb"(^|\0)PYTHONPATH=%b[:\0]" % re.escape(os.fsencode(self._place)), path.read_bytes()):
                    os.kill(int(path.parent.name), signal.SIGKILL)


def lines_of_tests(
    root: Path, folder: Path, first: dict[Path, int], size: int, paths: list[str], jobs: int
) -> list[Test]:
    """Find out which lines each test executes."""
    files = sorted(
        str(file.relative_to(root))
        for place in (root / path for path in paths)
        for file in ([place] if place.is_file() else place.rglob("test_*.py"))
    )

    def run(number: int) -> list[Test]:
        copied = Copy(root, folder / f"counting-{number}", size)
        for path in first:
            copied.write(path, counting(path, first[path]))
        status, results = copied.run(files[number::jobs])
        if status not in (0, 1):
            sys.exit(copied.output())
        for name, _, failed, _ in results:
            if failed:
                print(f"fails without a change: {name}", flush=True)
        return [Test(name, seconds, frozenset(lines)) for name, seconds, failed, lines in results if not failed]

    with ThreadPoolExecutor(jobs) as pool:
        return [test for tests in pool.map(run, range(min(jobs, len(files)))) for test in tests]


def noticed_by(copied: Copy, tests: list[Test]) -> str:
    """Run tests where a change was written. Returns what noticed it; an empty text if nothing did."""
    waiting = tests[::-1]
    budget = FIRST
    while waiting:
        chunk: list[str] = []
        spent = 0.0
        while waiting and spent < budget:
            spent += waiting[-1].seconds + PER_TEST
            chunk.append(waiting.pop().name)
        budget *= 4
        while chunk:
            status, results = copied.run(chunk, START + 4 * spent, "-x")
            if status is None:  # perhaps the machine was busy
                status, results = copied.run(chunk, 4 * (START + 4 * spent), "-x")
            if status is None:
                return "a time-out"
            if status == 0:
                break
            failing = [name for name, _, failed, _ in results if failed]
            if status != 1 or not failing:
                return f"status {status} of pytest"
            # One that fails only once may fail without the change, too.
            if copied.run(failing, START + 4 * spent)[0] != 0:
                return str(failing[0])
            chunk = chunk[chunk.index(failing[0]) + 1 :]
    return ""


def choose(root: Path, target: str, limit: int, seed: int) -> list[Mutant]:
    """The changes of a folder, a module, or a line; of each line at most one where there is a limit."""
    name, _, line = target.partition(":")
    place = root / name
    found = [
        mutant
        for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
        for mutant in mutants(root, path)
        if not line or mutant.line == int(line)
    ]
    if not limit:
        return found
    random.Random(f"{seed} {target}").shuffle(found)
    return list({(mutant.path, mutant.line): mutant for mutant in found}.values())[:limit]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", metavar="TARGET")
    parser.add_argument("--tests", nargs="+", default=["tests"], metavar="PATH", help="files and folders; all of them")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="so many lines of each target, by chance")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another choice")
    parser.add_argument("--seconds", type=float, default=60, metavar="S", help="so much of tests for a change, at most")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many at a time")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="another checkout")
    options = parser.parse_args(arguments)

    root = options.root.resolve()
    known = root / "tests" / "mutations.txt"
    explained = {line.rpartition(" | ")[0] for line in known.read_text().splitlines()} if known.exists() else set()
    chosen = {target: choose(root, target, options.limit, options.seed) for target in options.targets}

    # Each module's lines have numbers of their own.
    first: dict[Path, int] = {}
    size = 0
    for path in sorted({mutant.path for found in chosen.values() for mutant in found}):
        first[path], size = size, size + path.read_bytes().count(b"\n") + 2

    good = True
    with tempfile.TemporaryDirectory(prefix="mutations-") as name, ThreadPoolExecutor(options.jobs) as pool:
        folder = Path(name)
        folder.chmod(0o755)
        tests = lines_of_tests(root, folder, first, size, options.tests, options.jobs)
        print(f"{len(tests)} tests pass without a change, in {sum(test.seconds for test in tests):.0f} s", flush=True)
        idle: SimpleQueue[Copy] = SimpleQueue()
        for number in range(options.jobs):
            idle.put(Copy(root, folder / str(number)))

        def is_noticed(mutant: Mutant) -> bool:
            own = f"test_{mutant.path.stem}.py::"
            covering = [test for test in tests if first[mutant.path] + mutant.line in test.lines]
            covering.sort(key=lambda test: (own not in test.name, test.seconds))
            left = options.seconds
            affordable = [test for test in covering if (left := left - test.seconds) > 0]
            copied = idle.get()
            copied.write(mutant.path, mutant.source())
            by = noticed_by(copied, affordable)
            copied.write(mutant.path, mutant.path.read_text("utf-8"))
            idle.put(copied)
            said = f"noticed by {by}" if by else f"NOT NOTICED by {len(affordable)} of {len(covering)} tests"
            print(
                f"{mutant.path.relative_to(root)}:{mutant.line} {mutant.key.partition(' ')[2]}\n    {said}", flush=True
            )
            return bool(by)

        for target, found in chosen.items():
            tried = [mutant for mutant in found if mutant.key not in explained]
            count = sum(pool.map(is_noticed, tried))
            good &= count == len(tried)
            print(f"{target}: {count} of {len(tried)} noticed, {len(found) - len(tried)} explained", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
