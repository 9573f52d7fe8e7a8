"""The drawings of the pages, as SVG: ``python docs/site/drawings.py`` writes them into ``docs/images``.

They are made of the code where that is possible (the floors, the table of flood control), and of the data here, which
``tests/docs/test_drawings.py`` plays with real hubs or holds against the code, else.
"""

from __future__ import annotations

import sys
from html import escape
from itertools import pairwise, product
from pathlib import Path

from sbuslib.tree.states import EVENTS, STATES, STEPS, LinkAction

ROOT = Path(__file__).resolve().parent.parent.parent
IMAGES = ROOT / "docs" / "images"

COLOURS = {
    "hub": ("#dbe7ff", "#3a66c4"),
    "client": ("#eef0f3", "#7a828e"),
    "good": ("#dff3e3", "#3c8a52"),
    "bad": ("#fde2df", "#b9473a"),
    "wait": ("#fff2cc", "#b08a1e"),
    "plain": ("#ffffff", "#7a828e"),
}
"""What a box is, with its colour and that of its frame."""

LINE = 17


class Drawing:
    """Boxes, arrows and words on a white ground, with places in pixels."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="13">\n'
            f"<title>{escape(title)}</title>\n"
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="#444"/></marker></defs>\n'
            f'<rect width="{width}" height="{height}" rx="6" fill="#fff"/>\n'
        )
        self._parts: list[str] = []

    def box(self, x: int, y: int, width: int, height: int, text: str, kind: str = "plain") -> None:
        """A box; a first line that begins with ``*`` is bold, lines in backticks are code."""
        fill, stroke = COLOURS[kind]
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}" stroke="{stroke}"/>'
        )
        lines = text.split("\n")
        top = y + height / 2 - (len(lines) - 1) * LINE / 2 + 4.5
        for number, line in enumerate(lines):
            self.words(x + width // 2, top + number * LINE, line, "middle")

    def words(self, x: float, y: float, text: str, anchor: str = "start", colour: str = "#222") -> None:
        """A line of text: bold if it begins with ``*``, as code if it stands in backticks."""
        style = ""
        if text.startswith("*"):
            text, style = text[1:], ' font-weight="600"'
        elif text.startswith("`"):
            text, style = text.strip("`"), ' font-family="ui-monospace, monospace" font-size="12"'
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}"{style}>{escape(text)}</text>'
        )

    def arrow(self, *points: tuple[int, int], text: str = "", dashed: bool = False, side: int = -1) -> None:
        """An arrow through points, with words beside its first piece: above or left of it, or with ``side=1`` not."""
        path = " ".join(f"{x},{y}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="#444"{dash} marker-end="url(#tip)"/>')
        if text:
            (x1, y1), (x2, y2) = points[:2]
            if abs(x2 - x1) >= abs(y2 - y1):
                self.words((x1 + x2) / 2, (y1 + y2) / 2 + (16 if side > 0 else -6), text, "middle", "#444")
            else:
                self.words((x1 + x2) / 2 + 8 * side, (y1 + y2) / 2 + 4, text, "start" if side > 0 else "end", "#444")

    def __str__(self) -> str:
        return self._head + "\n".join(self._parts) + "\n</svg>\n"


def bus() -> Drawing:
    """What a bus is, for the first screen of README."""
    drawing = Drawing("Processes of one machine publish and subscribe through a hub", 760, 232)
    drawing.box(10, 20, 170, 54, "*sensor\nuser alice", "client")
    drawing.box(10, 150, 170, 54, "*backup\nuser root", "client")
    drawing.box(300, 20, 160, 184, "", "hub")
    for y, line in ((52, "*hub"), (78, "`/run/sbus.socket`"), (112, "asks the kernel who"), (129, "each client is;")):
        drawing.words(380, y, line, "middle")
    drawing.words(380, 160, "a queue, a quota and", "middle")
    drawing.words(380, 177, "counts for each user", "middle")
    drawing.box(580, 20, 170, 46, "*display\n`room/*/temp`", "client")
    drawing.box(580, 89, 170, 46, "*recorder\neverything", "client")
    drawing.box(580, 158, 170, 46, "*slow reader\n`room/`", "client")
    drawing.arrow((180, 47), (298, 47), text="room/1/temp")
    drawing.arrow((180, 177), (298, 177), text="backup/done")
    drawing.arrow((460, 43), (578, 43), text="room/1/temp")
    drawing.arrow((460, 112), (578, 112), text="both")
    drawing.arrow((460, 181), (578, 181), text="waits, or is", dashed=True)
    drawing.words(519, 197, "lost and counted", "middle", "#444")
    return drawing


def floors(table: list[str], folders: set[str]) -> Drawing:
    """The floors of the code: the highest on top; an import goes down."""
    height = 34
    drawing = Drawing("The floors of the code: a module imports only from lower ones", 700, height * len(table) + 20)
    for number, names in enumerate(reversed(table)):
        y = 10 + number * height
        words = "  ·  ".join(f"{name}/" if name in folders else name for name in names.split())
        drawing.words(28, y + 20, str(len(table) - 1 - number), "middle", "#777")
        drawing.box(50, y, 600, height - 6, words, "hub" if "core" in names.split() else "plain")
    drawing.arrow((674, 14), (674, height * len(table) + 4))
    return drawing


def flood_control() -> Drawing:
    """The table of flood control as the states that a message for one receiver goes through."""
    from sbuslib.core.outbox import decide
    from sbuslib.wire.modes import HARD, SOFT

    kinds = {"keep": "good", "lose": "bad", "keep and hold the publisher": "wait", "lose and disconnect": "bad"}
    drawing = Drawing("Flood control: what becomes of a message for a receiver", 800, 378)
    drawing.box(10, 20, 150, 56, "*message\nfor a receiver", "client")
    drawing.box(230, 20, 190, 56, "*nothing waits,\nand the kernel takes it", "plain")
    drawing.box(520, 20, 270, 56, "*sent at once", "good")
    drawing.box(10, 136, 150, 56, "*the queue\nhas room", "plain")
    drawing.box(10, 268, 150, 56, "*the queue is full", "plain")
    drawing.arrow((160, 48), (228, 48))
    drawing.arrow((420, 48), (518, 48), text="yes")
    drawing.arrow((325, 76), (325, 106), (85, 106), (85, 134), text="no", side=1)
    drawing.arrow((85, 192), (85, 266), text="no room", side=1)
    for full, top in ((False, 108), (True, 252)):
        rows: dict[str, list[str]] = {}
        for soft, hard in product(SOFT, HARD):
            may, may_not = (decide(full, soft, hard, held).value for held in (True, False))
            told = may if may == may_not else f"{may} †"
            rows.setdefault(told, []).append(f"{soft}/{hard}")
        for number, (told, modes) in enumerate(rows.items()):
            y = top + number * 30
            drawing.arrow((160, (164, 296)[full]), (190, (164, 296)[full]), (190, y + 12), (220, y + 12))
            drawing.box(222, y, 308, 25, _modes(modes, SOFT, HARD), "plain")
            drawing.arrow((530, y + 12), (546, y + 12))
            drawing.box(548, y, 242, 25, told, kinds[told.removesuffix(" †")])
    drawing.words(
        10, 366, "† a receiver that may not hold this publisher: block acts as queue (soft) and as discard (hard)"
    )
    return drawing


def _modes(pairs: list[str], soft: tuple[str, ...], hard: tuple[str, ...]) -> str:
    """Pairs of modes in as few words as tell them."""
    softs = list(dict.fromkeys(pair.partition("/")[0] for pair in pairs))
    hards = list(dict.fromkeys(pair.partition("/")[2] for pair in pairs))
    if len(softs) * len(hards) == len(pairs):
        words = [f"soft {'/'.join(softs)}"]
        return ", ".join(words + ([f"hard {'/'.join(hards)}"] if len(hards) < len(hard) else []))
    whole = [one for one in softs if all(f"{one}/{other}" in pairs for other in hard)]
    rest = [pair for pair in pairs if pair.partition("/")[0] not in whole]
    return f"soft {'/'.join(whole)}; or {_modes(rest, soft, hard)}"


JOURNEY = [
    ("*publisher", "send(2)", "client"),
    ("*its turn?", "Scheduler.may_go", "hub"),
    ("*receive 64 packets", "Area.receive", "hub"),
    ("*who wants this key?", "routing.route", "hub"),
    ("*send from there", "InArea.send", "hub"),
    ("*receiver", "recv(2)", "client"),
]
"""The way of a packet that nothing stops: what happens, and which function does it."""

ASIDE = [
    (1, "*waits its turn", "Scheduler.postpone", "wait"),
    (3, "*a key that is new:", "Router.route", "hub"),
    (4, "*no room there:", "Outgoing._queue", "wait"),
]
"""What a packet goes through besides: at which step, what, and the function."""


def journey() -> Drawing:
    """One packet's journey."""
    width, gap = 166, 20
    drawing = Drawing("One packet's journey through a hub", 6 * width + 5 * gap + 70, 268)
    middle = [10 + number * (width + gap) + width // 2 for number in range(len(JOURNEY))]
    for (what, function, kind), x in zip(JOURNEY, middle, strict=True):
        drawing.box(x - width // 2, 30, width, 54, f"{what}\n`{function}`", kind)
    for left, right in pairwise(middle):
        drawing.arrow((left + width // 2, 57), (right - width // 2 - 2, 57))
    for step, what, function, kind in ASIDE:
        x = middle[step]
        drawing.box(x - width // 2 - 5, 130, width + 10, 54, f"{what}\n`{function}`", kind)
        drawing.arrow((x - 20, 84), (x - 20, 128))
        if step != 4:
            drawing.arrow((x + 20, 130), (x + 20, 86))
    x = middle[4]
    drawing.box(x - width // 2 - 5, 206, width + 10, 54, "*keep, lose or hold\n`outbox.decide`", "wait")
    drawing.arrow((x, 184), (x, 204))
    drawing.arrow((x + width // 2 + 5, 233), (middle[5], 233), (middle[5], 86))
    drawing.words(middle[5] + 8, 170, "`Outgoing._send_on`")
    drawing.words(middle[5] + 8, 187, "when it is writable")
    drawing.words(middle[1], 204, "one hub has one area: nothing", "middle", "#555")
    drawing.words(middle[1], 221, "yields or logs between receiving", "middle", "#555")
    drawing.words(middle[1], 238, "and the last use of a packet", "middle", "#555")
    return drawing


TREE = {"container": "host", "another": "host"}
"""The hubs of a tree, each with the hub above it."""

CLIENTS = [("host", "logger", "alarm/"), ("container", "lamp", "light/"), ("another", "phone", "light/")]
"""The clients in it: where each is, its name, and its pattern."""

PUBLISHER, BESIDE = "container", "another"
PUBLISHED = ["light/1", "alarm/fire", "noise/1"]
GOES_UP = ["light/1", "alarm/fire"]
GOES_DOWN = ["light/1"]
"""What is published at one hub, what of it goes up, and what goes down to the hub beside it."""


def tree() -> Drawing:
    """A tree of hubs, with what goes up and what stays."""
    drawing = Drawing("A tree of hubs: what goes up and what stays", 780, 318)
    drawing.box(290, 20, 200, 54, "*hub of the host", "hub")
    drawing.box(60, 150, 200, 54, "*hub of a container", "hub")
    drawing.box(520, 150, 200, 54, "*hub of another", "hub")
    drawing.box(570, 24, 180, 46, "*logger\nwants alarm/", "client")
    drawing.arrow((490, 47), (568, 47), text="alarm/fire")
    drawing.box(10, 254, 130, 46, "*publisher", "client")
    drawing.box(180, 254, 130, 46, "*lamp\nwants light/", "client")
    drawing.box(555, 254, 130, 46, "*phone\nwants light/", "client")
    drawing.arrow((75, 254), (75, 206))
    drawing.arrow((245, 206), (245, 252))
    drawing.arrow((620, 206), (620, 252))
    drawing.words(84, 226, f"{PUBLISHED[0]}, {PUBLISHED[1]},", colour="#444")
    drawing.words(84, 243, PUBLISHED[2], colour="#444")
    drawing.words(254, 234, "light/1", colour="#444")
    drawing.words(629, 234, "light/1", colour="#444")
    drawing.arrow((190, 150), (320, 76))
    drawing.words(234, 108, ", ".join(GOES_UP), "end", "#444")
    drawing.arrow((460, 76), (590, 150))
    drawing.words(536, 108, ", ".join(GOES_DOWN), colour="#444")
    drawing.words(272, 172, "noise/1 stays: nobody above wants it,", colour="#b9473a")
    drawing.words(272, 189, "and the hub above has said so", colour="#b9473a")
    return drawing


PIPELINE = ["journal record", "journal seal", "journal replay", "journal consume", "watch"]
"""The commands of ``sbus`` that the drawing of the journal names."""


def link() -> Drawing:
    """The states of the link to the hub above, and what each event does there: the table of the code."""
    line, gap, top = 18, 14, 16
    rows = [(state, [(event, *STEPS[state, event]) for event in EVENTS if (state, event) in STEPS]) for state in STATES]
    heights = [max(46, line * len(steps) + 10) for _, steps in rows]
    drawing = Drawing("The states of the link to the hub above", 900, 2 * top + sum(heights) + gap * (len(rows) - 1))
    y = top
    for (state, steps), height in zip(rows, heights, strict=True):
        kind = "good" if state == "open" else "bad" if state in ("away", "apart") else "hub"
        drawing.box(16, y, 300, height, f"*{state}\n{STATES[state]}", kind)
        first = y + height / 2 - (len(steps) - 1) * line / 2 + 4.5
        for number, (event, action, following) in enumerate(steps):
            at = first + number * line
            drawing.words(330, at, EVENTS[event])
            drawing.words(660, at, f"{action.value}, then" if action is not LinkAction.NOTHING else "then")
            drawing.words(884, at, f"*{following}", "end")
        y += height + gap
    return drawing


def journal() -> Drawing:
    """The journal's way to a report."""
    drawing = Drawing("From a bus through a journal to a report", 800, 236)
    record, seal, replay, consume, watch = (f"sbus {name}" for name in PIPELINE)
    drawing.box(10, 20, 120, 60, "*hub", "hub")
    drawing.box(190, 20, 150, 60, "*journal\nsegments on disk", "good")
    drawing.box(450, 20, 140, 60, "*Parquet files\neach row once", "good")
    drawing.box(670, 20, 120, 60, "*report\na page, tables", "client")
    drawing.arrow((130, 50), (188, 50))
    drawing.words(130, 14, f"`{record}`")
    drawing.arrow((340, 50), (448, 50))
    drawing.words(394, 14, f"`{seal}`", "middle")
    drawing.arrow((590, 50), (668, 50))
    drawing.words(629, 14, "`sbus report`", "middle")
    for number, (command, what) in enumerate(
        ((replay, "onto a bus again"), (consume, "row by row, where one stopped"), (watch, "rates, alerts on the bus"))
    ):
        y = 112 + 42 * number
        drawing.arrow((265, 80), (265, y + 16), (338, y + 16))
        drawing.words(346, y + 13, f"`{command}`")
        drawing.words(346, y + 29, what, colour="#555")
    drawing.arrow((520, 80), (520, 104))
    drawing.words(532, 104, "`sbuslib.read`")
    drawing.words(532, 120, "any engine; unsealed rows, too", colour="#555")
    drawing.words(10, 112, "secrets are left out;", colour="#555")
    drawing.words(10, 129, "what was lost is a gap row,", colour="#555")
    drawing.words(10, 146, "with its count and cause,", colour="#555")
    drawing.words(10, 163, "all the way to the report", colour="#555")
    return drawing


def made(table: list[str]) -> dict[str, Drawing]:
    """All drawings, by the names of their files; ``table`` has the floors."""
    return {
        "bus": bus(),
        "floors": floors(table, {path.name for path in (ROOT / "sbuslib").iterdir() if path.is_dir()}),
        "flood-control": flood_control(),
        "journal": journal(),
        "journey": journey(),
        "link": link(),
        "tree": tree(),
    }


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
    from test_imports import FLOORS

    for name, drawing in made(FLOORS).items():
        (IMAGES / f"{name}.svg").write_text(str(drawing), "utf-8")
