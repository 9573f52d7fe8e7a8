"""The numbers that bridges give to messages, by which they know repeats, which they drop, and gaps, which they count.

A message has the number that it has among those of its bridge with its key: whatever keys another bridge takes, it
sees which of them are missing. Pure.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from ..limits import KNOWN_KEY_BYTES
from .engine import Origin

__all__ = ["Arrivals", "Numbers"]

_KEYS: Final = 65_536
"""Keys whose numbers are remembered, and messages of an engine that sends some again: some 20 MB."""


def _short(key: bytes) -> bytes:
    return key if len(key) <= KNOWN_KEY_BYTES else blake2b(key).digest()


class Numbers:
    """Numbers the messages that one bridge sends."""

    def __init__(self, bridge: str) -> None:
        self._bridge = bridge
        self._times = 0
        self._name = f"{bridge}.0"
        self._counts: dict[bytes, int] = {}

    def next(self, key: bytes) -> tuple[str, int]:
        """For the next message with ``key``, who sends it and its number, from 1 on."""
        short = _short(key)
        count = self._counts.get(short, 0)
        if not count and len(self._counts) >= _KEYS:
            self._counts.clear()
            self._times += 1
            self._name = f"{self._bridge}.{self._times:x}"  # counting starts anew, as if this were another bridge
        self._counts[short] = count + 1
        return self._name, count + 1


class Arrivals:
    """Which numbers one bridge has seen.

    :param keeps: whether the engine keeps messages: it sends those again of which it has not heard in time, so that
        they come twice, or late.
    """

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        # By key and bridge: the first number, the last, and how many are missing between.
        self._seen: dict[tuple[bytes, str], tuple[int, int, int]] = {}
        self._newest: dict[tuple[bytes, str, int], None] = {}

    def note(self, key: bytes, origin: Origin) -> int | None:
        """Note a message. Returns how many are missing before it, -1 if it was missing; ``None`` for a repeat."""
        one = _short(key), origin.bridge
        count = origin.count
        if self._keeps:
            if (*one, count) in self._newest:
                return None
            if len(self._newest) >= _KEYS:
                del self._newest[next(iter(self._newest))]
            self._newest[*one, count] = None
        if one not in self._seen and len(self._seen) >= _KEYS:
            self._seen.clear()
        first, last, missing = self._seen.get(one, (count, count - 1, 0))
        if count > last:
            self._seen[one] = first, count, missing + count - last - 1
            return count - last - 1
        if not self._keeps or (count >= first and not missing):
            return None
        if count < first:
            return 0
        self._seen[one] = first, last, missing - 1
        return -1

    def forget(self) -> None:
        """Begin anew: what comes next has no gap before it."""
        self._seen.clear()
