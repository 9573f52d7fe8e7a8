"""Values of options: texts that become values, and texts that are refused."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from sbuslib.cli.values import count, moment, prefixes, seconds, separator, size, speed

# -- Numbers, sizes, times and prefixes as they are written on a command line


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
        (prefixes, "room/"),
        (moment, "noon"),
        (moment, "@noon"),
    ],
)
def test_texts_without_a_meaning_are_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^'{re.escape(text)}' is no "):
        read(text)
