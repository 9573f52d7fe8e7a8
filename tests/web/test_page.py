"""The live page in a real browser."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import gevent
import pytest
from support import PATIENCE, HubThread
from web.http import get

from sbuslib import Hub, Relay, blocking
from sbuslib.web import Page

HOSTILE = b"evil/<script>document.title='taken'</script>\n\x1b[31m\xff" + b"k" * 4_000


BROKEN = r"""
const broken = [];
for (const cell of document.querySelectorAll(arguments[0])) {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const found of node.data.matchAll(/\d+/g)) {
      const range = document.createRange();
      range.setStart(node, found.index);
      range.setEnd(node, found.index + found[0].length);
      if (range.getClientRects().length > 1) broken.push(found[0]);
    }
  }
}
return broken;
"""
"""The numbers in some elements that stand in more than one line."""


class Stage(HubThread):
    """A thread where hubs, relays and the page run, beside a hub at which nobody looks."""

    def __init__(self, folder: str) -> None:
        super().__init__(os.path.join(folder, "stage"))
        self.path = os.path.join(folder, "bus")
        """Of the hub that the page is about."""
        self.started: list[Hub | Page] = []

    def start_hub(self, address: str = "", above: str = "") -> Hub:
        """Start a hub, at :attr:`path` unless another is given, and join it to the one above it."""

        def start() -> Hub:
            hub = Hub(address or self.path)
            self.started.append(hub)
            hub.start()
            if above:
                Relay(hub, above).start()
            return hub

        return self.call(start)

    def stop_hub(self, hub: Hub) -> None:
        self.call(hub.stop, 0)

    def serve(self) -> str:
        """Serve the page. Returns its address."""

        def start() -> str:
            page = Page(self.path)
            self.started.insert(0, page)
            page.start()
            return page.url

        return self.call(start)


@pytest.fixture
def stage(folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """The page looks at hubs more often than once a second."""
    monkeypatch.setattr("sbuslib.web.feed.PAUSE", 0.05)
    monkeypatch.setattr("sbuslib.web.feed._SURVEY_PAUSE", 0.05)
    stage = Stage(folder)
    with stage:
        yield stage
        for one in stage.started:
            stage.call(one.stop)


def see(what: Callable[[], object]) -> None:
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
    return [int(cell.replace(",", "")) for cell in texts(browser, "#clients tbody td:nth-child(3)")]


def test_clients_appear_the_busiest_first_and_the_filter_finds_the_others(
    browser: Any, stage: Stage, screenshots: str
) -> None:
    stage.start_hub()
    browser.get(stage.serve())
    see(lambda: text(browser, "state") == "connected")
    see(lambda: tile(browser, "clients") == 1)  # the page; for a moment it has a second client, for the tree
    with ExitStack() as stack:
        clients = [stack.enter_context(blocking.Client(stage.path)) for _ in range(40)]
        clients[0].subscribe("room/")
        for _ in range(2_000):
            clients[1].publish("room/1", b"x" * 1_000)
        see(lambda: tile(browser, "clients") == 41 and max(waiting(browser), default=0) > 100)
        assert tile(browser, "waiting") > 100
        assert len(texts(browser, "#clients tbody tr")) == 10
        assert waiting(browser)[0] > 100
        assert "the filter shows others" in text(browser, "shown")
        legend = texts(browser, ".u-legend .u-value")
        assert legend == ["--"] * 4, "the legend tells values of the time under the pointer alone"
        browser.save_screenshot(os.path.join(screenshots, "page.png"))

        browser.find_element("id", "filter").send_keys("cred")
        see(lambda: len(waiting(browser)) == 41)
        browser.find_element("id", "filter").clear()
        with_phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", with_phone)
        try:
            see(lambda: browser.execute_script("return innerWidth") == 390)
            assert [one.split("\n")[1] for one in texts(browser, ".tile")][:2] == ["waiting", "lost in all"]
            right = "return document.querySelector('#clients th[data-column=lost]').getBoundingClientRect().right"
            see(lambda: browser.execute_script(right) <= 390)
            assert browser.execute_script(BROKEN, "#clients td:first-child") == [], (
                "no number is broken by a line's end"
            )
            browser.save_screenshot(os.path.join(screenshots, "phone.png"))
        finally:
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    see(lambda: tile(browser, "clients") == 1)


def test_hostile_keys_and_payloads_show_as_text(browser: Any, stage: Stage, screenshots: str) -> None:
    stage.start_hub()
    browser.get(stage.serve())
    see(lambda: text(browser, "state") == "connected")
    browser.find_element("id", "pattern").send_keys("evil/\n")  # a click may miss: the page grows above the button
    see(lambda: text(browser, "tail-state") == "following")
    with blocking.Client(stage.path) as publisher:
        publisher.publish(HOSTILE, b"<img src=x onerror=\"document.title='taken'\">")
    see(lambda: texts(browser, "#messages .key"))
    (key,) = texts(browser, "#messages .key")
    assert key.startswith("evil/<script>document.title='taken'</script>\\n\\x1b[31m\\xffkkk")
    assert len(key) > 4_000
    assert texts(browser, "#messages .payload")[0].startswith("<img src=x")
    assert browser.find_elements("css selector", "#messages script, #messages img") == []
    assert browser.title == "sbus"
    browser.save_screenshot(os.path.join(screenshots, "hostile.png"))


def test_the_page_says_when_the_hub_is_away_and_goes_on_when_it_is_back(browser: Any, stage: Stage) -> None:
    hub = stage.start_hub()
    browser.get(stage.serve())
    see(lambda: text(browser, "state") == "connected")
    stage.stop_hub(hub)
    see(lambda: "no hub" in text(browser, "state"))
    assert "bad" in browser.find_element("id", "state").get_attribute("class")
    stage.start_hub()
    see(lambda: text(browser, "state") == "connected")


def test_names_of_hubs_side_by_side_are_whole_in_a_wide_font(browser: Any, stage: Stage) -> None:
    stage.start_hub()
    for number in range(3):
        stage.start_hub(f"{stage.path}-{number}-with-a-long-name", stage.path)
    browser.get(stage.serve())
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

    see(fit)


def test_the_link_to_the_hub_above_goes_red_when_that_dies_and_green_again(
    browser: Any, stage: Stage, folder: str, screenshots: str
) -> None:
    above, below = os.path.join(folder, "above"), os.path.join(folder, "below")
    root = stage.start_hub(above)
    stage.start_hub(above=above)
    slave = stage.start_hub(below, stage.path)
    browser.get(stage.serve())

    def links() -> list[str]:
        script = "return [...document.querySelectorAll('#tree g')].map((link) => link.getAttribute('class'))"
        return [str(one) for one in browser.execute_script(script)]

    see(lambda: links() == ["good", "good"])
    leaf = stage.start_hub(os.path.join(folder, "leaf"), below)
    see(lambda: links() == ["good", "good", "good"])
    stage.stop_hub(root)
    see(lambda: links() == ["bad", "good", "good"])
    browser.save_screenshot(os.path.join(screenshots, "outage.png"))
    stage.start_hub(above)
    see(lambda: links() == ["good", "good", "good"])
    for hub in (leaf, slave):
        stage.stop_hub(hub)
    see(lambda: links() == ["good"])


def test_keys_and_a_narrow_window_in_the_dark(browser: Any, stage: Stage, screenshots: str) -> None:
    stage.start_hub()
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    size = browser.get_window_size()
    browser.set_window_size(500, 1_400)
    try:
        browser.get(stage.serve())
        see(lambda: text(browser, "state") == "connected")
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


def test_a_wrong_token_gets_nothing_and_the_right_one_no_secrets(stage: Stage) -> None:
    stage.start_hub()
    url, token = stage.serve().rstrip("/").rsplit("/", 1)
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
