"""``sbus top`` and its screen on a pseudo-terminal, and ``sbus web``."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import msgspec
import pytest
from cli.conftest import Program, Run, Start
from support import PATIENCE, HubThread
from web.http import get

from sbuslib.blocking import Client
from sbuslib.cli.tables import View
from sbuslib.cli.top import to_json, to_lines
from sbuslib.monitor.rates import Rates

# -- ``sbus top`` as a program: its tables, and its live screen on a pseudo-terminal


class Terminal:
    """A pseudo-terminal of 12 lines, and what is on its screen."""

    def __init__(self) -> None:
        self.fd, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (12, 160))
        self._received = ""

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.slave)

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def screen(self) -> list[str]:
        """The lines of the last picture that was drawn whole, without colours."""
        frames = [frame for frame in self._received.split("\x1b[H") if "q: quit" in frame]
        lines = frames[-1].split("\r\n") if frames else [""] * 12
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
def top(start: Start, terminal: Terminal, path: str) -> Program:
    """``sbus top`` on the terminal, of a hub that is there."""
    return start(
        "sbuslib", "top", "-a", path, "-i", "0.05", stdin=terminal.slave, stdout=terminal.slave, start_new_session=True
    )


def test_tables_are_printed_where_there_is_no_terminal(run: Run, bus: HubThread, path: str) -> None:
    with Client(path) as one, Client(path):
        one.subscribe(b"a", b"b", b"c")
        for option, patterns in (("--sort=patterns", "3 0 0"), ("--reverse", "0 0 3"), ("--filter=nobody", "")):
            done = run("sbuslib", "top", "-a", path, "-i", "0.01", "--sort", "patterns", option)
            assert (done.returncode, done.stderr) == (0, "")
            about, titles, *rows = done.stdout.splitlines()
            assert about.startswith(f"{path}  3 clients, 3 patterns  ")
            assert titles.split()[:6] == ["CLIENT", "USER", "PROGRAM", "PUBLISHED/S", "DELIVERED/S", "WAITING"]
            assert all(row.startswith(f"!/cred/{os.getgid()}/{os.getuid()}/") for row in rows)
            assert " ".join(row.split()[8] for row in rows) == patterns


@pytest.mark.parametrize(("kind", "field"), [("clients", "who"), ("users", "user"), ("links", "name")])
def test_json_is_an_object_a_line(run: Run, bus: HubThread, path: str, kind: str, field: str) -> None:
    done = run("sbuslib", "top", "-a", path, "--json", "--by", kind, "-n", "2", "-i", "0.01")
    assert (done.returncode, done.stderr) == (0, "")
    for line in done.stdout.splitlines():
        told = json.loads(line)
        assert told["hub"]["clients"] == 1
        assert all(field in row for row in told[kind])
    assert len(done.stdout.splitlines()) == 2


def test_texts_of_a_hub_cannot_steer_the_terminal(bus: HubThread, path: str) -> None:
    hostile, shown = "\x1b[2J\n", "\\x1b[2J\\n"
    with Client(path) as client:
        hub = client.hub.statistics()
    client_row = msgspec.structs.replace(hub.per_client[0], credentials=hostile)
    look = Rates().look(0.0, hostile, hub, [client_row], [])
    about, _, row = to_lines(look, View())
    assert about.startswith(shown)
    assert row.startswith(shown)
    assert "\x1b" not in about + row + to_json(look, View())


def shows(text: str, screen: list[str]) -> bool:
    return text in screen[1]


def test_keys_change_what_the_screen_shows(bus: HubThread, path: str, terminal: Terminal, top: Program) -> None:
    with Client(path) as client, ExitStack() as more:
        client.subscribe(b"a", b"b")
        for keys, shown in (
            ("", "clients: 2, sorted by PUBLISHED/S "),
            (">", "sorted by DELIVERED/S "),
            ("<<<\x1b[D", "sorted by CLIENT "),  # an arrow does the same
            ("r", "sorted by CLIENT, reversed "),
            ("ru", "users: 1, sorted by PUBLISHED/S "),
            ("\t", "links: 0, sorted by UP/S "),
            ("c", "clients: 2, sorted by "),
        ):
            terminal.press(keys)
            terminal.see(partial(shows, shown))
        assert terminal.screen()[0].startswith(f"{path}  2 clients, 2 patterns  ")
        assert terminal.screen()[2].startswith("CLIENT ")
        assert any(line.startswith(f"!/cred/{os.getgid()}/") for line in terminal.screen()[3:])
        for _ in range(20):
            more.enter_context(Client(path))
        terminal.see(partial(shows, "clients: 22, "))
        assert len(terminal.screen()) == 12, "as many as the terminal has"
        terminal.press("q")
        assert top.wait(PATIENCE) == 0


def test_the_screen_tells_that_the_hub_went_away_and_came_back(
    bus: HubThread, path: str, terminal: Terminal, top: Program
) -> None:
    terminal.see(lambda screen: "clients: 1" in screen[1])
    bus.stop()
    terminal.see(lambda screen: "nothing from the hub since " in screen[1])
    with HubThread(path):
        terminal.see(lambda screen: "seen at " in screen[1])
        top.send_signal(signal.SIGTERM)
        assert top.wait(PATIENCE) == 0
    assert termios.tcgetattr(terminal.slave)[3] & termios.ECHO  # the terminal is as it was


def test_the_screen_does_not_begin_without_a_hub(path: str, terminal: Terminal, top: Program) -> None:
    assert top.wait(PATIENCE) == 1
    assert top.stderr.read().startswith(f"sbus: no hub at {path}: No such file".encode())


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
