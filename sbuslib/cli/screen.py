"""The live screen of ``sbus top``: a thread asks the hub, and the main thread draws and takes keys."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..clients.endpoint import Endpoint
from ..monitor.rates import PAUSE, Look, watch
from .console import EXIT_SUCCESS, explain, on_stop
from .tables import KINDS, TITLES, View, plain

__all__ = ["Screen", "draw"]

_KEY = re.compile(r"\x1b\[[A-D]|.", re.DOTALL)
_LEFT, _RIGHT, _ESCAPE = "\x1b[D", "\x1b[C", "\x1b"
_KINDS: Final = {kind[0]: kind for kind in KINDS}
_HELP = "c u l Tab: clients, users, links   < >: sort   r: reverse   /: filter   p: pause   q: quit"
_AROUND = 6
"""Lines that are not rows."""


class Screen:
    """Shows looks at a hub, each as soon as it is there, and every second for how old it is.

    :param connect: makes a client of the hub.
    :param interval: seconds from one look to the next.
    """

    def __init__(self, view: View, connect: Callable[[], Endpoint], interval: float = PAUSE) -> None:
        self.view = view  # what is shown; keys change it
        self._looks = watch(connect, self._sleep, lambda: view.kind == "clients", interval)
        self._look: Look | None = None  # the last one
        self._seen = time.monotonic()  # when that was made
        self._state = ""  # what is said of the connection
        self._is_away = False  # the last answer was an error
        self._paused = False  # by a key
        self._editing = False  # keys go into the filter
        self._ended = False  # by a key or a signal
        self._hurry = threading.Event()  # set: look now
        self._wake, self._woken = os.pipe()  # wakes the main thread

    def run(self) -> int:
        """Show the hub until the user quits; the exit status. Does not begin without a hub that trusts this user."""
        first = next(self._looks)
        if not isinstance(first, Look):
            raise first
        self._see(first)

        # From here on keys come one by one and are not shown; the terminal is put back whatever happens.
        on_stop(self._stop)
        console = Console(highlight=False)
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
        tty.setcbreak(fd)
        try:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                threading.Thread(target=self._watch, name="watch", daemon=True).start()
                while not self._ended:
                    live.update(self._draw(console.height), refresh=True)
                    self._wait(fd)
        finally:
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
        return EXIT_SUCCESS

    def _wait(self, fd: int) -> None:
        """Wait for keys, a look or a second."""
        ready, _, _ = select.select([fd, self._wake], [], [], 1.0)
        if self._wake in ready:
            os.read(self._wake, 4_096)
        if fd in ready:
            typed = os.read(fd, 4_096).decode(errors="replace")
            for key in _KEY.findall(typed):
                self.press(key)
            if not typed:  # the terminal is gone
                self._ended = True

    def _stop(self) -> None:
        self._ended = True
        os.write(self._woken, b".")

    def _draw(self, height: int) -> Group:
        assert self._look is not None  # there is no screen before the first look
        age = time.monotonic() - self._seen
        return draw(
            self._look,
            self.view,
            height,
            state=Text(self._state, style="red" if self._is_away else "green"),
            about=f"{'paused, ' if self._paused else ''}seen {age:.0f} s ago",
            typing=self._editing,
        )

    # -- the hub ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        for seen in self._looks:
            if not self._paused:
                self._see(seen)
                os.write(self._woken, b".")

    def _sleep(self, seconds: float) -> None:
        """Wait so long, or until the user wants something else. Keys make the hub answer once a second at most."""
        began = time.monotonic()
        self._hurry.wait(seconds)
        self._hurry.clear()
        while self._paused:
            self._hurry.wait()
            self._hurry.clear()
        time.sleep(max(0.0, began + min(seconds, 1.0) - time.monotonic()))

    def _see(self, seen: Look | Exception) -> None:
        now = time.strftime("%H:%M:%S")
        if not isinstance(seen, Look):
            if not self._is_away:
                self._state = f"nothing from the hub since {now}, trying again: {explain(seen)}"
            self._is_away = True
            return
        if self._is_away:
            self._state = f"the hub is back since {now}"
        self._is_away = False
        self._look, self._seen = seen, time.monotonic()

    # -- keys ---------------------------------------------------------------------------------------

    def press(self, key: str) -> None:
        """Act on a key, as ``sbus top --help`` says."""
        view = self.view
        if self._editing:
            self._edit(key)

        # What is shown, and in which order.
        elif key in _KINDS or key == "\t":
            view.change(_KINDS.get(key) or KINDS[(KINDS.index(view.kind) + 1) % len(KINDS)])
            if self._look is not None and view.rows(self._look) is None:
                self._hurry.set()
        elif key in ("<", ",", _LEFT, ">", ".", _RIGHT):
            view.sort_by_next(-1 if key in ("<", ",", _LEFT) else 1)
        elif key == "r":
            view.reverse = not view.reverse

        # What the keys act on.
        elif key == "/":
            self._editing = True
        elif key in ("p", " "):
            self._paused = not self._paused
            self._hurry.set()
        elif key in ("q", "\x04"):
            self._ended = True

    def _edit(self, key: str) -> None:
        if key in ("\r", "\n", _ESCAPE):
            self._editing = False
            if key == _ESCAPE:
                self.view.wanted = ""
        elif key in ("\x7f", "\b"):
            self.view.wanted = self.view.wanted[:-1]
        elif key.isprintable():
            self.view.wanted += key


def draw(
    look: Look, view: View, height: int, *, state: Text | None = None, about: str = "", typing: bool = False
) -> Group:
    """A look on so many lines, with lines about it: ``state`` of the connection, and ``about`` the look."""
    # 1. The table: names may be cut, numbers never.
    hub, rows = look.hub, view.rows(look)
    table = Table(box=None, expand=True, pad_edge=False)
    for number, column in enumerate(view.columns):
        mark = (" ^" if view.reverse else " v") if column == view.sort else ""
        table.add_column(
            Text(f"{TITLES[column]}{mark}", style="bold reverse" if mark else "bold"),
            justify="left" if column in ("who", "user", "program", "name", "direction", "state", "modes") else "right",
            no_wrap=True,
            overflow="ellipsis",
            ratio=None if number else 1,
        )
    for row in (rows or [])[: max(1, height - _AROUND)]:
        bad = "red" if row["lost_rate"] or row.get("connected") is False else "yellow" if row["waiting"] else ""
        table.add_row(*(Text(plain(cell)) for cell in view.cells(row)), style=bad)

    # 2. The lines above it.
    name = f"{view.kind}: {'asking ...' if rows is None else f'{len(rows):,}'}"
    filtered = f"   filter: {plain(view.wanted)}{'_' if typing else ''}" if view.wanted or typing else ""
    lines = (
        Text(f"{plain(look.address)}   {hub['clients']:,} clients   {hub['patterns']:,} patterns", style="bold"),
        Text(
            f"published {hub['published_rate']:,}/s   delivered {hub['delivered_rate']:,}/s   "
            f"waiting {hub['waiting']:,}   lost {hub['lost_rate']:,}/s, {hub['lost']:,} in all"
        ),
        state or Text(),
        Text(f"{name}{filtered}   {about}"),
    )
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines, table, Text(_HELP, style="dim", no_wrap=True))
