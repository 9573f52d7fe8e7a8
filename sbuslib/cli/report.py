"""``sbus report`` and ``sbus watch``: pages, tables and alerts about live or recorded messages."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ..wire.text import printable
from . import jobs
from .arguments import Parser, add, add_address
from .console import complain, explain, show_status
from .tables import show_json

if TYPE_CHECKING:
    from ..reports.html import Report
    from ..reports.sql import Recorded
    from ..reports.watch import Alert, RateRule, Window


def _add_counting(parser: Parser, kind: str, examples: str) -> None:
    """Add the arguments of the reports that count the records of a lake."""
    parser.description = (
        f"{parser.description} Make one HTML file about what was recorded, which loads nothing else, and with "
        "--parquet and --csv the same as tables. This needs pip install 'sbuslib[report]'."
    )
    parser.epilog = f"examples:\n{examples}\n\nDuckDB counts, in this process. {jobs.SPARK}"

    add(parser, "LAKE", "directory of the lake, or of a journal; or its URI, for Spark")
    add(parser, "--hub ID", "only records of this hub; else of all hubs")
    add(parser, "--start WHEN", "leave out earlier records")
    add(parser, "--end WHEN", "leave out records from then on")
    add(parser, "--output FILE", f"the page; -: none ({kind}.html, with --json none)")
    parser.set_defaults(page=f"{kind}.html", prints=kind == "night")
    add(parser, "--parquet DIR", "the tables as Parquet, too")
    add(parser, "--csv DIR", "the tables as CSV, too")
    add(parser, "--json", "print the rows of the tables, a JSON object a line")
    what = "what counts; else DuckDB where it is installed, and Spark for a URI and with --master"
    add(parser, "--engine", what, choices=("duckdb", "spark"))
    jobs.add_spark_arguments(parser)
    add(parser, "--separator BYTE", "separator of the keys; else that of the hub that was recorded")


def separator_of(lake: str, hub: str | None, default: bytes | None = None) -> bytes:
    """Return the separator of the recorded keys; ``default``, or the usual one, where no journal has it.

    Raises :exc:`~sbuslib.errors.UsageError` where it is not the same in all journals.
    """
    from ..errors import UsageError
    from ..journal.read.journal_files import absolute
    from ..journal.read.readers import separators
    from ..matcher import SEPARATOR

    found = sorted(separators([absolute(lake)], hub)) or [default or SEPARATOR]
    if len(found) > 1:
        several = " and ".join(map(printable, found))
        raise UsageError(f"{lake}: its hubs have the separators {several}: choose one of them with --hub")
    return found[0]


def _check_output(arguments: Namespace) -> None:
    """Choose the page, and check that the result can be written, before the work is done.

    Raises :exc:`~sbuslib.errors.UsageError`, or :exc:`~sbuslib.errors.StateError` when a library is missing.
    """
    from ..errors import UsageError

    if arguments.output is None:
        arguments.output = "-" if arguments.json else arguments.page
    if arguments.output == "-":
        if not (arguments.parquet or arguments.csv or arguments.json or arguments.prints):
            raise UsageError("no page and no tables: there would be no output")
        return
    from ..reports.html import check_page

    check_page()
    folder = os.path.dirname(arguments.output) or "."
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"{arguments.output}: cannot be written there")


def _deliver(report: Report, arguments: Namespace) -> None:
    """Write the page and the tables, and print their paths; or, as JSON, the rows of the tables."""
    from ..kernel.regular_files import open_emptied
    from ..reports.exports import as_json, write_csv, write_parquet

    if arguments.json:
        for name, table in report.tables.items():
            for row in as_json(table):
                show_json({"table": name, **row})
    say = show_status if arguments.json else partial(print, flush=True)  # nothing else beside JSON
    if arguments.output != "-":
        show_status("making the page ...")
        with open_emptied(arguments.output) as file:
            file.write(report.page().encode())
        say(arguments.output)
    for directory, write in ((arguments.parquet, write_parquet), (arguments.csv, write_csv)):
        if directory:
            show_status(f"writing tables to {directory} ...")
            write(report.tables, directory)
            say(directory)


@contextmanager
def _recorded(arguments: Namespace) -> Iterator[Recorded]:
    """Yield the records of the lake that the arguments select, in the chosen engine.

    Raises :exc:`~sbuslib.errors.StateError` when there is no lake, or it has none of them.
    """
    from ..errors import StateError, UsageError
    from ..journal.read.journal_files import absolute
    from ..journal.read.read_plan import plan
    from ..reports.sql import Choice, default_engine, in_duckdb, in_spark, require
    from ..reports.traffic import span
    from ..spark.sessions import require as require_spark

    # 1. The engine; what it needs is there.
    on_spark = arguments.master is not None or bool(arguments.conf)
    engine = arguments.engine or ("spark" if on_spark else default_engine(arguments.lake))
    if engine == "duckdb" and on_spark:
        raise UsageError("--master and --conf are for Spark: leave out --engine duckdb")
    require_spark() if engine == "spark" else require()

    # 2. The records.
    of = f" of hub {arguments.hub}" if arguments.hub else ""
    then = " in that time" if arguments.start is not None or arguments.end is not None else ""
    nothing = StateError(f"{arguments.lake}: nothing{of} was recorded{then}")
    if not any(plan([absolute(arguments.lake)]).values()):
        raise nothing

    choice = Choice(arguments.hub, arguments.start, arguments.end)
    with ExitStack() as stack:
        if engine == "duckdb":
            rows: Recorded = stack.enter_context(in_duckdb(arguments.lake, choice))
        else:
            rows = in_spark(stack.enter_context(jobs.spark(arguments)), arguments.lake, choice)
        if span(rows) is None:
            raise nothing
        yield rows


def add_report_traffic(parser: Parser) -> None:
    """Complete the parser of the command."""
    _add_counting(
        parser,
        "traffic",
        "  sbus report traffic lake                        makes traffic.html\n"
        "  sbus report traffic lake --csv tables --output -   tables, and no page",
    )
    add(parser, "--levels N", "segments of the keys to look at (3)", default=3)
    add(parser, "-i --interval TIME", "whole seconds between points of a curve; else what fits")


def run_report_traffic(arguments: Namespace) -> None:
    from ..reports.traffic import traffic

    _check_output(arguments)
    with _recorded(arguments) as rows:
        separator = arguments.separator or separator_of(arguments.lake, arguments.hub)
        show_status("counting ...")
        interval = None if arguments.interval is None else max(1, round(arguments.interval))
        report = traffic(rows, seconds=interval, levels=arguments.levels, separator=separator)
        assert report is not None
        _deliver(report, arguments)


def add_report_subscriptions(parser: Parser) -> None:
    """Complete the parser of the command."""
    _add_counting(
        parser,
        "subscriptions",
        "  sbus report subscriptions lake patterns.txt     of the patterns in a file, one a line",
    )
    add(parser, "PATTERNS", 'file of patterns, one a line; "" is the empty pattern, and # begins a comment')


def run_report_subscriptions(arguments: Namespace) -> None:
    from ..errors import UsageError
    from ..reports.subscriptions import read_patterns, subscriptions

    _check_output(arguments)
    patterns = read_patterns(arguments.patterns)
    if not patterns:
        raise UsageError(f"{arguments.patterns}: no patterns")
    with _recorded(arguments) as rows:
        separator = arguments.separator or separator_of(arguments.lake, arguments.hub)
        show_status(f"matching {len(patterns):,} patterns ...")
        _deliver(subscriptions(rows, patterns, separator), arguments)


def add_report_night(parser: Parser) -> None:
    """Complete the parser of the command."""
    _add_counting(
        parser,
        "night",
        "  sbus report night journal --start 22:00          since ten in the evening\n"
        "  sbus report night journal --start 22:00 --output -   no page",
    )


def run_report_night(arguments: Namespace) -> None:
    from ..reports.night import night

    _check_output(arguments)
    with _recorded(arguments) as rows:
        report = night(rows)
        assert report is not None
        day = None
        for time, kind, text in () if arguments.json else report.tables["night"].rows:
            local = time.astimezone()
            if local.date() != day:
                day = local.date()
                print(f"{day}:")
            print(f"{local:%H:%M:%S}  {kind:<10}  {text}")
        _deliver(report, arguments)


def add_watch(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show the rates of a hub's messages: a line for each window of time. And publish alerts: under "
        "alerts/above/PATTERN and alerts/below/PATTERN, for each window with more or fewer messages a second than "
        "RATE, under alerts/lost for lost messages, and under alerts/cleared/ when that is over. The payload is a JSON "
        "object."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus watch --above room/ 1000 --below bus/tick 0.5       and alerts: too many of these, too few of those\n"
        "  sbus sub alerts/                                         who listens to alerts\n\n"
        "Alerts are published at the hub that -a names, or where sbus pub would. Losses are always "
        "reported. For rates by key, see sbus hz."
    )

    add_address(parser, help="where the hub listens that is watched, and that gets the alerts")
    add(parser, "--dry", "show alerts, and publish none")

    pair: dict[str, Any] = {"nargs": 2, "action": "append", "default": [], "metavar": ("PATTERN", "RATE")}
    for kind, than in (("above", "more"), ("below", "fewer")):
        what = f"an alert when {than} messages a second than RATE match PATTERN"
        parser.add_argument(f"--{kind}", help=what, **pair)
    add(parser, "--window TIME", "how long a window is (10)", default=10.0)


def run_watch(arguments: Namespace) -> None:
    from ..reports.watch import OnBus, check_windows, follow

    check_windows(arguments.window)
    rules = _rules(arguments)
    bus = OnBus(arguments.address)
    follow(
        bus.new,
        rules,
        seconds=arguments.window,
        separator=bus.client.hub.separator,
        stop=jobs.stop_event(),
        on_window=lambda window: _show(window, arguments),
        on_alert=lambda alert: _publish(alert, arguments),
    )


def _rules(arguments: Namespace) -> list[RateRule]:
    from ..errors import UsageError
    from ..reports.watch import RateRule

    found = []
    for kind in ("above", "below"):
        for pattern, rate in getattr(arguments, kind):
            try:
                number = float(rate)
            except ValueError:
                raise UsageError(f"a rate is a number of messages a second, not {rate}") from None
            found.append(RateRule(kind, os.fsencode(pattern), number))
    return found


def _show(window: Window, arguments: Namespace) -> None:
    lost = [f"{window.lost:,}"] * bool(window.lost) + ["nobody knows how many"] * bool(window.unknown)
    parts = [
        f"{window.start:%H:%M:%S}",
        f"{window.messages / arguments.window:,.1f}/s",
        f"{window.size:,} bytes",
        *([f"lost {' and '.join(lost)}"] if lost else []),
        *(f"{printable(prefix)} {count:,}" for prefix, count in window.busiest),
    ]
    print("  ".join(parts), flush=True)


def _publish(alert: Alert, arguments: Namespace) -> None:
    """Print an alert, and publish it."""
    from ..blocking import Client
    from ..errors import SbusError

    said = json.loads(alert.payload)
    rate = "nobody knows how many" if said["rate"] is None else f"{said['rate']:,.1f}/s"
    print(f"{printable(alert.key)}: {rate} in the {said['seconds']:g} s from {said['start']}", flush=True)
    if arguments.dry:
        return

    try:
        with Client(arguments.address) as client:
            client.publish(alert.key, alert.payload)
            client.sync()
    except (SbusError, OSError) as error:  # it may be there again for the next
        complain("sbus", f"this alert was not published: {explain(error)}")
