"""``sbus report``: pages and tables about what was recorded."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import jobs
from .arguments import add_address
from .console import tell
from .values import count, moment, separator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..spark.reports import Report

__all__ = [
    "add_arguments",
    "add_choice",
    "add_output_arguments",
    "add_separator",
    "check_output",
    "deliver",
    "progress",
    "recorded",
]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Make one HTML file about the records of a lake, which loads nothing else, and with --parquet and --csv the "
        "same as tables. The page needs the extra report beside spark: pip install 'sbuslib[report,spark]'."
    )
    kinds = parser.add_subparsers(required=True, metavar="KIND", title="kinds")
    for add_kind in (_add_traffic, _add_subscriptions, _add_completeness):
        add_kind(kinds)


def _add(kinds: Any, kind: str, prepare: Callable[[Namespace], jobs.Work], help: str, examples: str) -> ArgumentParser:
    """Add one kind of report, with the arguments that all kinds have."""
    command: ArgumentParser = kinds.add_parser(
        kind,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=f"examples:\n{examples}\n\n{jobs.SPARK}",
    )
    command.add_argument("lake", metavar="LAKE", help="directory of the lake")
    add_choice(command)
    add_output_arguments(command, f"{kind}.html")
    jobs.add_spark_arguments(command)
    add_separator(command)
    command.set_defaults(run=lambda arguments: jobs.run(arguments, prepare))
    return command


def add_choice(parser: ArgumentParser) -> None:
    """Add the options that say which records count."""
    parser.add_argument("--hub", metavar="ID", help="only what this hub recorded; else what all hubs did")
    parser.add_argument("--start", type=moment, metavar="TIME", help="leave out earlier records")
    parser.add_argument("--end", type=moment, metavar="TIME", help="leave out records from then on")


def add_separator(parser: ArgumentParser) -> None:
    """Add the separator of the recorded keys."""
    parser.add_argument(
        "--separator", type=separator, default="/", metavar="BYTE", help="separator of the hub's keys (/)"
    )


def add_output_arguments(parser: ArgumentParser, name: str) -> None:
    """Add the options that say where the page and the tables go."""
    parser.add_argument("--output", metavar="FILE", default=name, help=f"the page; -: none ({name})")
    parser.add_argument("--parquet", metavar="DIR", help="the tables as Parquet, too")
    parser.add_argument("--csv", metavar="DIR", help="the tables as CSV, too")


def check_output(arguments: Namespace) -> None:
    """Find out whether the result can be written, before the work is done.

    Raises :exc:`~sbuslib.errors.UsageError`, or :exc:`~sbuslib.errors.StateError` when matplotlib is missing.
    """
    from ..errors import UsageError

    if arguments.output == "-":
        if not arguments.parquet and not arguments.csv:
            raise UsageError("no page and no tables: there would be no output")
        return
    from ..spark.plots import check_plots

    check_plots()
    folder = os.path.dirname(arguments.output) or "."
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"{arguments.output}: cannot be written there")


def progress(what: str) -> None:
    """Say what is being done."""
    tell(f"{what} ...")


def deliver(report: Report, arguments: Namespace) -> None:
    """Write the page and the tables, and say where they are."""
    from ..spark.tables import write_csv, write_parquet

    if arguments.output != "-":
        progress("making the page")
        text = report.page()
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write(text)
        print(arguments.output, flush=True)
    for directory, write in ((arguments.parquet, write_parquet), (arguments.csv, write_csv)):
        if directory:
            progress(f"writing tables to {directory}")
            write(report.tables, directory)
            print(directory, flush=True)


def recorded(arguments: Namespace) -> Callable[[SparkSession], DataFrame]:
    """A function that gives the rows of the lake that are asked for.

    Raises :exc:`~sbuslib.errors.StateError` when there is no lake, or no such row in it; the function does, too.
    """
    from ..errors import StateError
    from ..lake.pieces import plan
    from ..lake.places import absolute
    from ..spark.lake import read

    of = f" of hub {arguments.hub}" if arguments.hub else ""
    then = " in that time" if arguments.start is not None or arguments.end is not None else ""
    nothing = StateError(f"{arguments.lake}: nothing{of} was recorded{then}")
    there = plan([absolute(arguments.lake)])
    if not there.sealed and not there.tails:
        raise nothing

    def rows(spark: SparkSession) -> DataFrame:
        found = read(spark, arguments.lake)
        if arguments.hub:
            found = found.where(found.hub == arguments.hub)
        if arguments.start is not None:
            found = found.where(found.time_ns >= arguments.start)
        if arguments.end is not None:
            found = found.where(found.time_ns < arguments.end)
        if found.isEmpty():
            raise nothing
        return found

    return rows


def _add_traffic(kinds: Any) -> None:
    command = _add(
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


def _traffic(arguments: Namespace) -> jobs.Work:
    from ..spark.reports import traffic

    check_output(arguments)
    rows = recorded(arguments)

    def work(spark: SparkSession) -> None:
        found = rows(spark)
        progress("counting")
        report = traffic(found, seconds=arguments.period, levels=arguments.levels, separator=arguments.separator)
        assert report is not None
        deliver(report, arguments)

    return work


def _add_subscriptions(kinds: Any) -> None:
    command = _add(
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


def _subscriptions(arguments: Namespace) -> jobs.Work:
    from ..errors import UsageError
    from ..spark.reports import subscriptions
    from ..spark.subscriptions import read_patterns

    check_output(arguments)
    patterns = read_patterns(arguments.patterns)
    if not patterns:
        raise UsageError(f"{arguments.patterns}: no patterns")
    rows = recorded(arguments)

    def work(spark: SparkSession) -> None:
        found = rows(spark)
        progress(f"matching {len(patterns):,} patterns")
        deliver(subscriptions(found, patterns, arguments.separator), arguments)

    return work


def _add_completeness(kinds: Any) -> None:
    command: ArgumentParser = kinds.add_parser(
        "completeness",
        help="what journals, hubs and links had and lost, and whether every message is accounted for",
        description="Tell what was published, routed, delivered, recorded, and lost by whom and why, and in one line "
        "whether every message is accounted for. It reads journals, and asks the hub at -a and those below it. It "
        "needs no Spark.",
        epilog="examples:\n"
        "  sbus report completeness /var/lib/sbus/journal\n"
        "  sbus report completeness -a /tmp/bus journal --output - --csv tables",
    )
    command.add_argument("journal", metavar="JOURNAL", nargs="*", help="directory of a journal")
    add_address(command)
    add_output_arguments(command, "completeness.html")
    command.set_defaults(run=lambda arguments: jobs.run(arguments, _completeness, light=True))


def _completeness(arguments: Namespace) -> None:
    from ..errors import UsageError
    from ..spark.completeness import Ledger
    from ..spark.reports import completeness
    from ..survey import survey

    check_output(arguments)
    if not arguments.journal and arguments.address is None:
        raise UsageError("a JOURNAL or the address of a hub is needed")
    ledger = Ledger()
    for journal in arguments.journal:
        progress(f"reading {journal}")
        ledger.add_journal(journal)
    if arguments.address is not None:
        ledger.add_tree(survey(arguments.address))
    deliver(completeness(ledger), arguments)
    print(ledger.verdict())
