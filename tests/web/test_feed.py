"""What the live page knows of a hub."""

from __future__ import annotations

import pytest
from support import eventually

from sbuslib.survey import SeenHub, survey
from sbuslib.web import feed as feeds


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
