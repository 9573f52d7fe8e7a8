"""Which remembered headers a pattern may match: headers in groups, by the first two segments of their keys.

A hub remembers the receivers of each header, ``MSG <key>NUL``, that it looked up. When a pattern comes or goes, the hub
has to forget the headers that it matches, and no others. Comparing all headers with each pattern would take
milliseconds, so they are in groups. With two levels, ``room/1/*``, ``*/temp`` and ``room/`` are compared with few
headers that they do not match. A third level would cost each new key more than it saves.

A header that is alone in its group, at either level, stands in place of the group. Most headers of a hub with many keys
are alone, and making a dictionary for each would take longer than the look-up.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from ..matcher import SEPARATOR
from ..wire.packets import MSG

__all__ = ["HeaderGroups"]

V = TypeVar("V")

_Second = bytes | dict[bytes, None]
_First = bytes | dict[bytes, _Second]


class HeaderGroups:
    """Headers by the first two segments of their keys. A segment that ends the key keeps the header's NUL."""

    __slots__ = ("_groups", "_separator")

    def __init__(self, separator: bytes = SEPARATOR) -> None:
        self._separator = separator
        self._groups: dict[bytes, _First] = {}

    def add(self, header: bytes) -> None:
        pieces = header.split(self._separator, 2)
        alike = self._groups.get(pieces[0])
        if alike is None or alike == header:
            self._groups[pieces[0]] = header
            return
        if isinstance(alike, bytes):
            alike = self._groups[pieces[0]] = {alike.split(self._separator, 2)[1]: alike}
        group = alike.get(pieces[1])
        if group is None or group == header:
            alike[pieces[1]] = header
        elif isinstance(group, bytes):
            alike[pieces[1]] = {group: None, header: None}
        else:
            group[header] = None

    def discard(self, header: bytes) -> None:
        pieces = header.split(self._separator, 2)
        alike = self._groups.get(pieces[0])
        if isinstance(alike, dict):
            group = alike.get(pieces[1])
            if isinstance(group, dict):
                group.pop(header, None)
            if group == header or group == {}:
                del alike[pieces[1]]
        if alike == header or alike == {}:
            del self._groups[pieces[0]]

    def candidates(self, segments: list[bytes], below: bool, most: int) -> list[bytes] | None:
        """The headers that a pattern may match, and some that begin like them; ``None``: more than ``most``.

        ``segments`` (at least one) and ``below`` are what :func:`~sbuslib.matcher.cut` makes of the pattern.
        """
        found: list[bytes] = []
        end = 0 if below else len(segments)
        for alike in _meeting(self._groups, MSG, segments[0], end == 1):
            if isinstance(alike, bytes):
                found.append(alike)
                continue
            for group in alike.values() if len(segments) == 1 else _meeting(alike, b"", segments[1], end == 2):
                if isinstance(group, bytes):
                    found.append(group)
                else:
                    found += group
                if len(found) > most:
                    return None
        return found if len(found) <= most else None

    def clear(self) -> None:
        self._groups.clear()


def _meeting(level: dict[bytes, V], before: bytes, segment: bytes, last: bool) -> Collection[V]:
    """The entries of one level that a segment of a pattern may match."""
    if segment.endswith(b"*"):
        stem = before + segment.rstrip(b"*")
        return [value for text, value in level.items() if text.startswith(stem)]
    text = before + segment + b"\0" if last else before + segment
    return [level[text]] if text in level else []
