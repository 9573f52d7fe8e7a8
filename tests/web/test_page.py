"""The live page in a real browser, served by the real command."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import gevent
import pytest
from support import PATIENCE
from web.http import get

from sbuslib import blocking
from sbuslib.web import Page

Start = Callable[..., "subprocess.Popen[bytes]"]
Serve = Callable[..., str]

HOSTILE = b"evil/<script>document.title='taken'</script>\n\x1b[31m\xff" + b"k" * 4_000


def see(browser: Any, what: Callable[[], object]) -> None:
    """Wait until the page shows something."""
    while not what():
        time.sleep(0.02)


def text(browser: Any, name: str) -> str:
    return str(browser.find_element("id", name).text)


def texts(browser: Any, selector: str) -> list[str]:
    """The text of each such element, all of one instant: the page makes them anew all the time."""
    script = "return [...document.querySelectorAll(arguments[0])].map((element) => element.innerText)"
    return [str(one) for one in browser.execute_script(script, selector)]


def tile(browser: Any, name: str) -> int:
    """The number over this name."""
    tiles = [one.split("\n") for one in texts(browser, ".tile")]
    return next((int(number.replace(",", "")) for number, label in tiles if label == name), -1)


def waiting(browser: Any) -> list[int]:
    """How many messages wait for each client."""
    return [int(cell.replace(",", "")) for cell in texts(browser, "#clients tbody td:nth-child(2)")]


def serve_hub(start: Start, address: str, *options: str) -> subprocess.Popen[bytes]:
    hub = start("sbuslib", "hub", "-a", address, *options)
    assert hub.stderr is not None
    assert b"listening" in hub.stderr.readline()
    return hub


@pytest.fixture
def serve(start: Start, address: str) -> Serve:
    """Serve the page about a hub. Returns its address."""

    def run(hub: str = address) -> str:
        page = start("sbuslib", "web", "-a", hub)
        assert page.stdout is not None
        return page.stdout.readline().decode().strip()

    return run


@pytest.fixture
def address(folder: str) -> str:
    return os.path.join(folder, "bus")


def test_clients_appear_the_busiest_first_and_the_filter_finds_the_others(
    browser: Any, start: Start, serve: Serve, address: str, screenshots: str
) -> None:
    serve_hub(start, address)
    browser.get(serve())
    see(browser, lambda: text(browser, "state") == "connected")
    see(browser, lambda: tile(browser, "clients") == 1)  # the page; for a moment it has a second client, for the tree
    with ExitStack() as stack:
        clients = [stack.enter_context(blocking.Client(address)) for _ in range(40)]
        clients[0].subscribe("room/")
        for _ in range(2_000):
            clients[1].publish("room/1", b"x" * 1_000)
        see(browser, lambda: tile(browser, "clients") == 41 and max(waiting(browser), default=0) > 100)
        assert tile(browser, "waiting") > 100
        assert len(texts(browser, "#clients tbody tr")) == 10
        assert waiting(browser)[0] > 100
        assert "the filter shows others" in text(browser, "shown")
        legend = texts(browser, ".u-legend .u-value")
        assert legend == ["--"] * 4, "the legend tells values of the time under the pointer alone"
        browser.save_screenshot(os.path.join(screenshots, "page.png"))

        browser.find_element("id", "filter").send_keys("cred")
        see(browser, lambda: len(waiting(browser)) == 41)
        browser.find_element("id", "filter").clear()
        with_phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", with_phone)
        try:
            see(browser, lambda: browser.execute_script("return innerWidth") == 390)
            assert [one.split("\n")[1] for one in texts(browser, ".tile")][:2] == ["waiting", "lost in all"]
            right = "return document.querySelector('#clients th[data-column=lost]').getBoundingClientRect().right"
            see(browser, lambda: browser.execute_script(right) <= 390)
            browser.save_screenshot(os.path.join(screenshots, "phone.png"))
        finally:
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    see(browser, lambda: tile(browser, "clients") == 1)


def test_hostile_keys_and_payloads_show_as_text(
    browser: Any, start: Start, serve: Serve, address: str, screenshots: str
) -> None:
    serve_hub(start, address)
    browser.get(serve())
    see(browser, lambda: text(browser, "state") == "connected")
    browser.find_element("id", "pattern").send_keys("evil/")
    browser.find_element("id", "follow").click()
    see(browser, lambda: text(browser, "tail-state") == "following")
    with blocking.Client(address) as publisher:
        publisher.publish(HOSTILE, b"<img src=x onerror=\"document.title='taken'\">")
    see(browser, lambda: texts(browser, "#messages .key"))
    (key,) = texts(browser, "#messages .key")
    assert key.startswith("evil/<script>document.title='taken'</script>\\n\\x1b[31m\\xffkkk")
    assert len(key) > 4_000
    assert texts(browser, "#messages .payload")[0].startswith("<img src=x")
    assert browser.find_elements("css selector", "#messages script, #messages img") == []
    assert browser.title == "sbus"
    browser.save_screenshot(os.path.join(screenshots, "hostile.png"))


def test_the_page_says_when_the_hub_is_away_and_goes_on_when_it_is_back(
    browser: Any, start: Start, serve: Serve, address: str
) -> None:
    hub = serve_hub(start, address)
    browser.get(serve())
    see(browser, lambda: text(browser, "state") == "connected")
    hub.kill()
    hub.wait()
    see(browser, lambda: "no hub" in text(browser, "state"))
    assert "bad" in browser.find_element("id", "state").get_attribute("class")
    serve_hub(start, address, "-r")
    see(browser, lambda: text(browser, "state") == "connected")


def test_names_of_hubs_side_by_side_are_whole_in_a_wide_font(
    browser: Any, start: Start, serve: Serve, address: str
) -> None:
    serve_hub(start, address)
    for number in range(3):
        start("sbuslib.cli.relay", "--upstream", address, "--listen", f"{address}-{number}-with-a-long-name")
    browser.get(serve())
    browser.execute_script("document.styleSheets[0].insertRule('#tree text { font: 20px monospace !important }')")

    def fit() -> bool:
        """Whether each text ends before the next begins, on the line of the three hubs and at the edge."""
        boxes = browser.execute_script(
            "return [...document.querySelectorAll('#tree g.good text:not(.soft)')].map((text) => {"
            "const box = text.getBBox(); return [box.x, box.x + box.width]; })"
        )
        edge = browser.execute_script("return document.getElementById('tree').viewBox.baseVal.width")
        starts = [*[start for start, _ in sorted(boxes)][1:], edge]
        return len(boxes) == 3 and all(end <= limit for (_, end), limit in zip(sorted(boxes), starts, strict=True))

    see(browser, fit)


def test_the_link_to_the_hub_above_goes_red_when_that_dies_and_green_again(
    browser: Any, start: Start, serve: Serve, address: str, folder: str, screenshots: str
) -> None:
    above = os.path.join(folder, "above")
    root = serve_hub(start, above)
    below = start("sbuslib.cli.relay", "--upstream", above, "--listen", address)
    slave = start("sbuslib.cli.relay", "--upstream", address, "--listen", os.path.join(folder, "below"))
    while not os.path.exists(address):
        assert below.poll() is None
        time.sleep(0.01)
    browser.get(serve())

    def links() -> list[str]:
        script = "return [...document.querySelectorAll('#tree g')].map((link) => link.getAttribute('class'))"
        return [str(one) for one in browser.execute_script(script)]

    see(browser, lambda: links() == ["good", "good"])
    leaf = start(
        "sbuslib.cli.relay", "--upstream", os.path.join(folder, "below"), "--listen", os.path.join(folder, "leaf")
    )
    see(browser, lambda: links() == ["good", "good", "good"])
    root.kill()
    root.wait()
    see(browser, lambda: links() == ["bad", "good", "good"])
    browser.save_screenshot(os.path.join(screenshots, "outage.png"))
    serve_hub(start, above, "-r")
    see(browser, lambda: links() == ["good", "good", "good"])
    for relay in (leaf, slave):
        relay.kill()
        relay.wait()
    see(browser, lambda: links() == ["good"])


def test_keys_and_a_narrow_window_in_the_dark(
    browser: Any, start: Start, serve: Serve, address: str, screenshots: str
) -> None:
    serve_hub(start, address)
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    size = browser.get_window_size()
    browser.set_window_size(500, 1_400)
    try:
        browser.get(serve())
        see(browser, lambda: text(browser, "state") == "connected")
        body = browser.find_element("tag name", "body")
        assert body.value_of_css_property("background-color") == "rgba(13, 17, 23, 1)"
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        body.send_keys("/")
        assert browser.switch_to.active_element.get_attribute("id") == "filter"
        browser.find_element("tag name", "h1").click()
        body.send_keys("p")
        assert browser.find_element("id", "pause").get_attribute("aria-pressed") == "true"
        browser.save_screenshot(os.path.join(screenshots, "narrow.png"))
    finally:
        browser.set_window_size(size["width"], size["height"])
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_wrong_token_gets_nothing_and_the_right_one_no_secrets(start: Start, serve: Serve, address: str) -> None:
    serve_hub(start, address)
    url, token = serve().rstrip("/").rsplit("/", 1)
    good = get(url, f"/{token}/")
    assert (good.status, b"<title>sbus</title>" in good.body) == (200, True)
    assert "script-src 'self'" in good.headers["content-security-policy"]
    for path in ("/", "/events", "/page.js", f"/{token[:-1]}/", f"/{token}x/events", "//", f"/{token}/../x", "/%00/"):
        response = get(url, path)
        assert (response.status, response.body) == (404, b""), path
    assert b'"secrets are not shown"' in get(url, f"/{token}/tail?pattern=!/cred////").body


def test_a_page_that_was_started_is_served_on_and_asks_its_hub_once(make_hub: Callable[..., Any], address: str) -> None:
    make_hub()
    page = Page(address)
    page.start()
    asking = page.feed._greenlets
    serving = gevent.spawn(page.serve_forever)
    gevent.sleep(0)
    assert page.feed._greenlets is asking
    page.stop()
    serving.get(timeout=PATIENCE)
