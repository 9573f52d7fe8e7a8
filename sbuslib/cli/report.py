"""``sbus report``: pages and tables about what was recorded."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from . import jobs
from .console import tell
from .values import count, moment, separator

if TYPE_CHECKING:
    from ..reports.html import Report
    from ..reports.sql import Recorded

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Make one HTML file about what was recorded, which loads nothing else, and with --parquet and --csv the same "
        "as tables. This needs pip install 'sbuslib[report]'."
    )
    kinds = parser.add_subparsers(required=True, metavar="KIND", title="kinds")
    for add_kind in (_add_traffic, _add_subscriptions):
        add_kind(kinds)


def _add(
    kinds: Any, kind: str, work: Callable[[Namespace], object], help: str, examples: str, end: str
) -> ArgumentParser:
    """Add one kind of report, with the arguments that all kinds have."""
    command: ArgumentParser = kinds.add_parser(
        kind, help=help, description=help[0].upper() + help[1:] + ".", epilog=f"examples:\n{examples}{end}"
    )
    command.set_defaults(run=lambda arguments: jobs.run(arguments, work))
    return command


def _add_counting(
    kinds: Any, kind: str, work: Callable[[Namespace], object], help: str, examples: str
) -> ArgumentParser:
    """Add a report that counts the records of a lake."""
    command = _add(kinds, kind, work, help, examples, f"\n\nDuckDB counts, in this process. {jobs.SPARK}")
    command.add_argument("lake", metavar="LAKE", help="directory of the lake, or of a journal; or its URI, for Spark")
    _add_choice(command)
    _add_output_arguments(command, f"{kind}.html")
    command.add_argument(
        "--engine",
        choices=("duckdb", "spark"),
        help="what counts; else DuckDB where it is installed, and Spark for a URI and with --master",
    )
    jobs.add_spark_arguments(command)
    command.add_argument(
        "--separator", type=separator, default="/", metavar="BYTE", help="separator of the hub's keys (/)"
    )
    return command


def _add_choice(parser: ArgumentParser) -> None:
    """Add the options that say which records count."""
    parser.add_argument("--hub", metavar="ID", help="only what this hub recorded; else what all hubs did")
    parser.add_argument("--start", type=moment, metavar="TIME", help="leave out earlier records")
    parser.add_argument("--end", type=moment, metavar="TIME", help="leave out records from then on")


def _add_output_arguments(parser: ArgumentParser, name: str) -> None:
    """Add the options that say where the page and the tables go."""
    parser.add_argument("--output", metavar="FILE", default=name, help=f"the page; -: none ({name})")
    parser.add_argument("--parquet", metavar="DIR", help="the tables as Parquet, too")
    parser.add_argument("--csv", metavar="DIR", help="the tables as CSV, too")


def _check_output(arguments: Namespace) -> None:
    """Find out whether the result can be written, before the work is done.

    Raises :exc:`~sbuslib.errors.UsageError`, or :exc:`~sbuslib.errors.StateError` when a library is missing.
    """
    from ..errors import UsageError

    if arguments.output == "-":
        if not arguments.parquet and not arguments.csv:
            raise UsageError("no page and no tables: there would be no output")
        return
    from ..reports.html import check_page

    check_page()
    folder = os.path.dirname(arguments.output) or "."
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"{arguments.output}: cannot be written there")


def _progress(what: str) -> None:
    """Say what is being done."""
    tell(f"{what} ...")


def _deliver(report: Report, arguments: Namespace) -> None:
    """Write the page and the tables, and say where they are."""
    from ..reports.exports import write_csv, write_parquet

    if arguments.output != "-":
        _progress("making the page")
        text = report.page()
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write(text)
        print(arguments.output, flush=True)
    for directory, write in ((arguments.parquet, write_parquet), (arguments.csv, write_csv)):
        if directory:
            _progress(f"writing tables to {directory}")
            write(report.tables, directory)
            print(directory, flush=True)


@contextmanager
def _recorded(arguments: Namespace) -> Iterator[Recorded]:
    """The records of the lake that are asked for, in the engine that is asked for.

    Raises :exc:`~sbuslib.errors.StateError` when there is no lake, or no such record in it.
    """
    from ..errors import StateError, UsageError
    from ..lake.pieces import plan
    from ..lake.places import absolute
    from ..reports.sql import Choice, default_engine, in_duckdb, in_spark
    from ..reports.traffic import span

    of = f" of hub {arguments.hub}" if arguments.hub else ""
    then = " in that time" if arguments.start is not None or arguments.end is not None else ""
    nothing = StateError(f"{arguments.lake}: nothing{of} was recorded{then}")
    if not any(plan([absolute(arguments.lake)]).values()):
        raise nothing

    choice = Choice(arguments.hub, arguments.start, arguments.end)
    on_spark = arguments.master is not None or bool(arguments.conf)
    engine = arguments.engine or ("spark" if on_spark else default_engine(arguments.lake))
    if engine == "duckdb" and on_spark:
        raise UsageError("--master and --conf are for Spark: leave out --engine duckdb")
    with ExitStack() as stack:
        if engine == "duckdb":
            rows: Recorded = stack.enter_context(in_duckdb(arguments.lake, choice))
        else:
            rows = in_spark(stack.enter_context(jobs.spark(arguments)), arguments.lake, choice)
        if span(rows) is None:
            raise nothing
        yield rows


def _add_traffic(kinds: Any) -> None:
    command = _add_counting(
        kinds,
        "traffic",
        _traffic,
        "volume over time, by key, by sender and user, by size, and what was lost",
        "  sbus report traffic lake                        makes traffic.html\n"
        "  sbus report traffic lake --csv tables --output -   tables, and no page",
    )
    command.add_argument("--levels", type=count, default=3, metavar="N", help="segments of the keys to look at (3)")
    command.add_argument(
        "--period", type=count, metavar="SECONDS", help="seconds between two points of a curve; else what fits"
    )


def _traffic(arguments: Namespace) -> None:
    from ..reports.traffic import traffic

    _check_output(arguments)
    with _recorded(arguments) as rows:
        _progress("counting")
        report = traffic(rows, seconds=arguments.period, levels=arguments.levels, separator=arguments.separator)
        assert report is not None
        _deliver(report, arguments)


def _add_subscriptions(kinds: Any) -> None:
    command = _add_counting(
        kinds,
        "subscriptions",
        _subscriptions,
        "what each pattern would have received, which match nothing, which others cover",
        "  sbus report subscriptions lake patterns.txt     of the patterns in a file, one a line",
    )
    command.add_argument(
        "patterns",
        metavar="PATTERNS",
        help='file of patterns, one a line; "" is the empty pattern, and # begins a comment',
    )


def _subscriptions(arguments: Namespace) -> None:
    from ..errors import UsageError
    from ..reports.subscriptions import read_patterns, subscriptions

    _check_output(arguments)
    patterns = read_patterns(arguments.patterns)
    if not patterns:
        raise UsageError(f"{arguments.patterns}: no patterns")
    with _recorded(arguments) as rows:
        _progress(f"matching {len(patterns):,} patterns")
        _deliver(subscriptions(rows, patterns, arguments.separator), arguments)
