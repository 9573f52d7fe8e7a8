"""Numbers, sizes, times and prefixes as they are written on a command line."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from sbuslib.cli.values import count, moment, prefixes, rate, seconds, separator, size, speed


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (count, "1", 1),
        (size, "1000", 1_000),
        (size, "64K", 65_536),
        (size, "1.5G", 3 * 2**29),
        (size, "0.1", 1),
        (seconds, "90", 90),
        (seconds, "15m", 900),
        (seconds, "12h", 43_200),
        (seconds, "30d", 2_592_000),
        (seconds, "1w", 604_800),
        (speed, "2", 2),
        (speed, "0.5x", 0.5),
        (rate, "1000", 1_000),
        (prefixes, "room/=k/=", (b"room/", b"k/=")),
        (prefixes, "=", (b"", b"")),
        (prefixes, "\udcff=b", (b"\xff", b"b")),
        (separator, ".", b"."),
        (moment, "@1.5", 1_500_000_000),
        (moment, "1970-01-01T00:00:01+00:00", 1_000_000_000),
        (moment, "1970-01-01T01:00:00.000001+01:00", 1_000),
    ],
)
def test_texts_become_values(read: Callable[[str], object], text: str, value: object) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((count, text) for text in ("0", "-1", "1.5", "", "many")),
        *((size, text) for text in ("0", "-1K", "K", "nan", "inf", "9E", "8388608T")),
        *((seconds, text) for text in ("0", "-1s", "s", "nan", "inf", "1y")),
        *((speed, text) for text in ("0", "x", "2xx", "-1x")),
        *((rate, text) for text in ("0", "-1", "1/s")),
        (prefixes, "room/"),
        (moment, "noon"),
        (moment, "@noon"),
    ],
)
def test_texts_without_a_meaning_are_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^'{re.escape(text)}' is no "):
        read(text)


@pytest.mark.parametrize("text", ["", "ab", "7", "ü", "!", "*"])
def test_a_separator_is_one_byte_that_keys_do_not_need(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="a separator is"):
        separator(text)


def test_a_time_without_a_zone_is_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    try:
        assert moment("1970-01-01T03:00") == 3_600_000_000_000
    finally:
        monkeypatch.undo()
        time.tzset()
