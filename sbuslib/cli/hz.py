"""``sbus hz``."""

from __future__ import annotations

import json
import os
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from .arguments import ADDRESSES, add_address
from .values import count, seconds

if TYPE_CHECKING:
    from ..blocking import Client
    from ..rates import Row

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Measure how often messages come under each key that matches one of the patterns, and print a table for each "
        "window of time: messages and bytes of payload a second, and the mean, standard deviation and maximum of the "
        "intervals between messages, in milliseconds. An interval counts where it ends. Times are those at which this "
        "program reads, so messages that it reads together have no interval between them. This works with every hub. "
        "Messages that the hub lost, since they came faster than they were read, are told on standard error."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus hz ''                              everything, every second, until Ctrl-C\n"
        "  sbus hz 'room/*/temp' --window 10s\n"
        "  sbus hz beat -n 1 --timeout 5s          one table, if a beat comes soon\n"
        "  sbus hz --json '' | jq '.keys[0].rate'\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument("patterns", metavar="PATTERN", nargs="+", help="pattern of routing keys")
    parser.add_argument(
        "--window", type=seconds, default=1.0, metavar="TIME", help="how long each table measures (default: 1s)"
    )
    parser.add_argument(
        "--keys",
        type=count,
        default=20,
        metavar="N",
        help="show the N fastest of the first 1,000 keys, and count all others together (default: 20)",
    )
    parser.add_argument("-n", "--count", type=count, metavar="N", help="exit after N tables")
    parser.add_argument(
        "--timeout", type=seconds, metavar="TIME", help="exit with status 1 when no message comes for so long: 5, 2m"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="a JSON object a line for each table: intervals in seconds, keys as in sub --json, null for all others",
    )
    parser.set_defaults(run=_hz)


def _hz(arguments: Namespace) -> int:
    from ..rates import measure
    from . import messages

    def run(client: Client) -> None:
        client.subscribe(*map(os.fsencode, arguments.patterns))
        tables = measure(client, arguments.window, shown=arguments.keys, timeout=arguments.timeout)
        for number, rows in enumerate(tables, 1):
            print(_to_json(rows, arguments.window) if arguments.json else _to_text(rows), flush=True)
            if number == arguments.count:
                break

    return messages.run(run, arguments.address, on_notice=messages.tell_notice)


def _to_text(rows: list[Row]) -> str:
    from .tables import columns

    def cells(row: Row) -> list[str]:
        intervals = (row[column] for column in ("mean", "deviation", "longest"))
        return [
            f"{row['rate']:,.1f}",
            f"{row['bytes']:,.0f}",
            *("-" if one is None else f"{one * 1000:,.3f}" for one in intervals),
            "(others)" if row["key"] is None else row["key"].decode("utf-8", "surrogateescape"),
        ]

    return "\n".join(columns([["RATE", "BYTES", "MEAN", "DEVIATION", "MAX", "KEY"], *map(cells, rows)], 0))


def _to_json(rows: list[Row], window: float) -> str:
    from .messages import json_field

    keys = [{**row, "key": None, **({} if row["key"] is None else json_field("key", row["key"]))} for row in rows]
    return json.dumps({"time": round(time.time(), 3), "window": window, "keys": keys})
