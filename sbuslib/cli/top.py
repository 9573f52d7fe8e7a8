"""``sbus top`` and ``sbus web``: live views of a hub, in a terminal or a browser."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from .arguments import Parser, add, add_address
from .console import begin_to_show, explain, on_stop
from .tables import KINDS, View, plain, table, title

if TYPE_CHECKING:
    from ..blocking import Client
    from ..monitor.rates import Look, Row

_KEY = re.compile(r"\x1b\[[A-D]|.", re.DOTALL)
_KINDS = {kind[0]: kind for kind in KINDS}
_STEPS = {"<": -1, "\x1b[D": -1, ">": 1, "\x1b[C": 1}
_HELP = "c u l Tab: clients, users, links   < >: sort   r: reverse   q: quit"
_ORDERS = ("name", "published", "delivered", "waiting", "losing", "lost", "patterns", "up", "down")


def add_top(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show what a hub does, live: messages published and delivered, waiting and lost, for each client, user or link "
        "to another hub. A key changes what is shown:\n\n"
        "  c  u  l  Tab   clients, users, links, the next of these\n"
        "  <  >           sort by the column to the left, to the right; so do the arrows\n"
        "  r              reverse the order\n"
        "  q              quit\n\n"
        "The hub must trust the user that runs this. It is asked once in an interval, or less often where it takes "
        "long to answer, so that it spends at most 2 % of its time on this. When the hub goes away, top says so and "
        "waits for it. With -n or --json, tables are printed; where standard input or output is no terminal, one."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus top --by users --sort lost\n"
        "  sbus top -n 1 --filter /1000/ | head\n"
        "  sbus top --json | jq .hub.published_rate"
    )

    add_address(parser)
    add(parser, "--by", "what each row is about (clients)", choices=KINDS, default="clients")
    what = f"the largest first; losing is lost messages a second (published): {', '.join(_ORDERS)}"
    add(parser, "--sort COLUMN", what, choices=_ORDERS, default="published")
    add(parser, "--reverse", "the least first")
    add(parser, "--filter TEXT", "only rows with TEXT in a name", default="")
    add(parser, "-i --interval TIME", "how often (1)", default=1.0)
    add(parser, "-n --count N", "print N tables, and exit")
    add(parser, "--json", "print a JSON object a line until Ctrl-C; rates are messages a second")


def run_top(arguments: Namespace) -> None:
    from ..blocking import Client

    rated = {"published", "delivered", "up", "down"}
    sort = "lost_rate" if arguments.sort == "losing" else arguments.sort
    view = View(arguments.by, f"{sort}_rate" if sort in rated else sort, arguments.reverse, arguments.filter)

    def connect() -> Client:
        return Client(arguments.address, timeout=10)

    if arguments.json or arguments.count or not (sys.stdin.isatty() and sys.stdout.isatty()):
        begin_to_show()
        _print(arguments, view, connect)
    else:
        Screen(view, connect, arguments.interval).run()


def _print(arguments: Namespace, view: View, connect: Callable[[], Client]) -> None:
    from ..monitor.rates import watch

    most = arguments.count or (None if arguments.json else 1)
    looks = watch(connect, time.sleep, lambda: view.kind == "clients", arguments.interval)
    for number, seen in enumerate(looks):
        if isinstance(seen, Exception):
            raise seen
        if number:  # the first look has no rates
            print(to_json(seen, view) if arguments.json else "\n".join(to_lines(seen, view)), flush=True)
        if number == most:
            break


class Screen:
    """Live screen of a hub. Each look at the hub is drawn as soon as it is there, and again after each key.

    :param connect: makes a client of the hub.
    :param interval: seconds from one look to the next.
    """

    def __init__(self, view: View, connect: Callable[[], Client], interval: float) -> None:
        from ..monitor.rates import watch

        self.view = view  # the rows on screen; keys change it
        self._looks = watch(connect, self._wait, lambda: view.kind == "clients", interval)
        self._look: Look | None = None  # the last one
        self._state = ""  # state of the connection

    def run(self) -> None:
        """Show the hub until the user quits. Does not begin without a hub that trusts this user."""
        import termios
        import tty

        first = next(self._looks)
        if isinstance(first, Exception):
            raise first
        self._see(first)

        # From here on keys come one by one and are not shown; the terminal is restored however this ends.
        before = termios.tcgetattr(0)
        tty.setcbreak(0)
        os.write(1, b"\x1b[?1049h\x1b[?25l\x1b[?7l")  # another screen, without a cursor; long lines are cut
        try:
            on_stop(_quit)
            with suppress(KeyboardInterrupt):
                for seen in self._looks:
                    self._see(seen)
        finally:
            os.write(1, b"\x1b[?7h\x1b[?25h\x1b[?1049l")
            termios.tcsetattr(0, termios.TCSADRAIN, before)

    def _see(self, seen: Look | Exception) -> None:
        now = time.strftime("%H:%M:%S")
        if isinstance(seen, Exception):
            if not self._state.startswith("nothing"):
                self._state = f"nothing from the hub since {now}, trying again: {explain(seen)}"
        else:
            self._look, self._state = seen, f"seen at {now}"

    def _wait(self, seconds: float) -> None:
        """Draw, and act on keys, for so long; at most a second if the last look lacks the chosen rows."""
        began = time.monotonic()
        while self._look is not None:
            self._draw(self._look)
            is_asked = self.view.rows(self._look) is not None
            left = began + (seconds if is_asked else min(seconds, 1.0)) - time.monotonic()
            if left <= 0:
                break
            if select.select([0], [], [], left)[0]:
                self.press(os.read(0, 4_096).decode(errors="replace") or "q")  # at its end the terminal is gone

    def press(self, typed: str) -> None:
        """Act on keys, as ``sbus top --help`` says."""
        view = self.view
        for key in _KEY.findall(typed):
            if key == "q":
                _quit()
            if key in _KINDS or key == "\t":
                view.change(_KINDS.get(key) or KINDS[(KINDS.index(view.kind) + 1) % len(KINDS)])
            elif key in _STEPS:
                view.sort_by_next(_STEPS[key])
            elif key == "r":
                view.reverse = not view.reverse

    def _draw(self, look: Look) -> None:
        about, head, *lines = to_lines(look, self.view)
        rows = self.view.rows(look)
        shown = "asking ..." if rows is None else f"{len(rows):,}"
        order = f"{title(self.view.sort)}{', reversed' if self.view.reverse else ''}"
        picture = [
            about,
            f"{self.view.kind}: {shown}, sorted by {order}   {self._state}",
            f"\x1b[7m{head}\x1b[K\x1b[m",
            *(f"\x1b[{_colour(row)}m{line}\x1b[m" for row, line in zip(rows or [], lines, strict=True)),
        ][: os.get_terminal_size(1).lines - 1]
        print("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in picture) + f"{_HELP}\x1b[J", end="", flush=True)


def _quit() -> NoReturn:
    raise KeyboardInterrupt


def _colour(row: Row) -> int:
    """Return the colour of a row: red where messages are lost or a link is down, yellow where some wait."""
    return 31 if row["lost_rate"] or row.get("connected") is False else 33 if row["waiting"] else 0


def to_lines(look: Look, view: View) -> list[str]:
    """Format a look as a line about the hub, and a table."""
    hub = look.hub
    about = (
        f"{plain(look.address)}  {hub['clients']:,} clients, {hub['patterns']:,} patterns  "
        f"{hub['published_rate']:,}/s published, {hub['delivered_rate']:,}/s delivered, {hub['waiting']:,} waiting, "
        f"{hub['lost']:,} lost"
    )
    return [about, *table(f"top {view.kind}", view.rows(look) or [])]


def to_json(look: Look, view: View) -> str:
    """Encode a look as a JSON object, in ASCII."""
    import json
    from datetime import datetime

    now = datetime.now().astimezone().isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "address": look.address, "hub": look.hub, view.kind: view.rows(look)})


def add_web(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show the bus on a live page: rates, queues and losses of clients and users, its parent and children, and the "
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


def run_web(arguments: Namespace) -> None:
    import gevent

    from ..client import Client
    from ..web.page import Page

    with Client(arguments.address, timeout=10) as client:
        client.hub.statistics()  # raises at once if this user is not trusted
        arguments.address = client.address
    try:
        page = Page(arguments.address, arguments.listen)
    except OSError as error:
        raise OSError(error.errno, error.strerror, arguments.listen) from None
    on_stop(page.stop, gevent.signal_handler)
    print(page.url, flush=True)
    page.serve_forever()
