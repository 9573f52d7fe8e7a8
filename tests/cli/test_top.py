"""``sbus top`` and its screen on a pseudo-terminal, and ``sbus web``."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from cli.conftest import Program, Run, Start
from rich.console import Console
from support import PATIENCE, HubThread
from web.http import get

from sbuslib.blocking import Client
from sbuslib.cli.screen import Screen, draw
from sbuslib.cli.tables import View
from sbuslib.cli.top import to_json, to_text
from sbuslib.errors import NoHubError
from sbuslib.monitor.rates import Look, Rates

# -- ``sbus top`` as a program: its tables, and its live screen on a pseudo-terminal


class Terminal:
    """A pseudo-terminal of 30 lines, and what is on its screen."""

    def __init__(self) -> None:
        self.fd, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (30, 130))
        self._received = ""

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.slave)

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def screen(self) -> list[str]:
        """The lines of the last picture that was drawn whole, without colours."""
        frames = [frame for frame in self._received.split("\x1b[H") if "q: quit" in frame]
        lines = frames[-1].split("\r\n") if frames else [""] * 30
        return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in lines]

    def see(self, what: Callable[[list[str]], object]) -> list[str]:
        """Wait until the screen shows something; the screen."""
        deadline = time.monotonic() + PATIENCE
        while not what(self.screen()):
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, "\n".join(self.screen())
            self._received = (self._received + os.read(self.fd, 65_536).decode())[-100_000:]
        return self.screen()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.fixture
def top(start: Start, terminal: Terminal, path: str) -> Callable[..., Program]:
    """Start ``sbus top`` on the terminal."""
    pytest.importorskip("rich")

    def top(*arguments: str) -> Program:
        return start(
            "sbuslib",
            "top",
            "-a",
            path,
            *arguments,
            stdin=terminal.slave,
            stdout=terminal.slave,
            env={"TERM": "xterm-256color"},
            start_new_session=True,
        )

    return top


def test_one_table_is_printed_where_there_is_no_terminal(run: Run, bus: HubThread, path: str) -> None:
    done = run("sbuslib", "top", "-a", path)
    assert (done.returncode, done.stderr) == (0, "")
    about, titles, *rows = done.stdout.splitlines()
    assert about.startswith(f"{path}  1 clients, 0 patterns  ")
    assert titles.split()[:6] == ["CLIENT", "USER", "PROGRAM", "PUBLISHED/S", "DELIVERED/S", "WAITING"]
    assert len(rows) == 1
    assert rows[0].startswith(f"!/cred/{os.getgid()}/{os.getuid()}/")


def test_tables_are_sorted_and_filtered(run: Run, bus: HubThread, path: str) -> None:
    with Client(path) as one, Client(path):
        one.subscribe(b"a", b"b", b"c")
        done = run("sbuslib", "top", "-a", path, "--sort", "patterns", "-n", "1", "--filter", f"/{os.getpid()}")
        least = run("sbuslib", "top", "-a", path, "--sort", "patterns", "-n", "1", "--reverse")
    patterns = [line.split()[8] for line in done.stdout.splitlines()[2:]]
    assert patterns == ["3", "0"]
    assert [line.split()[8] for line in least.stdout.splitlines()[2:]] == ["0", "0", "3"]


@pytest.mark.parametrize(("kind", "field"), [("clients", "who"), ("users", "user"), ("links", "name")])
def test_json_is_an_object_a_line(run: Run, bus: HubThread, path: str, kind: str, field: str) -> None:
    done = run("sbuslib", "top", "-a", path, "--json", "--by", kind, "-n", "2")
    assert (done.returncode, done.stderr) == (0, "")
    for line in done.stdout.splitlines():
        told = json.loads(line)
        assert told["hub"]["clients"] == 1
        assert all(field in row for row in told[kind])
    assert len(done.stdout.splitlines()) == 2


def test_texts_of_a_hub_cannot_steer_the_terminal(bus: HubThread, path: str) -> None:
    hostile, shown = "\x1b[2J[red]\n", "\\x1b[2J[red]\\n"
    with Client(path) as client:
        hub = client.hub.statistics()
    client_row = msgspec.structs.replace(hub.per_client[0], credentials=hostile)
    look = Rates().look(0.0, hostile, hub, [client_row], [])
    text = to_text(look, View())
    assert text.startswith(shown)
    assert f"\n{shown} " in text
    assert "\x1b" not in to_json(look, View())
    pytest.importorskip("rich")
    from rich.console import Console

    from sbuslib.cli.screen import draw

    console = Console(file=io.StringIO(), width=120)
    console.print(draw(look, View(wanted="[red]\n"), 20))
    assert isinstance(console.file, io.StringIO)
    drawn = console.file.getvalue()
    assert drawn.count(shown) == 2
    assert "filter: [red]\\n" in drawn
    assert "\x1b" not in drawn


def test_keys_change_what_the_screen_shows(
    bus: HubThread, path: str, terminal: Terminal, top: Callable[..., Program]
) -> None:
    with Client(path) as client:
        client.subscribe(b"a", b"b")
        program = top()
        terminal.see(lambda screen: "clients: 2" in screen[3])
        terminal.press(">")
        terminal.see(lambda screen: "DELIVERED/S v" in screen[4])
        terminal.press("<<<\x1b[D")  # an arrow does the same
        terminal.see(lambda screen: "CLIENT v" in screen[4])
        terminal.press("r")
        terminal.see(lambda screen: "CLIENT ^" in screen[4])
        terminal.press(f"/{os.getpid()}\r")
        shown = terminal.see(lambda screen: f"clients: 1   filter: {os.getpid()} " in screen[3])
        assert f"/{os.getpid()} " in shown[5]
        terminal.press("/nobody")
        terminal.see(lambda screen: "clients: 0" in screen[3])
        terminal.press("\x7f\x1b")
        terminal.see(lambda screen: "clients: 2   seen" in screen[3])
        terminal.press("u")
        shown = terminal.see(lambda screen: "users: 1" in screen[3])
        assert shown[4].startswith("USER ")
        terminal.press("\t")
        terminal.see(lambda screen: "links: 0" in screen[3])
        terminal.press("c")
        terminal.see(lambda screen: "clients: 2" in screen[3])
        terminal.press("q")
        assert program.wait(PATIENCE) == 0


def test_a_screen_is_drawn_where_the_terminal_lacks_a_character(
    bus: HubThread, terminal: Terminal, top: Callable[..., Program], environment: dict[str, str]
) -> None:
    termios.tcsetwinsize(terminal.slave, (10, 20))  # texts are cut off with an ellipsis
    environment["PYTHONIOENCODING"] = "ascii"
    program, shown = top(), b""
    while b"?" not in re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown):
        ready, _, _ = select.select([terminal.fd], [], [], PATIENCE)
        assert ready, shown
        shown += os.read(terminal.fd, 65_536)
    terminal.press("q")
    assert program.wait(PATIENCE) == 0


def test_the_screen_stands_still_while_it_is_paused(
    bus: HubThread, path: str, terminal: Terminal, top: Callable[..., Program]
) -> None:
    top()
    terminal.see(lambda screen: "clients: 1" in screen[3])
    terminal.press("p")
    terminal.see(lambda screen: "paused" in screen[3])
    with Client(path):
        terminal.see(lambda screen: re.match(r"clients: 1   paused, seen ([2-9]|\d\d) s ago", screen[3]))
        terminal.press("p")
        terminal.see(lambda screen: "clients: 2   seen" in screen[3])


def test_the_screen_tells_that_the_hub_went_away_and_came_back(
    path: str, terminal: Terminal, top: Callable[..., Program]
) -> None:
    with HubThread(path):
        program = top()
        terminal.see(lambda screen: "clients: 1" in screen[3])
    terminal.see(lambda screen: "nothing from the hub since " in screen[2])
    with HubThread(path):
        terminal.see(lambda screen: "the hub is back since " in screen[2])
        program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE) == 0
    assert termios.tcgetattr(terminal.slave)[3] & termios.ECHO  # the terminal is as it was


# -- The screen of ``sbus top``: its keys and its picture. ``test_top.py`` has it on a terminal

pytest.importorskip("rich")

COUNTS: dict[str, Any] = {
    "published_rate": 1,
    "delivered_rate": 2,
    "waiting": 0,
    "lost_rate": 0,
    "lost": 0,
    "patterns": 3,
    "clients": 4,
}


def picture(view: View, height: int = 24, clients: int = 4, **options: Any) -> list[str]:
    rows = [{**COUNTS, "who": f"client {number}", "user": "", "program": "", "modes": ""} for number in range(clients)]
    out = io.StringIO()
    Console(file=out, width=160).print(draw(Look("/bus", COUNTS, [], rows, []), view, height, **options))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.fixture
def screen(path: str) -> Iterator[Screen]:
    screen = Screen(View(), lambda: Client(path))
    yield screen
    os.close(screen._wake)
    os.close(screen._woken)


def test_keys_change_the_view(screen: Screen) -> None:
    view = screen.view
    for key, kind in (("u", "users"), ("l", "links"), ("c", "clients"), ("\t", "users")):
        screen.press(key)
        assert view.kind == kind
    for key, column in (
        (">", "delivered_rate"),
        ("<", "published_rate"),
        ("\x1b[C", "delivered_rate"),
        ("\x1b[D", "published_rate"),
        (",", "user"),
    ):
        screen.press(key)
        assert view.sort == column
    screen.press("r")
    assert view.reverse


def test_the_screen_does_not_begin_without_a_hub(screen: Screen) -> None:
    with pytest.raises(NoHubError):
        screen.run()


def test_a_picture_has_as_many_lines_as_the_screen_or_fewer() -> None:
    assert len(picture(View(), clients=2)) == 8
    assert len(picture(View(), height=24, clients=1_000)) == 24
    assert picture(View(), clients=1_000)[3].startswith("clients: 1,000")


def test_a_picture_marks_the_column_that_rows_are_sorted_by() -> None:
    assert "PATTERNS v" in picture(View(sort="patterns"))[4]
    assert "PATTERNS ^" in picture(View(sort="patterns", reverse=True))[4]


def test_a_picture_shows_the_filter_and_the_age_of_the_look() -> None:
    line = picture(View(wanted="client 3"), about="seen 2 s ago", typing=True)[3]
    assert line == "clients: 1   filter: client 3_   seen 2 s ago"


# -- ``sbus web`` as a program. ``tests/web/test_page.py`` has its page in a browser


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_address_of_the_page_is_printed_and_served(
    start: Start, bus: HubThread, path: str, number: signal.Signals
) -> None:
    process = start("sbuslib", "web", "-a", path)
    url = process.stdout.readline().decode()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/\n", url)
    base, token = url.rstrip("/\n").rsplit("/", 1)
    assert get(base, f"/{token}/").status == 200
    process.send_signal(number)
    assert process.wait(PATIENCE) == 0
    assert process.stderr.read() == b""
