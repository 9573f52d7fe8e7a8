"""The drawings that are made of the code, as SVG: ``python docs/site/drawings.py`` writes them into ``docs/images``.

Those are the floors, and the states of the link to the parent. The others there are drawn by hand.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

from sbuslib.tree.states import EVENTS, STATES, STEPS, LinkAction

ROOT = Path(__file__).resolve().parent.parent.parent
IMAGES = ROOT / "docs" / "images"

COLOURS = {
    "hub": ("#dbe7ff", "#3a66c4"),
    "good": ("#dff3e3", "#3c8a52"),
    "bad": ("#fde2df", "#b9473a"),
    "plain": ("#ffffff", "#7a828e"),
}
"""What a box is, with its colour and that of its frame."""


class Drawing:
    """Boxes and words on a white ground, with places in pixels."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="13">\n'
            f"<title>{escape(title)}</title>\n"
            f'<rect width="{width}" height="{height}" rx="6" fill="#fff"/>'
        ]

    def box(self, x: int, y: int, width: int, height: int, text: str, kind: str = "plain") -> None:
        """A box with its lines of text in the middle."""
        fill, stroke = COLOURS[kind]
        place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
        self._parts.append(f'<rect {place} rx="5" fill="{fill}" stroke="{stroke}"/>')
        lines = text.split("\n")
        for number, line in enumerate(lines):
            self.words(x + width // 2, y + height / 2 + 4.5 + 17 * (number - (len(lines) - 1) / 2), line, "middle")

    def words(self, x: float, y: float, text: str, anchor: str = "start") -> None:
        """A line of text; bold if it begins with ``*``."""
        weight = ' font-weight="600"' if text.startswith("*") else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="#222"{weight}>{escape(text.lstrip("*"))}</text>'
        )

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>\n"])


def floors(table: list[str]) -> Drawing:
    """The floors of the code, the highest on top."""
    places = ROOT / "sbuslib"
    drawing = Drawing("The floors of the code: a module imports only from lower ones", 660, 34 * len(table) + 20)
    for number, names in enumerate(reversed(table)):
        y = 10 + number * 34
        paths = [name.replace(".", "/") for name in names.split()]
        words = "  ·  ".join(f"{path}/" if (places / path).is_dir() else path for path in paths)
        drawing.words(28, y + 20, str(len(table) - 1 - number), "middle")
        drawing.box(50, y, 600, 28, words, "hub" if "core" in names.split() else "plain")
    return drawing


def link() -> Drawing:
    """The states of the link to the parent, and what each event does there: the table of the code."""
    line, gap, top = 18, 14, 16
    rows = [(state, [(event, *STEPS[state, event]) for event in EVENTS if (state, event) in STEPS]) for state in STATES]
    heights = [max(46, line * len(steps) + 10) for _, steps in rows]
    drawing = Drawing("The states of the link to the parent", 1080, 2 * top + sum(heights) + gap * (len(rows) - 1))
    y = top
    for (state, steps), height in zip(rows, heights, strict=True):
        kind = "good" if state == "open" else "bad" if state in ("away", "apart") else "hub"
        drawing.box(16, y, 300, height, f"*{state}\n{STATES[state]}", kind)
        first = y + height / 2 - (len(steps) - 1) * line / 2 + 4.5
        for number, (event, action, following) in enumerate(steps):
            at = first + number * line
            drawing.words(330, at, EVENTS[event])
            drawing.words(735, at, f"{action.value}, then" if action is not LinkAction.NOTHING else "then")
            drawing.words(1064, at, f"*{following}", "end")
        y += height + gap
    return drawing


def made(table: list[str]) -> dict[str, str]:
    """Both, by the names of their files; ``table`` has the floors."""
    return {"floors": str(floors(table)), "link": str(link())}


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
    from test_imports import FLOORS

    for name, drawing in made(FLOORS).items():
        (IMAGES / f"{name}.svg").write_text(drawing, "utf-8")
