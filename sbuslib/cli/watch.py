"""``sbus watch``: rates of what passes on a bus or is being recorded, and alerts on the bus."""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from typing import TYPE_CHECKING

from ..wire.text import printable
from . import jobs
from .arguments import Parser, add_address
from .console import complain, explain
from .values import seconds, separator

if TYPE_CHECKING:
    from ..reports.watch import Alert, RateRule, Window

__all__ = ["add_watch"]


def add_watch(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show the rates of what a hub carries, or of what is being recorded into a journal: a line for each window of "
        "time. And publish alerts: under alerts/above/PATTERN and alerts/below/PATTERN, for each window with more or "
        "fewer messages a second than that, and under alerts/lost for what was lost; and under alerts/cleared/ when "
        "that is over. The payload is a JSON object. It ends on Ctrl-C."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus watch                                               rates on the bus, every 10 seconds\n"
        "  sbus watch --above room/ 1000 --below bus/tick 0.5       and alerts: too many of these, too few of those\n"
        "  sbus watch /var/lib/sbus/journal --window 1min           what is being recorded\n"
        "  sbus sub alerts/                                         who listens to alerts\n\n"
        "Alerts are published at the hub that -a names, or where sbus pub would. What was lost is always told. For "
        "rates by key, see sbus hz."
    )

    parser.add_argument("journal", metavar="JOURNAL", nargs="?", help="directory of a journal; else the bus itself")
    add_address(parser, help="where the hub listens that is watched, and that gets the alerts")
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
    parser.add_argument("--window", type=seconds, default=10.0, metavar="TIME", help="how long a window is (10)")
    parser.add_argument(
        "--delay",
        type=seconds,
        metavar="TIME",
        help="how late a record may be found in the journal (5); of the bus, how long a window is left open (0)",
    )
    parser.add_argument(
        "--separator", type=separator, default="/", metavar="BYTE", help="separator of the hub's keys (/)"
    )
    parser.set_defaults(run=_watch)


def _watch(arguments: Namespace) -> None:
    from ..reports.watch import InJournal, OnBus, Source, check_windows, follow, under_way

    if arguments.delay is None:
        arguments.delay = 0.0 if arguments.journal is None else 5.0
    check_windows(arguments.window, arguments.delay)
    rules = _rules(arguments)
    source: Source
    if arguments.journal is None:
        source = OnBus(arguments.address)
    else:
        source = InJournal(arguments.journal, under_way(arguments.window, time.time_ns()))
    follow(
        source,
        rules,
        seconds=arguments.window,
        delay=arguments.delay,
        separator=arguments.separator,
        stop=jobs.stop_event(),
        on_window=lambda window: _show(window, arguments),
        on_alert=lambda alert: _publish(alert, arguments),
        on_late=lambda count: complain("sbus", f"{count:,} rows came later than --delay allows, and were left out"),
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
            found.append(RateRule(kind, os.fsencode(pattern), number).check(arguments.separator))
    return found


def _show(window: Window, arguments: Namespace) -> None:
    if arguments.quiet:
        return
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
    """Show an alert, and publish it."""
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
