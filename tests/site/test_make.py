"""The site: made without a warning, readable at any width in light and dark, searchable without a network.

That every page is in a table of contents, Sphinx itself says.

tox makes it in an environment of its own, ``docs``, where ``SBUS_SITE`` names the folder that it is left in.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support import PATIENCE, ROOT
from web.conftest import browser as browser
from web.conftest import screenshots as screenshots

import sbuslib

pytest.importorskip("sphinx", reason="the site is made in tox's environment docs")

PICTURED = ["index", "tutorial", "flood-control", "reference/client", "commands/sbus-messages"]
WIDE, NARROW = 1300, 400


@pytest.fixture(scope="module")
def site() -> Iterator[Path]:
    """The folder of the site, which is made once."""
    with TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("SBUS_SITE") or temporary) / "site"
        made = subprocess.run(
            [sys.executable, str(ROOT / "docs" / "site" / "make.py"), str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (made.returncode, made.stderr) == (0, "")
        yield folder / "html"


def pages(site: Path) -> dict[str, str]:
    return {str(path.relative_to(site)): path.read_text("utf-8") for path in site.rglob("*.html")}


def test_every_name_of_the_package_is_in_the_reference(site: Path) -> None:
    found = "".join(text for name, text in pages(site).items() if name.startswith("reference/"))
    for name in sbuslib.__all__:
        if callable(getattr(sbuslib, name)) and name != "Limits":  # which has a page of its own
            assert f'id="sbuslib.{name}"' in found, name


def test_no_page_needs_a_network(site: Path) -> None:
    for name, text in pages(site).items():
        fetched = re.findall(r'<(?:script|img|link)\b[^>]*\b(?:src|href)="(\w+:)?//[^"]*"', text)
        assert fetched == [], name


def open_page(browser: Any, site: Path, page: str, width: int = WIDE, theme: str = "light") -> None:
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(f"file://{site}/{page}")


def test_search_works_from_files(browser: Any, site: Path) -> None:
    open_page(browser, site, "search.html?q=recvmmsg")
    deadline = time.monotonic() + PATIENCE
    while not (found := browser.find_elements("css selector", "#search-results li a")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "Architecture" in [link.text for link in found]


@pytest.mark.parametrize("page", PICTURED)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_page_fits_the_window(browser: Any, site: Path, screenshots: str, page: str, theme: str, width: int) -> None:
    """Only tables and blocks of code scroll sideways, each by itself."""
    open_page(browser, site, f"{page}.html", width, theme)
    browser.save_screenshot(os.path.join(screenshots, f"site-{page.replace('/', '-')}-{width}-{theme}.png"))
    shown, there = browser.execute_script(
        "const root = document.documentElement; return [root.clientWidth, root.scrollWidth]"
    )
    assert there <= shown
    light = browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (theme == "light")
