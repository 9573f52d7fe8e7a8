"""Sequence numbers of bridges' messages, and the duplicate detector that uses them. Pure.

Messages are numbered by bridge and key. A gap between two numbers is not counted as a loss: a server may have given the
message to another bridge of the bus, or may still send it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from ..limits import KNOWN_KEY_BYTES
from .broker import Origin

_KEYS: Final = 65_536
"""Keys whose numbers are remembered, and messages that the detector remembers: some 20 MB."""


def _short(key: bytes) -> bytes:
    return key if len(key) <= KNOWN_KEY_BYTES else blake2b(key).digest()


class Numbers:
    """Numbers the messages that one bridge sends."""

    def __init__(self, bridge: str) -> None:
        self._bridge = bridge
        self._times = 0  # how often counting started anew
        self._name = f"{bridge}.0"  # the sender, in the header
        self._counts: dict[bytes, int] = {}  # messages sent so far, by key

    def next(self, key: bytes) -> tuple[str, int]:
        """Sender and number, from 1 on, of the next message with ``key``."""
        short = _short(key)
        count = self._counts.get(short, 0)
        if not count and len(self._counts) >= _KEYS:
            self._counts.clear()
            self._times += 1
            self._name = f"{self._bridge}.{self._times:x}"  # counting starts anew, as if this were another bridge
        self._counts[short] = count + 1
        return self._name, count + 1


class Arrivals:
    """Duplicate detector: remembers the newest messages, as a broker may send some again, or late."""

    def __init__(self) -> None:
        self._newest: dict[tuple[bytes, str, int], None] = {}  # by key, bridge and number, oldest first

    def is_new(self, key: bytes, origin: Origin) -> bool:
        """Note a message. Returns whether it is new."""
        numbered = _short(key), origin.bridge, origin.count
        if numbered in self._newest:
            return False
        if len(self._newest) >= _KEYS:
            del self._newest[next(iter(self._newest))]
        self._newest[numbered] = None
        return True
