"""``sbus top``."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from .arguments import ADDRESSES, add_address
from .console import EXIT_SUCCESS, complain, explain, tell, yield_to_signals
from .values import count

if TYPE_CHECKING:
    from ..blocking import Client
    from ..rates import Look
    from .views import View

__all__ = ["add_arguments", "to_json", "to_text"]

KINDS = ("clients", "users", "links")


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show what a hub does, live: messages in and out, waiting and lost, for each client, user or link to another "
        "hub. A key changes what is shown:\n\n"
        "  c  u  l  Tab   clients, users, links, the next of these\n"
        "  <  >           sort by the column to the left, to the right; so do the arrows\n"
        "  r              reverse the order\n"
        "  /              show only names with a text in them: Enter ends it, Esc clears it\n"
        "  p              pause, and go on\n"
        "  q              quit\n\n"
        "The hub must trust the user that runs this. It is asked once a second, or less often where it takes long to "
        "answer, so that it spends at most 2 % of its time on this. When the hub goes away, top says so and waits for "
        "it. The live screen needs the extra cli: pip install 'sbuslib[cli]'. Where standard input or output is no "
        "terminal, and with --once, -n or --json, tables are printed."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus top\n"
        "  sbus top --by users --sort lost\n"
        "  sbus top --once --filter /1000/ | head\n"
        "  sbus top --json | jq .hub.in\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument("--by", choices=KINDS, default="clients", help="what each row is about (default: clients)")
    parser.add_argument(
        "--sort",
        choices=("name", "in", "out", "queued", "losing", "lost", "patterns"),
        default="in",
        help="the column to sort by; losing is lost messages a second (default: in)",
    )
    parser.add_argument("--reverse", action="store_true", help="the least first")
    parser.add_argument("--filter", metavar="TEXT", default="", help="only rows with TEXT in their name")
    parser.add_argument("-n", "--count", type=count, metavar="N", help="print N tables, and exit")
    parser.add_argument("--once", action="store_const", dest="count", const=1, help="print one table, and exit")
    parser.add_argument("--json", action="store_true", help="print a JSON object a line; rates are messages a second")
    parser.set_defaults(run=_top)


def _top(arguments: Namespace) -> int:
    from ..blocking import Client
    from .views import COLUMNS, View

    sort = next(iter(COLUMNS[arguments.by])) if arguments.sort == "name" else arguments.sort
    view = View(arguments.by, sort, arguments.reverse, arguments.filter)

    def connect() -> Client:
        return Client(arguments.address, timeout=10)

    if arguments.json or arguments.count or not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield_to_signals()
        return _print(arguments, view, connect)
    try:
        from .screen import Screen
    except ImportError:
        return complain("sbus", "rich is missing: pip install 'sbuslib[cli]', or print tables with -n 1")
    return Screen(view, connect).run()


def _print(arguments: Namespace, view: View, connect: Callable[[], Client]) -> int:
    from ..rates import watch

    looks = watch(connect, _pause, lambda: view.kind == "clients")
    for number, seen in enumerate(looks):
        if isinstance(seen, Exception):
            return complain("sbus", explain(seen, arguments.address))
        if number:  # the first look has no rates
            print(to_json(seen, view) if arguments.json else to_text(seen, view), flush=True)
        if number == (arguments.count or 1):
            break
    return EXIT_SUCCESS


def _pause(seconds: float) -> None:
    if seconds > 2:
        tell(f"the hub takes long to answer, so the next look is in {seconds:.0f} s ...")
    time.sleep(seconds)


def to_text(look: Look, view: View) -> str:
    """A look as a line about the hub, and a table."""
    from .tables import columns, plain

    hub, rows = look.hub, view.rows(look) or []
    about = (
        f"{plain(look.address)}  {hub['clients']:,} clients, {hub['patterns']:,} patterns  {hub['in']:,}/s in, "
        f"{hub['out']:,}/s out, {hub['queued']:,} waiting, {hub['lost']:,} lost"
    )
    return "\n".join([about, *columns([[*view.columns.values()], *map(view.cells, rows)])])


def to_json(look: Look, view: View) -> str:
    """A look as a JSON object, in ASCII."""
    now = datetime.now().astimezone().isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "address": look.address, "hub": look.hub, view.kind: view.rows(look)})
