"""``sbus top`` and ``sbus web``: what a hub does, live, in a terminal or a browser."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable

from .arguments import Parser, add, add_address
from .console import EXIT_SUCCESS, begin_to_show, on_stop, tell

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from ..blocking import Client
    from ..monitor.rates import Look
    from .tables import View

__all__ = ["add_top", "add_web", "to_json", "to_text"]

_ORDERS = ("name", "published", "delivered", "waiting", "losing", "lost", "patterns", "up", "down")


def add_top(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show what a hub does, live: messages published and delivered, waiting and lost, for each client, user or link "
        "to another hub. A key changes what is shown:\n\n"
        "  c  u  l  Tab   clients, users, links, the next of these\n"
        "  <  >           sort by the column to the left, to the right; so do the arrows\n"
        "  r              reverse the order\n"
        "  /              show only rows with a text in a name: Enter ends it, Esc clears it\n"
        "  p              pause, and go on\n"
        "  q              quit\n\n"
        "The hub must trust the user that runs this. It is asked once in an interval, or less often where it takes "
        "long to answer, so that it spends at most 2 % of its time on this. When the hub goes away, top says so and "
        "waits for it. The live screen needs the extra cli: pip install 'sbuslib[cli]'. With -n or --json, tables are "
        "printed; where standard input or output is no terminal, one."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus top\n"
        "  sbus top --by users --sort lost\n"
        "  sbus top -n 1 --filter /1000/ | head\n"
        "  sbus top --json | jq .hub.published_rate"
    )

    add_address(parser)
    add(parser, "--by", "what each row is about (clients)", choices=("clients", "users", "links"), default="clients")
    what = f"the largest first; losing is lost messages a second (published): {', '.join(_ORDERS)}"
    add(parser, "--sort COLUMN", what, choices=_ORDERS, default="published")
    add(parser, "--reverse", "the least first")
    add(parser, "--filter TEXT", "only rows with TEXT in a name", default="")
    add(parser, "-i --interval TIME", "how often (1)", default=1.0)
    add(parser, "-n --count N", "print N tables, and exit")
    add(parser, "--json", "print a JSON object a line until Ctrl-C; rates are messages a second")
    parser.set_defaults(run=_top)


def _top(arguments: Namespace) -> int:
    from ..blocking import Client
    from .tables import View

    rated = {"published", "delivered", "up", "down"}
    sort = "lost_rate" if arguments.sort == "losing" else arguments.sort
    view = View(arguments.by, f"{sort}_rate" if sort in rated else sort, arguments.reverse, arguments.filter)

    def connect() -> Client:
        return Client(arguments.address, timeout=10)

    if arguments.json or arguments.count or not (sys.stdin.isatty() and sys.stdout.isatty()):
        begin_to_show()
        _print(arguments, view, connect)
        return EXIT_SUCCESS
    from .screen import Screen

    return Screen(view, connect, arguments.interval).run()


def _print(arguments: Namespace, view: View, connect: Callable[[], Client]) -> None:
    from ..monitor.rates import watch

    most = arguments.count or (None if arguments.json else 1)
    looks = watch(connect, _pause(arguments.interval), lambda: view.kind == "clients", arguments.interval)
    for number, seen in enumerate(looks):
        if isinstance(seen, Exception):
            raise seen
        if number:  # the first look has no rates
            print(to_json(seen, view) if arguments.json else to_text(seen, view), flush=True)
        if number == most:
            break


def _pause(interval: float) -> Callable[[float], None]:
    def pause(seconds: float) -> None:
        if seconds > max(5.0, 2 * interval):
            tell(f"the hub takes long to answer, so the next look is in {seconds:.0f} s ...")
        time.sleep(seconds)

    return pause


def to_text(look: Look, view: View) -> str:
    """A look as a line about the hub, and a table."""
    from .tables import plain, table

    hub = look.hub
    about = (
        f"{plain(look.address)}  {hub['clients']:,} clients, {hub['patterns']:,} patterns  "
        f"{hub['published_rate']:,}/s published, {hub['delivered_rate']:,}/s delivered, {hub['waiting']:,} waiting, "
        f"{hub['lost']:,} lost"
    )
    return "\n".join([about, *table(f"top {view.kind}", view.rows(look) or [])])


def to_json(look: Look, view: View) -> str:
    """A look as a JSON object, in ASCII."""
    import json
    from datetime import datetime

    now = datetime.now().astimezone().isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "address": look.address, "hub": look.hub, view.kind: view.rows(look)})


def add_web(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show the bus on a live page: rates, queues and losses of clients and users, the hubs above and below, and the "
        "messages of a pattern. Print the address of the page, and serve it until Ctrl-C. Open it in a browser on this "
        "machine, or through ssh -L. The page cannot change anything, and shows no secrets. Whoever has its address "
        "may look: there is a random token in it. The hub must trust the user that runs this."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus web\n"
        "  sbus web --listen 127.0.0.1:8080            always at this port; the token is a new one each time"
    )

    add_address(parser)
    add(parser, "--listen WHERE", "a loopback address and port, or a path (127.0.0.1, any port)", default="127.0.0.1:0")

    parser.set_defaults(run=_web)


def _web(arguments: Namespace) -> None:
    import gevent

    from ..client import Client
    from ..web.page import Page

    with Client(arguments.address, timeout=10) as client:
        client.hub.statistics()  # refused at once to who is not trusted
        arguments.address = client.address
    try:
        page = Page(arguments.address, arguments.listen)
    except OSError as error:
        raise OSError(error.errno, error.strerror, arguments.listen) from None
    on_stop(page.stop, gevent.signal_handler)
    print(page.url, flush=True)
    page.serve_forever()
