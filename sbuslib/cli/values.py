"""Counts, sizes, spans, points of time and separators as they are written on a command line."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError

__all__ = ["count", "moment", "prefixes", "rate", "seconds", "separator", "size", "speed"]

_SIZES = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_SPANS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def _with_unit(text: str, units: dict[str, int]) -> float:
    unit = text[-1:] if text[-1:] in units else ""
    number = float(text[: len(text) - len(unit)]) * units[unit]
    if not 0 < number < 2**63:
        raise ValueError
    return number


def count(text: str) -> int:
    """A whole number, more than none."""
    number = int(text)
    if number <= 0:
        raise ValueError
    return number


def size(text: str) -> int:
    """A number of bytes, more than none: ``1000``, ``64K``, ``1.5G``."""
    return int(_with_unit(text, _SIZES)) or 1


def seconds(text: str) -> float:
    """A span in seconds, more than none: ``90``, ``15m``, ``12h``, ``30d``."""
    return _with_unit(text, _SPANS)


def speed(text: str) -> float:
    """A factor, more than none: ``2``, ``0.5``, ``10x``."""
    return _with_unit(text.removesuffix("x"), {"": 1})


def rate(text: str) -> float:
    """So many a second, more than none."""
    return _with_unit(text, {"": 1})


def prefixes(text: str) -> tuple[bytes, bytes]:
    """Two prefixes of keys: ``OLD=NEW``."""
    old, equals, new = text.partition("=")
    if not equals:
        raise ValueError
    return os.fsencode(old), os.fsencode(new)


def moment(text: str) -> int:
    """A point of time in nanoseconds since the epoch: ISO 8601, local time unless it says, or ``@`` and seconds."""
    from datetime import datetime

    if text.startswith("@"):
        return int(float(text[1:]) * 1_000_000_000)
    return int(datetime.fromisoformat(text).astimezone().timestamp() * 1_000_000) * 1_000


def separator(text: str) -> bytes:
    """The byte between the segments of keys."""
    from ..errors import UsageError
    from ..matcher import check_separator

    try:
        return check_separator(os.fsencode(text))
    except UsageError as error:
        raise ArgumentTypeError(str(error)) from None


_NAMES = {
    count: "positive number",
    size: "size",
    seconds: "span of time",
    speed: "speed",
    rate: "rate",
    prefixes: "pair of prefixes",
    moment: "time",
}
for _function, _name in _NAMES.items():
    _function.__name__ = _name  # what argparse calls it
