"""The screen of ``sbus top``: its keys and its picture. ``test_top.py`` has it on a terminal."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

import pytest

from sbuslib.blocking import Client
from sbuslib.cli.tables import View
from sbuslib.errors import NoHubError
from sbuslib.rates import Look

pytest.importorskip("rich")

from rich.console import Console

from sbuslib.cli.screen import Screen, draw

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


def test_keys_after_a_slash_are_a_filter(screen: Screen) -> None:
    for key in ("/", "q", "u", "x", "\x7f", "\r"):
        screen.press(key)
    assert (screen.view.wanted, screen.view.kind) == ("qu", "clients")
    screen.press("u")
    assert screen.view.kind == "users"
    for key in ("/", "z", "\x1b"):
        screen.press(key)
    assert screen.view.wanted == ""


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
