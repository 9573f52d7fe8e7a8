"""The whole report: everything measured in one run, a page, the raw figures, and the tables of the documentation."""

from __future__ import annotations

import signal
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from sbuslib.bench.results import Results, decode, encode
from sbuslib.bench.runner import Bench
from sbuslib.bench.scenarios import FULL, QUICK, SCENARIOS
from sbuslib.bench.tables import terminal
from sbuslib.errors import SbusError, StateError

from . import page
from .runner import OtherBrokers
from .tables import markdown, replace_block, title_of

__all__ = ["load", "main"]


def load(path: Path) -> Results:
    """Read raw figures. Raises :exc:`~sbuslib.errors.StateError` for what is none, and :exc:`OSError`."""
    try:
        return decode(path.read_bytes())
    except ValueError as error:
        raise StateError(f"{path}: {error}") from None


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="report.py", description="Measure everything in one run, and write a page, the raw figures and a table."
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a look, and nothing to quote")
    parser.add_argument("--rounds", type=int, metavar="N", help="times that each case is run")
    parser.add_argument("--seconds", type=float, metavar="S", help="how long each run takes, about")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no round that would end later than this")
    parser.add_argument("--sbusd", metavar="ADDRESS", help="measure the daemon that listens there, too")
    parser.add_argument("--without-brokers", action="store_true", help="leave other brokers out")
    parser.add_argument("--output", metavar="FOLDER", default="build/report", help="where to write (%(default)s)")
    parser.add_argument("--readme", action="store_true", help="rewrite the tables in README.md and docs/performance.md")
    parser.add_argument("--from", dest="source", metavar="FILE", help="measure nothing: show what a file holds")
    return parser


def main(root: Path, version: str, arguments: Sequence[str] | None = None) -> int:
    """Run the report for the checkout at ``root``; the exit status."""
    options = _parser().parse_args(arguments)
    plan = QUICK if options.quick else FULL
    changes = {"rounds": options.rounds, "seconds": options.seconds, "minutes": options.minutes}
    plan = msgspec.structs.replace(plan, **{name: value for name, value in changes.items() if value is not None})
    folder = Path(options.output)
    # Whatever ends this program, the others that it started are to end, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if options.source is not None:
            results = load(Path(options.source))
        else:
            with ExitStack() as stack:
                scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sbus-bench-")))
                bench = Bench(
                    stack,
                    scratch,
                    plan,
                    lambda line: print(line, file=sys.stderr, flush=True),
                    version=version,
                    address=options.sbusd,
                    beside=True,
                    others=None if options.without_brokers else OtherBrokers(),
                )
                results = bench.measure(SCENARIOS)
            (folder / "figures.json").write_bytes(encode(results))
        print(terminal(results, title_of), end="")
        if options.readme:
            for path, short in ((root / "README.md", True), (root / "docs" / "performance.md", False)):
                path.write_text(replace_block(path.read_text("utf-8"), markdown(results, short=short)), "utf-8")
        (folder / "index.html").write_text(page.render(results), "utf-8")
    except KeyboardInterrupt:
        return 130
    except (SbusError, OSError, ValueError) as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 1
    print(f"\n{folder / 'index.html'}")
    return 0
