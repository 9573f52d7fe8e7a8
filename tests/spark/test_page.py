"""Pages show hostile values as text, and load nothing."""

from __future__ import annotations

import base64
import grp
import hashlib
import os
import pwd
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web.conftest import browser as browser
from web.conftest import screenshots as screenshots

from sbuslib.spark.page import Page, duration, figure, heading, human, shown, table
from sbuslib.spark.plots import bars, plot

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


def make(values: list[bytes]) -> str:
    """A page with every kind of part."""
    with plot(columns=2) as (axes, picture):
        bars(axes[0], values, range(len(values)))
        axes[1].plot([1, 2], [3, 4], label=shown(values[0]))
        axes[1].set_title(shown(values[0]))
        axes[1].legend()
    page = Page(shown(values[0]), shown(values[-1]))
    page.tile(shown(values[0]), shown(values[0]), bad=True)
    rows = [(value, [value, value], number) for number, value in enumerate(values)]
    columns = table(rows, ("key", "text"), ("others", "text"), ("messages", "count"), more=True, barred=2)
    page.section(shown(values[0]), shown(values[0]), figure(picture), heading(shown(values[0])), columns)
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
    assert [human(n) for n in (0, 999, 9_999, 10_000, 123_456, 10**10)] == [
        "0",
        "999",
        "9,999",
        "10.0 k",
        "123 k",
        "10.0 G",
    ]
    assert [human(n, "B") for n in (0, 1_023, 1_024, 10**9)] == ["0 B", "1,023 B", "1.00 KiB", "954 MiB"]
    assert [duration(n) for n in (0, 1_000, 25_000_000, 10**10)] == ["0 ns", "1.00 µs", "25.0 ms", "10.0 s"]


def test_users_and_groups_are_named() -> None:
    user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(os.getgid())
    html = table([[user.pw_uid, group.gr_gid], [2**31, None], [2**70, -5]], ("user", "user"), ("group", "group"))
    assert f">{user.pw_uid} {user.pw_name}</td>" in html
    assert f">{group.gr_gid} {group.gr_name}</td>" in html
    assert ">2147483648</td>" in html
    assert f">{2**70}</td>" in html


def test_a_table_without_rows_says_none() -> None:
    assert "<em>none</em>" in table([], ("key", "text"))


def visible(browser: Any) -> list[str]:
    """The first cells of the rows that a reader sees."""
    cells = browser.find_elements("css selector", "tbody tr:not([hidden]) td:first-child")
    return [cell.text for cell in cells]


def test_a_reader_searches_sorts_and_zooms(browser: Any, screenshots: str, tmp_path: Path) -> None:
    page = Page("Machines", "A page with a table of sixty rows and a picture.")
    page.tile("60", "machines")
    with plot() as (axes, picture):
        bars(axes, ["a", "b"], [2, 1])
    rows = [(b"machine/%d" % number, 1_000 * number, 60 - number) for number in range(60)]
    columns = table(rows, ("key", "text"), ("messages", "count"), ("payloads", "bytes"), barred=1)
    page.section("All", "Of a test.", figure(picture), columns)
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

    svg = browser.find_element("css selector", "figure svg")
    whole = svg.get_dom_attribute("viewBox")
    nearer, _, reset = browser.find_elements("css selector", ".zoom button")
    browser.save_screenshot(f"{screenshots}/report.png")
    browser.execute_script("arguments[0].click()", nearer)
    assert svg.get_dom_attribute("viewBox") != whole
    browser.execute_script("arguments[0].click()", reset)
    assert [*map(float, svg.get_dom_attribute("viewBox").split())] == pytest.approx([*map(float, whole.split())])
