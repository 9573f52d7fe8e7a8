"""Which engine a URL stands for."""

from __future__ import annotations

import pytest

from sbuslib.bridge import EngineOptions
from sbuslib.bridge.engine import Engine, make_engine
from sbuslib.errors import UsageError


def make(url: str) -> Engine:
    return make_engine(url, EngineOptions(), b"/", print)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("nats://a", "Nats"),
        ("nats://a:4222,tls://b:4222", "Nats"),
        ("mqtt://a", "Mqtt"),
        ("mqtts://me:wo,rd@[::1]:8883", "Mqtt"),
        ("redis://a/1", "Redis"),
        ("rediss://me:wo,rd@a:6380/1", "Redis"),
    ],
)
def test_the_scheme_says_which_engine(url: str, name: str) -> None:
    assert type(make(url)).__name__ == name


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a:4222",
        "http://a",
        "nats://",
        "nats://a:4222,b:4222",
        "nats://a,ws://b",
        "nats://a,redis://b",
        "nats://a:65536",
        "tls://[::1",
        "mqtt://a:0",
        "mqtt://me:swordfish/1@a",
        "redis://me:swordfish/1@a",
        "redis://a?password=swordfish",
    ],
)
def test_a_wrong_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(url)
    assert "swordfish" not in str(caught.value)
