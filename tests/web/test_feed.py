"""What the live page is told about a hub, each second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from support import PATIENCE, eventually

from sbuslib import Client, Hub
from sbuslib.monitor.survey import SeenHub, survey
from sbuslib.web import feed as feeds
from sbuslib.web.feed import CLIENTS_SHOWN, Feed, Moment, _busiest

MakeHub = Callable[..., Hub]
MakeClient = Callable[..., Client]


@pytest.fixture
def feed(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    monkeypatch.setattr(feeds, "PAUSE", 0.02)
    feed = Feed(address)
    feed.start()
    yield feed
    feed.stop()


def await_moment(feed: Feed, condition: Callable[[Moment], object]) -> Moment:
    """The next moment for which this holds."""
    end = time.monotonic() + PATIENCE
    moment = feed.now
    while not condition(moment):
        assert time.monotonic() < end, moment
        moment = feed.wait(moment.number, PATIENCE)
    return moment


def test_a_moment_tells_of_the_hub_and_its_clients(hub: Hub, client: MakeClient, feed: Feed, address: str) -> None:
    own = client()
    own.subscribe(b"a", b"b")
    own.sync()
    # The feed is a client too; for a moment it has a second, for the tree.
    moment = await_moment(feed, lambda moment: sorted(row["patterns"] for row in moment.clients) == [0, 2])
    assert (moment.connected, moment.address, moment.why) == (True, address, "")
    assert (moment.hub["clients"], moment.hub["patterns"]) == (2, 2)
    assert len(moment.users) == 1
    assert moment.rates.keys() == {"published", "delivered", "lost"}


def test_messages_are_in_the_rates_and_the_history(hub: Hub, client: MakeClient, feed: Feed) -> None:
    await_moment(feed, lambda moment: moment.connected)
    publisher = client()
    publisher.publish_many((b"k", b"%d" % number) for number in range(1_000))
    publisher.sync()
    moment = await_moment(feed, lambda moment: moment.connected and moment.rates["published"] > 0)
    assert feed.history[-1] == (moment.time, moment.rates["published"], moment.rates["delivered"], 0.0, 0)


def test_a_hub_that_is_away_is_told_and_looked_for(make_hub: MakeHub, feed: Feed) -> None:
    moment = await_moment(feed, lambda moment: moment.number > 0)
    assert not moment.connected
    assert "no hub" in moment.why
    hub = make_hub()
    connected = await_moment(feed, lambda moment: moment.connected)
    assert connected.number > moment.number
    hub.stop()
    away = await_moment(feed, lambda moment: not moment.connected)
    assert away.address == connected.address
    kept = len(feed.history)
    await_moment(feed, lambda moment: moment.number > away.number + 1)
    assert len(feed.history) == kept, "moments without a hub have no rates"
    hub = make_hub()
    await_moment(feed, lambda moment: moment.connected)
    feed.stop()
    eventually(lambda: hub.statistics().clients == 0)


def test_the_busiest_clients_are_shown() -> None:
    rows = [
        {"number": number, "waiting": number % 2, "published_rate": number, "delivered_rate": 0}
        for number in range(CLIENTS_SHOWN + 100)
    ]
    shown = [row["number"] for row in _busiest(rows)]
    assert len(shown) == CLIENTS_SHOWN
    last, half = len(rows) - 1, len(rows) // 2
    assert shown[:2] == [last, last - 2], "those with messages that wait come first"
    assert shown[half - 1 : half + 2] == [1, last - 1, last - 3]


def test_a_look_at_the_tree_of_a_hub_that_is_away_prints_nothing(
    folder: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    looks = []

    def look(address: str | None) -> SeenHub:
        looks.append(address)
        return survey(address)

    monkeypatch.setattr(feeds, "survey", look)
    monkeypatch.setattr(feeds, "_SURVEY_PAUSE", 0.001)
    feed = feeds.Feed(f"{folder}/none")
    feed.start()
    eventually(lambda: len(looks) > 2)
    eventually(lambda: "no hub" in feed.now.why)
    feed.stop()
    assert capfd.readouterr().err == ""
