"""Format of keys and patterns elsewhere: as names among peers, as subjects and filters of a broker. Pure.

A key is bytes, a name is text. The segments of a key become the segments of a name, after a prefix, with ``%XX`` for
each byte that a name cannot hold: characters that are special to the broker, control characters, ``%`` itself, and
bytes that are not UTF-8. Each key has one name, and each name stands for at most one key. A name in another spelling
stands for no key, so that nobody evades the permissions of a broker by spelling a key in another way.

    room/1/temp    sbus.room.1.temp in NATS, sbus/room/1/temp in MQTT, //sbus/bus/room/1/temp among peers
    room/*/        sbus.room.*.>    in NATS, sbus/room/+/+/#  in MQTT

A filter passes all that its pattern matches, and more where the broker has no such wildcard: ``t*`` becomes any
segment. So messages from the broker are matched against the patterns again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import reduce

from ..errors import NameFormatError
from ..keys.covering import overlap
from ..matcher import Pattern
from .import_export import DropReason

# Control characters, blanks of any kind, bytes that are not UTF-8, noncharacters, and private characters.
_NEVER = (
    "\0-\x20%\x7f-\xa0\u1680\u2000-\u206f\u3000\ud800-\uf8ff\ufdd0-\ufdef\ufeff\ufff0-\uffff"
    + "".join(f"{chr(plane | 0xFFFE)}{chr(plane | 0xFFFF)}" for plane in range(0x1_0000, 0xF_0000, 0x1_0000))
    + "\U000e0000-\U000e007f\U000f0000-\U0010ffff"
)
_QUOTED = re.compile(rb"%([0-9A-F]{2})")
_EMPTY = "%"
"""Stands for an empty segment where the broker has none, and for the empty key. No byte is written so."""


class NameFormat:
    """Names for keys and filters for patterns, in the syntax of one broker or network of peers.

    >>> nats = NameFormat("sbus.", ".", "*", ">", specials=".*>", has_empty=False)
    >>> nats.name_of(b"room/1/a.b"), nats.key_of("sbus.room.1.a%2Eb"), nats.filter_of(b"room/*/")
    ('sbus.room.1.a%2Eb', b'room/1/a.b', 'sbus.room.*.>')

    :param start: prefix of all names.
    :param between: separator of the segments of a name.
    :param one: wildcard for one segment of a filter.
    :param rest: end of a filter that takes one further segment or more.
    :param specials: characters that a segment cannot hold.
    :param has_empty: whether a segment may be empty.
    :param separator: separator of the bus.
    """

    def __init__(
        self,
        start: str,
        between: str,
        one: str = "",
        rest: str = "",
        *,
        specials: str = "",
        has_empty: bool = True,
        separator: bytes,
    ) -> None:
        self._start = start
        self._between = between
        self._wildcard = one
        self._rest = rest
        self._unfit = re.compile(f"[{_NEVER}{re.escape(specials)}]")  # characters that are written as %XX
        self._empty = "" if has_empty else _EMPTY  # stands for an empty segment
        self._separator = separator

    def name_of(self, key: bytes) -> str:
        """The name for ``key``."""
        # Bytes that are not UTF-8 become lone surrogates, which nothing else becomes.
        return self._named(map(self._segment, key.split(self._separator)))

    def key_of(self, name: str) -> bytes:
        """The key that ``name`` stands for. Raises :exc:`~sbuslib.errors.NameFormatError` if there is none."""
        parts = name.removeprefix(self._start).split(self._between)
        key = self._separator.join([b"" if part == _EMPTY else _unquoted(part) for part in parts])
        if b"\0" in key or self.name_of(key) != name:
            raise NameFormatError(DropReason.NO_NAME_OF_A_KEY)
        return key

    def start_of(self, pattern: bytes) -> str:
        """Common prefix of the names of all keys that ``pattern`` matches."""
        literal = pattern.partition(b"*")[0]
        # The last bytes may be part of a UTF-8 character: it can be encoded only with its other bytes.
        while literal and literal[-1] >= 0x80:
            literal = literal[:-1]
        return self.name_of(literal)

    def filter_of(self, pattern: bytes) -> str:
        """Make a filter that passes the name of each key that ``pattern`` matches."""
        cut = Pattern(pattern, self._separator)
        parts = [self._wildcard if segment.endswith(b"*") else self._segment(segment) for segment in cut.segments]
        return self._named([*parts, self._rest] if cut.below else parts)

    def filters_for(self, patterns: Iterable[bytes]) -> list[str]:
        """Make filters that pass all that ``patterns`` match. No two pass the same name, or it would come twice."""
        return [self.filter_of(pattern) for pattern in apart(patterns, self._separator)]

    def filter_for(self, patterns: Sequence[bytes]) -> str:
        """Make one filter for all ``patterns``, for brokers that keep order within one filter only."""
        return self.filter_of(reduce(lambda first, second: _join(first, second, self._separator), patterns))

    def _segment(self, segment: bytes) -> str:
        return self._unfit.sub(_quote, segment.decode("utf-8", "surrogateescape")) or self._empty

    def _named(self, parts: Iterable[str]) -> str:
        return self._start + self._between.join(parts) or _EMPTY


def _quote(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogateescape"))


def _unquoted(part: str) -> bytes:
    return _QUOTED.sub(lambda match: bytes.fromhex(match[1].decode()), part.encode("utf-8", "replace"))


def apart(patterns: Iterable[bytes], separator: bytes) -> list[bytes]:
    """Widen patterns until no two can match the same key. Together they match all that ``patterns`` match.

    >>> apart([b"a/b", b"a/*", b"c/t*", b"d/"])
    [b'a/*', b'c/*', b'd/']
    """
    wider: list[bytes] = []
    for pattern in patterns:
        wide = separator.join([b"*" if part.endswith(b"*") else part for part in pattern.split(separator)])
        while (other := next((known for known in wider if overlap(known, wide, separator)), None)) is not None:
            wider.remove(other)
            wide = _join(other, wide, separator)
        wider.append(wide)
    return wider


def _join(first: bytes, second: bytes, separator: bytes) -> bytes:
    """Make a pattern that matches all that either of two matches."""
    a, b = Pattern(first, separator), Pattern(second, separator)
    parts = [part if part == other else b"*" for part, other in zip(a.segments, b.segments, strict=False)]
    if a.below or b.below or len(a.segments) != len(b.segments):
        shortest = min(len(a.segments) + a.below, len(b.segments) + b.below)  # segments of the shortest key
        parts[shortest - 1 :] = [b""]
    return separator.join(parts)
