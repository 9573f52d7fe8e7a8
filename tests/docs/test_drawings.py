"""The drawings: those on the pages are what the code gives, and what they tell is so."""

from __future__ import annotations

from xml.etree import ElementTree

import drawings
import pytest
from docs.pages import DOCS, PAGES, text_of
from support import PATIENCE, eventually
from test_imports import FLOORS
from worlds import World

from sbuslib.cli import main

IMAGES = DOCS / "images"


def made() -> dict[str, drawings.Drawing]:
    return drawings.made(FLOORS)


def test_the_drawings_are_what_the_code_gives() -> None:
    """Else: ``python docs/site/drawings.py`` writes them anew."""
    assert {path.stem: path.read_text("utf-8") for path in IMAGES.glob("*.svg")} == {
        name: str(drawing) for name, drawing in made().items()
    }


@pytest.mark.parametrize("name", made())
def test_a_drawing_is_on_a_page_and_has_a_title(name: str) -> None:
    assert any(f"images/{name}.svg)" in text_of(page) for page in PAGES)
    root = ElementTree.fromstring(str(made()[name]))
    assert root.find("{http://www.w3.org/2000/svg}title") is not None


def test_the_functions_of_the_journey_are_told_on_the_page() -> None:
    """Which is held against the code, too."""
    functions = [function for _, function, _ in drawings.JOURNEY] + [one for _, _, one, _ in drawings.ASIDE]
    for function in functions:
        assert function.endswith("(2)") or f"`{function}`" in text_of(DOCS / "architecture.md"), function


def test_the_commands_of_the_journal_are_there() -> None:
    assert {*drawings.PIPELINE} <= main.COMMANDS.keys()


def test_the_tree_passes_on_what_the_drawing_shows(world: World) -> None:
    for name in ["host", *drawings.TREE]:
        world.hub(name)
    for below, above in drawings.TREE.items():
        world.relay(below, above)
    clients = {name: world.client(hub) for hub, name, _ in drawings.CLIENTS}
    for _, name, pattern in drawings.CLIENTS:
        clients[name].subscribe(pattern.encode())
        clients[name].sync("tree")
    with world.client(drawings.PUBLISHER) as publisher:
        for key in drawings.PUBLISHED:
            publisher.publish(key.encode())
        publisher.sync("tree")
    for _, name, pattern in drawings.CLIENTS:
        wanted = [key for key in drawings.PUBLISHED if key.startswith(pattern)]
        assert [clients[name].receive(timeout=PATIENCE).key.decode() for _ in wanted] == wanted
    up, down = world.relays[drawings.PUBLISHER], world.relays[drawings.BESIDE]
    eventually(lambda: up.statistics().up == len(drawings.GOES_UP))
    assert down.statistics().down == len(drawings.GOES_DOWN)
    assert set(drawings.PUBLISHED) - set(drawings.GOES_UP) == {"noise/1"}, "which the drawing says stays"
