"""``sbus watch``: rates of what is being recorded, and alerts on the bus."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from ..wire.text import printable
from . import jobs
from .arguments import add_address
from .console import complain, explain
from .report import add_separator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..spark.watch import Alert, Rule, Window

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show the rates of what is being recorded, a line for each window of time, and publish alerts: under "
        "alerts/above/PATTERN and alerts/below/PATTERN, for each window with more or fewer messages a second than "
        "that, and under alerts/lost for what was lost; and under alerts/cleared/ when that is over. The payload is a "
        "JSON object. It ends on Ctrl-C. One journal of this machine needs no Spark."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus watch /var/lib/sbus/journal                         rates, every 10 seconds\n"
        "  sbus watch journal --above room/ 1000 --below bus/tick 0.5\n"
        "                                                           and alerts: too many of these, too few of those\n"
        "  sbus sub alerts/                                         who listens to them\n\n"
        "Alerts are published at the hub that -a names, or where sbus pub would. What was lost is always told.\n\n"
        + jobs.SPARK
    )
    parser.add_argument("journal", metavar="JOURNAL", nargs="+", help="directory of a journal, or its URI")
    add_address(parser, help="where the hub listens that gets the alerts")
    parser.add_argument("-q", "--quiet", action="store_true", help="publish alerts, and show only those")
    parser.add_argument("--dry", action="store_true", help="show alerts, and publish none")
    for kind in ("above", "below"):
        than = "more" if kind == "above" else "fewer"
        parser.add_argument(
            f"--{kind}",
            nargs=2,
            action="append",
            default=[],
            metavar=("PATTERN", "RATE"),
            help=f"an alert when {than} messages a second than RATE match PATTERN",
        )
    parser.add_argument("--window", type=float, default=10.0, metavar="SECONDS", help="how long a window is (10)")
    parser.add_argument(
        "--delay", type=float, default=5.0, metavar="SECONDS", help="how late a record may be found in the journal (5)"
    )
    add_separator(parser)
    jobs.add_spark_arguments(parser)
    parser.set_defaults(run=lambda arguments: jobs.run(arguments, _watch, light=_is_light(arguments)))


def _is_light(arguments: Namespace) -> bool:
    """Whether one journal of this machine is watched, which needs no Spark."""
    return len(arguments.journal) == 1 and "://" not in arguments.journal[0] and arguments.master is None


def _watch(arguments: Namespace) -> jobs.Work | None:
    from ..errors import UsageError
    from ..spark.watch import Rule, check_windows

    check_windows(arguments.window, arguments.delay)
    rules = []
    for kind in ("above", "below"):
        for pattern, rate in getattr(arguments, kind):
            try:
                number = float(rate)
            except ValueError:
                raise UsageError(f"a rate is a number of messages a second, not {rate}") from None
            rules.append(Rule(kind, os.fsencode(pattern), number).check(arguments.separator))
    if _is_light(arguments):
        from ..spark.live import follow

        follow(arguments.journal[0], rules, **_options(arguments))
        return None
    from ..lake.places import absolute, list_segments

    for journal in arguments.journal:
        list_segments(absolute(journal))
    return lambda spark: _watch_with(spark, arguments, rules)


def _watch_with(spark: SparkSession, arguments: Namespace, rules: list[Rule]) -> None:
    from ..spark.watch import under_way, watch

    # From the window on that is under way, all of it: what came before is for the reports.
    source = spark.readStream.format("sbus").option("startTime", str(under_way(arguments.window)))
    watch(source.option("paths", json.dumps(arguments.journal)).load(), rules, **_options(arguments))


def _options(arguments: Namespace) -> dict[str, Any]:
    """What both ways to watch are told: windows, when to stop, and what to do with what they find."""
    from ..blocking import Client
    from ..errors import SbusError

    def show(window: Window) -> None:
        if not arguments.quiet:
            rate = window.messages / arguments.window
            lost = f"  lost {window.lost:,}" if window.lost else ""
            busiest = "  ".join(f"{printable(prefix)} {count:,}" for prefix, count in window.busiest)
            print(f"{window.start:%H:%M:%S}  {rate:,.1f}/s  {window.size:,} bytes{lost}  {busiest}", flush=True)

    def tell(alert: Alert) -> None:
        told = json.loads(alert.payload)
        print(
            f"{printable(alert.key)}: {told['rate']:,.1f}/s in the {told['seconds']:g} s from {told['start']}",
            flush=True,
        )

        if arguments.dry:
            return
        try:
            # Here and not in Spark's sink: on a cluster, that is on another machine.
            with Client(arguments.address) as client:
                client.publish(alert.key, alert.payload)
                client.sync()
        except (SbusError, OSError) as error:  # it may be there again for the next
            complain("sbus", f"this alert was not published: {explain(error)}")

    return {
        "seconds": arguments.window,
        "delay": arguments.delay,
        "separator": arguments.separator,
        "stop": jobs.stop_event(),
        "on_window": show,
        "on_alert": tell,
        "on_late": lambda count: complain("sbus", f"{count:,} rows came later than --delay allows, and were left out"),
    }
