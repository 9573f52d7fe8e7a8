"""Parsers of option values, as argparse types: counts, sizes, durations, points of time, keys and separators."""

from __future__ import annotations

import os
import re
from argparse import ArgumentTypeError

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    T = TypeVar("T")

_SIZES = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_SPANS = {"ms": 1e-3, "": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def _refusing(what: str) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Decorate a parser so that its error says what it expects."""

    def decorate(read: Callable[[str], T]) -> Callable[[str], T]:
        def parse(text: str) -> T:
            try:
                return read(text)
            except (KeyError, ValueError, OverflowError):
                raise ArgumentTypeError(f"{text!r} is no {what}") from None

        return parse

    return decorate


def _with_unit(text: str, units: Mapping[str, float]) -> float:
    """Parse a number above 0 with the unit that follows it. Raises KeyError for another unit, else ValueError."""
    unit = text.lstrip("+-.0123456789").strip()
    number = float(text.strip().removesuffix(unit)) * units[unit]
    if not 0 < number < 2**63:
        raise ValueError
    return number


@_refusing("whole number above 0")
def count(text: str) -> int:
    """Parse a whole number above 0."""
    number = int(text)
    if number <= 0:
        raise ValueError
    return number


@_refusing("size, such as 1000, 64KB or 1.5G")
def size(text: str) -> int:
    """Parse a number of bytes above 0: ``1000``, ``64K``, ``64KB``, ``64KiB``, ``1.5G``. A K is 1,024."""
    return int(_with_unit(text.upper().removesuffix("B").removesuffix("I"), _SIZES)) or 1


@_refusing("span of time, such as 500ms, 90, 15min, 12h or 30d")
def seconds(text: str) -> float:
    """Parse a span above 0, in seconds: ``500ms``, ``90``, ``90s``, ``15m``, ``15min``, ``12h``, ``30d``."""
    return _with_unit(text, _SPANS)


@_refusing("speed, such as 2 or 0.5")
def speed(text: str) -> float:
    """Parse a factor above 0: ``2``, ``0.5``, ``10x``."""
    return _with_unit(text.removesuffix("x"), {"": 1})


@_refusing("pair of prefixes, such as old/=new/")
def prefixes(text: str) -> tuple[bytes, bytes]:
    """Parse two prefixes of keys: ``OLD=NEW``."""
    old, equals, new = text.partition("=")
    if not equals:
        raise ValueError
    return os.fsencode(old), os.fsencode(new)


@_refusing("time, such as 2026-01-31T12:00 or @1700000000")
def moment(text: str) -> int:
    """Parse a point of time, as nanoseconds since the epoch: ISO 8601, or ``@`` and seconds. Local if without a zone.

    A time of day alone, such as ``12:00``, means its most recent occurrence.
    """
    from datetime import datetime, time, timedelta

    if text.startswith("@"):
        return int(float(text[1:]) * 1_000_000_000)
    if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text):
        now = datetime.now()
        last = datetime.combine(now, time.fromisoformat(text))
        text = (last if last <= now else last - timedelta(days=1)).isoformat()
    return int(datetime.fromisoformat(text).astimezone().timestamp() * 1_000_000) * 1_000


def encoded(text: str) -> bytes:
    """Return a key or a pattern: any bytes of the command line."""
    return os.fsencode(text)


def separator(text: str) -> bytes:
    """Parse the byte between the segments of keys."""
    from ..errors import UsageError
    from ..matcher import check_separator

    try:
        return check_separator(os.fsencode(text))
    except UsageError as error:
        raise ArgumentTypeError(str(error)) from None
