"""Fixtures: a real browser."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
WORDS = (
    "headless=new",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "window-size=1300,1200",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium without a screen, driven by Selenium."""
    webdriver = pytest.importorskip("selenium.webdriver")
    if BROWSER is None or DRIVER is None:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = BROWSER
        for word in WORDS:
            options.add_argument(f"--{word}")
        options.add_argument(f"--user-data-dir={profile}")
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        driver.set_page_load_timeout(60)
        try:
            yield driver
        finally:
            driver.quit()


@pytest.fixture
def screenshots() -> str:
    """Where pictures of the page go: the folder that SBUS_SCREENSHOTS names, else a temporary one."""
    place = os.environ.get("SBUS_SCREENSHOTS") or os.path.join(tempfile.gettempdir(), "sbus-screenshots")
    os.makedirs(place, exist_ok=True)
    return place
