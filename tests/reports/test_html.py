"""Pages show hostile values as text, and load nothing."""

from __future__ import annotations

import base64
import grp
import hashlib
import os
import pwd
import re
import sys
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from web.conftest import browser as browser
from web.conftest import screenshots as screenshots

from sbuslib.errors import StateError
from sbuslib.reports.curves import curves
from sbuslib.reports.exports import Table
from sbuslib.reports.html import HtmlPage, check_page, duration, heading, human, show, shown

NASTY = [
    b"<script>alert(1)</script>",
    b"\"><img src=x onerror='alert(1)'>",
    b"</style></title></svg></code><script>",
    b"&lt;b&gt;&amp;",
    b"$\\frac{1}{0$ _^{",
    b"$$$",
    b"]]><!--",
    b"\xff\xfe\0\x1b[31m",
    "\u202eevil\u2066 日本 🐍".encode(),
    b"\xed\xa0\x80",
    b"x" * 5_000,
    b"%s {0} {x}",
    b"",
]


class Tags(HTMLParser):
    """The elements of a page, with their attributes, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.scripts += tag == "script"
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    tags.close()
    return tags


def table(rows: list[Any], *columns: tuple[str, Any], barred: int | None = None) -> Markup:
    """Rows with these headings and kinds, as a part of a section."""
    shown_columns = [(str(number), title, kind) for number, (title, kind) in enumerate(columns)]
    whole = Table({name: "" for name, _, _ in shown_columns}, rows)
    return show(whole, *shown_columns, barred=None if barred is None else str(barred))


def make(values: list[bytes]) -> str:
    """A page with every kind of part."""
    start = datetime(2026, 3, 1, tzinfo=UTC)
    hubs = [(shown(value), start, 1, 2, None, 1) for value in values[:2]]
    columns = dict.fromkeys(("hub", "start", "messages", "bytes", "lost", "unknown"), "")
    pictures = curves(Table(columns, hubs), 1)
    page = HtmlPage(shown(values[0]), shown(values[-1]), shown(values[0]))
    page.tile(shown(values[0]), shown(values[0]), bad=True)
    rows = [(value, [value, value], number) for number, value in enumerate(values)]
    listed = table(rows, ("key", "text"), ("others", "text"), ("messages", "count"), barred=2)
    page.section(shown(values[0]), shown(values[0]), *pictures, heading(shown(values[0])), listed)
    return page.html()


def test_hostile_values_stay_text() -> None:
    plain, nasty = parsed(make([b"a", b"b", b""])), parsed(make(NASTY))
    assert nasty.tags == plain.tags
    assert nasty.attributes - plain.attributes <= {"title"}, "of a text that was cut"
    assert nasty.scripts == plain.scripts == 1
    assert not nasty.tags & {"img", "iframe", "object", "link"}
    assert not {name for name in nasty.attributes if name.startswith("on")}
    for value in NASTY[:5]:
        assert shown(value) in nasty.text
    assert "\\xff\\xfe\\x00\\x1b[31m" in nasty.text
    assert "\u202e" not in nasty.text


def test_a_page_loads_nothing() -> None:
    html = make([b"a", b"b"])
    assert "default-src 'none'" in html
    (script,) = re.findall(r"<script>(.*)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html, "the browser runs this script, and no other"
    addresses = set(re.findall(r"(?:href|src)=\"([^\"]*)\"", html)) | set(re.findall(r"url\(([^)]*)\)", html))
    assert all(address.startswith("#") for address in addresses), addresses
    assert "@import" not in html


@given(st.binary(max_size=60) | st.text(max_size=60) | st.lists(st.binary(max_size=20), max_size=3))
def test_any_value_can_be_shown(value: object) -> None:
    plain, tags = (
        parsed(table([["x", 1]], ("a", "text"), ("b", "count"))),
        parsed(table([[value, 1], ["x", value]], ("a", "text"), ("b", "count"))),
    )
    assert tags.tags - plain.tags <= {"em"}
    assert shown(value).isprintable()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        ([], "\N{EN DASH}"),
        ([b"", b"a"], '"", a'),
        (1234567, "1,234,567"),
        (0.25, "0.25"),
        (123456.7, "123,457"),
        (True, "yes"),
        (datetime(2026, 3, 1, 12, tzinfo=UTC), "2026-03-01 12:00:00"),
    ],
)
def test_how_values_are_shown(value: object, text: str) -> None:
    assert shown(value) == text


def test_figures_are_short() -> None:
    numbers = {0: "0", 999: "999", 9_999: "9,999", 10_000: "10.0 k", 123_456: "123 k", 10**10: "10.0 G", 0.25: "0.25"}
    assert {n: human(n) for n in numbers} == numbers
    assert [human(n, "B") for n in (0, 1_023, 1_024, 10**9)] == ["0 B", "1,023 B", "1.00 KiB", "954 MiB"]
    assert [duration(n) for n in (0.025, 10, 7_199, 90_000, 1e6)] == ["25 ms", "10 s", "120 min", "25 h", "12 days"]


def test_only_so_many_rows_are_shown() -> None:
    whole = Table({"n": "int64", "key": "binary"}, [(n, b"%d" % n) for n in range(501)])
    html = show(whole, ("key", "key", "text"), ("n", "number", "count"), barred="n")
    assert "<code>499</code>" in html
    assert "<code>500</code>" not in html
    assert "Only the first 500 rows are shown." in html


def test_the_error_without_jinja_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(StateError, match=r"jinja2 is missing: pip install 'sbuslib\[report\]'"):
        check_page()


def test_users_and_groups_are_named() -> None:
    user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(os.getgid())
    html = table([[user.pw_uid, group.gr_gid], [2**31, None], [2**70, -5]], ("user", "user"), ("group", "group"))
    assert f">{user.pw_uid} {user.pw_name}</td>" in html
    assert f">{group.gr_gid} {group.gr_name}</td>" in html
    assert ">2147483648</td>" in html
    assert f">{2**70}</td>" in html


def visible(browser: Any) -> list[str]:
    """The first cells of the rows that a reader sees."""
    cells = browser.find_elements("css selector", "tbody tr:not([hidden]) td:first-child")
    return [cell.text for cell in cells]


def test_a_reader_searches_sorts_and_reads_a_curve(browser: Any, screenshots: str, tmp_path: Path) -> None:
    page = HtmlPage("Machines", "A page with a table of sixty rows and two curves.")
    page.tile("60", "machines")
    columns = dict.fromkeys(("hub", "start", "messages", "bytes", "lost", "unknown"), "")
    start = datetime(2026, 3, 1, 12, tzinfo=UTC)
    times = [("hub-1", start + timedelta(seconds=n), 10 + n, 500, 7 * (n == 3), 0) for n in range(10)]
    rows = [(b"machine/%d" % number, 1_000 * number, 60 - number) for number in range(60)]
    listed = table(rows, ("key", "text"), ("messages", "count"), ("payloads", "bytes"), barred=1)
    page.section("All", "Of a test.", *curves(Table(columns, times), 1), listed)
    path = tmp_path / "page.html"
    path.write_text(page.html(), encoding="utf-8")
    browser.get(path.as_uri())

    assert visible(browser) == [f"machine/{number}" for number in range(25)]
    fold = browser.find_element("css selector", ".tools button")
    fold.click()
    assert len(visible(browser)) == 60
    fold.click()
    messages = browser.find_elements("css selector", "th")[1]
    messages.click()
    assert visible(browser) == [f"machine/{number}" for number in range(59, 34, -1)], "by number, the largest first"
    messages.click()
    assert visible(browser)[:3] == ["machine/0", "machine/1", "machine/2"]
    browser.find_element("css selector", "input[type=search]").send_keys("E/5")
    assert visible(browser) == ["machine/5", *(f"machine/{number}" for number in range(50, 60))]
    assert "11 of 11 rows" in browser.find_element("css selector", ".tools").text

    browser.save_screenshot(f"{screenshots}/report.png")
    browser.execute_script(
        "const plot = document.querySelector('.plot'), box = plot.getBoundingClientRect();"
        "plot.dispatchEvent(new PointerEvent('pointermove', { clientX: box.x + box.width * 0.35 }));"
    )
    assert browser.find_element("css selector", "output").text == "2026-03-01 12:00:03 13 lost 7"


@pytest.mark.parametrize("width", [1_300, 390])
def test_no_column_and_no_bar_is_cut_off(browser: Any, screenshots: str, tmp_path: Path, width: int) -> None:
    """On a screen, and on a phone."""
    page = HtmlPage("Accounts", "A table of nine columns.")
    rows = [("link", "9f2c41d07a55e8b3 \N{RIGHTWARDS ARROW} a child", *[1_234_567] * 7)]
    names = ("published", "routed", "delivered", "waiting", "recorded", "lost", "unknown")
    numbers = [(name, "count") for name in names]
    page.section("All", "Of a test.", table(rows, ("what", "text"), ("name", "text"), *numbers, barred=2))
    path = tmp_path / "page.html"
    path.write_text(page.html(), encoding="utf-8")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    try:
        browser.get(path.as_uri())
        browser.save_screenshot(f"{screenshots}/report-{width}.png")
        seen = browser.execute_script(
            "return [...document.querySelectorAll('th, td, .bar')].map((one) => one.getBoundingClientRect())"
            ".map((box) => [box.left, box.right, box.width])"
        )
        assert len(seen) == 19
        assert all(0 < left < right <= width for left, right, _ in seen), seen
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        wide = browser.find_element("css selector", ".wide")
        assert browser.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", wide)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
