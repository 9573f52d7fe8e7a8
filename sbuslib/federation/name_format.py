"""How keys and patterns of the bus are named elsewhere: among peers, and in the subjects and filters of a server. Pure.

A key is bytes, a name is text. The segments of a key become the segments of a name, after a prefix, with ``%XX`` for
each byte that a name cannot hold: what is special to the server, control characters, ``%`` itself, and what is not
UTF-8. Each key has one name, and each name stands for at most one key: a name that is written in another way stands for
none, so that nobody gets round the permissions of a server by writing a key in another way.

    room/1/temp    sbus.room.1.temp in NATS, sbus/room/1/temp in MQTT, //sbus/bus/room/1/temp among peers
    room/*/        sbus.room.*.>    in NATS, sbus/room/+/+/#  in MQTT

A filter takes all that its pattern matches, and more where the broker has no word for it: ``t*`` becomes any segment.
So what comes is held against the patterns again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import reduce

from ..covering import overlap
from ..errors import NameFormatError
from ..matcher import SEPARATOR, Pattern
from .import_export import DropReason

# Control characters, blanks of any kind, bytes that are not UTF-8, and what is no character or private.
_NEVER = "\0-\x20%\x7f-\xa0\u1680\u2000-\u206f\u3000\ud800-\uf8ff\ufdd0-\ufdef\ufeff\ufff0-\U0010ffff"
_QUOTED = re.compile(rb"%([0-9A-F]{2})")
_EMPTY = "%"
"""What stands for an empty segment where the broker has none, and for the key without a byte. No byte is written so."""


class NameFormat:
    """The names for keys, and the filters for patterns, of one place.

    >>> nats = NameFormat("sbus.", ".", "*", ">", specials=".*>", has_empty=False)
    >>> nats.name_of(b"room/1/a.b"), nats.key_of("sbus.room.1.a%2Eb"), nats.filter_of(b"room/*/")
    ('sbus.room.1.a%2Eb', b'room/1/a.b', 'sbus.room.*.>')

    :param start: what all names start with.
    :param between: what separates the segments of a name.
    :param one: the segment of a filter that takes any one segment.
    :param rest: what ends a filter that takes one further segment or more.
    :param specials: characters that a segment cannot hold.
    :param has_empty: whether a segment may be empty.
    :param separator: that of the bus.
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
        separator: bytes = SEPARATOR,
    ) -> None:
        self._start = start
        self._between = between
        self._wildcard = one
        self._rest = rest
        self._unfit = re.compile(f"[{_NEVER}{re.escape(specials)}]")  # characters that are written as %XX
        self._empty = "" if has_empty else _EMPTY  # what stands for an empty segment
        self._separator = separator

    def name_of(self, key: bytes) -> str:
        """The name for ``key``."""
        # Bytes that are not UTF-8 become lone surrogates, which nothing else becomes.
        return self._named(map(self._segment, key.split(self._separator)))

    def key_of(self, name: str) -> bytes:
        """The key that ``name`` stands for. Raises :exc:`~sbuslib.errors.NameFormatError` where it is none."""
        parts = name.removeprefix(self._start).split(self._between)
        key = self._separator.join([b"" if part == _EMPTY else _unquoted(part) for part in parts])
        if b"\0" in key or self.name_of(key) != name:
            raise NameFormatError(DropReason.NO_NAME_OF_A_KEY)
        return key

    def start_of(self, pattern: bytes) -> str:
        """What the name of each key starts with that ``pattern`` matches."""
        literal = pattern.partition(b"*")[0]
        # A byte at the end may be the start of a character that goes on: it has a name only with the rest.
        while literal and literal[-1] >= 0x80:
            literal = literal[:-1]
        return self.name_of(literal)

    def filter_of(self, pattern: bytes) -> str:
        """A filter that takes the name of each key that ``pattern`` matches."""
        cut = Pattern(pattern, self._separator)
        parts = [self._wildcard if segment.endswith(b"*") else self._segment(segment) for segment in cut.segments]
        return self._named([*parts, self._rest] if cut.below else parts)

    def filters_for(self, patterns: Iterable[bytes]) -> list[str]:
        """Filters that take all that ``patterns`` match. No two take the same name, or it would come twice."""
        return [self.filter_of(pattern) for pattern in apart(patterns, self._separator)]

    def filter_for(self, patterns: Sequence[bytes]) -> str:
        """One filter that takes all that ``patterns`` match, for brokers that keep the order of one filter only."""
        return self.filter_of(reduce(lambda one, other: _join(one, other, self._separator), patterns))

    def _segment(self, segment: bytes) -> str:
        return self._unfit.sub(_quote, segment.decode("utf-8", "surrogateescape")) or self._empty

    def _named(self, parts: Iterable[str]) -> str:
        return self._start + self._between.join(parts) or _EMPTY


def _quote(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogateescape"))


def _unquoted(part: str) -> bytes:
    return _QUOTED.sub(lambda found: bytes.fromhex(found[1].decode()), part.encode("utf-8", "replace"))


def apart(patterns: Iterable[bytes], separator: bytes = SEPARATOR) -> list[bytes]:
    """Wider patterns that match all that ``patterns`` match, and of which no two may match the same key.

    >>> apart([b"a/b", b"a/*", b"c/t*", b"d/"])
    [b'a/*', b'c/*', b'd/']
    """
    found: list[bytes] = []
    for pattern in patterns:
        wide = separator.join([b"*" if part.endswith(b"*") else part for part in pattern.split(separator)])
        while (other := next((one for one in found if overlap(one, wide, separator)), None)) is not None:
            found.remove(other)
            wide = _join(other, wide, separator)
        found.append(wide)
    return found


def _join(one: bytes, other: bytes, separator: bytes) -> bytes:
    """A pattern that matches what either of two matches."""
    left, right = Pattern(one, separator), Pattern(other, separator)
    parts = [a if a == b else b"*" for a, b in zip(left.segments, right.segments, strict=False)]
    if left.below or right.below or len(left.segments) != len(right.segments):
        shortest = min(len(left.segments) + left.below, len(right.segments) + right.below)  # of the keys
        parts[shortest - 1 :] = [b""]
    return separator.join(parts)
