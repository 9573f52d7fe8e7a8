"""Which messages cross between a bus and its peers, and under which names. Pure.

A routing key is bytes, a name is text. ``//sbus/<bus>/<key>`` is the name for a key, with ``%XX`` for each byte that a
name cannot hold as it is: space, CR, LF, ``%`` itself, and what is not UTF-8. Each key has one name, and each name
stands for at most one key; a name that is written in another way stands for no key.

How gateways keep out of each other's way is in :mod:`sbuslib.border`. If the one that sends has several connections to
the other bus, it uses the one whose other end has the first id.
"""

from __future__ import annotations

import re
from collections import Counter

from ..border import Border
from ..errors import NameFormatError, UsageError
from .limits import TcpLimits
from .substrings import CACHED_NAME_BYTES

__all__ = ["Crossing", "Names"]

_QUOTED = re.compile(rb"%([0-9A-F]{2})")
_UNFIT = str.maketrans(
    {" ": "%20", "\r": "%0D", "\n": "%0A", "%": "%25"} | {0xDC00 + byte: f"%{byte:02X}" for byte in range(0x80, 0x100)}
)
_WORD = re.compile(r"[0-9A-Za-z._-]+\Z")


class Names:
    """The names for the keys of the bus called ``bus``, and back.

    >>> names = Names("bus")
    >>> names.name_of(b"room/1 %"), names.key_of("//sbus/bus/room/1%20%25")
    ('//sbus/bus/room/1%20%25', b'room/1 %')

    Raises :exc:`~sbuslib.errors.UsageError` for a name of a bus that is no word.
    """

    def __init__(self, bus: str) -> None:
        if not _WORD.match(bus):
            raise UsageError(f"the name of a bus is letters, digits, '.', '_' and '-', not {bus!r}")
        self.prefix = f"//sbus/{bus}/"
        self.copies = f"//fwd/sbus/{bus}/"

    def name_of(self, key: bytes) -> str:
        """The name for ``key``."""
        # Bytes that are not UTF-8 become lone surrogates, which nothing else becomes.
        return self.prefix + key.decode("utf-8", "surrogateescape").translate(_UNFIT)

    def key_of(self, name: str) -> bytes:
        """The key that ``name``, or the copy of a name, stands for.

        Raises :exc:`~sbuslib.errors.NameFormatError` when it stands for none.
        """
        for prefix in (self.prefix, self.copies):
            if name.startswith(prefix):
                text = name[len(prefix) :]
                key = _QUOTED.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode())
                if b"\0" in key or self.name_of(key) != self.prefix + text:
                    break
                return key
        raise NameFormatError("not the name for a key")

    def substring_for(self, pattern: bytes) -> str:
        """A text that every name contains whose key ``pattern`` matches."""
        literal = pattern.partition(b"*")[0]
        # A byte at the end may be the start of a character that goes on: it has a name only with the rest.
        while literal and literal[-1] >= 0x80:
            literal = literal[:-1]
        return self.name_of(literal)


class Crossing:
    """The names of keys that leave the bus, and the keys of names that come to it. Both are remembered.

    :param refused: counts messages that do not cross, by reason.
    """

    def __init__(
        self, names: Names, exported: Border, imported: Border, limits: TcpLimits, refused: Counter[str]
    ) -> None:
        self.names = names
        self.exported = exported
        self.imported = imported
        self._limits = limits
        self._refused = refused
        self._known_names: dict[bytes, str] = {}
        self._known_keys: dict[str, bytes] = {}

    def may_leave(self, key: bytes) -> bool:
        """Whether messages under ``key`` leave the bus."""
        return key in self._known_names or self.exported.refusal(key) is None

    def name_for(self, key: bytes) -> str | None:
        """The name under which a message leaves; ``None`` when it does not, which is counted."""
        name = self._known_names.get(key)
        if name is not None:
            return name
        reason = self.exported.refusal(key)
        if reason is not None:
            self._refused[reason] += 1
            return None
        name = self.names.name_of(key)
        if len(name.encode()) > self._limits.name_bytes:
            self._refused["name too long"] += 1
            return None
        if len(key) <= CACHED_NAME_BYTES:
            if len(self._known_names) >= self._limits.cached_names:
                self._known_names.clear()
            self._known_names[key] = name
        return name

    def key_for(self, name: str) -> bytes | None:
        """The key under which a message comes to the bus; ``None`` when it does not, which is counted."""
        key = self._known_keys.get(name)
        if key is not None:
            return key
        try:
            key = self.names.key_of(name)
        except NameFormatError as error:
            self._refused[str(error)] += 1
            return None
        reason = self.imported.refusal(key)
        if reason is not None:
            self._refused[reason] += 1
            return None
        if len(name) <= CACHED_NAME_BYTES:
            if len(self._known_keys) >= self._limits.cached_names:
                self._known_keys.clear()
            self._known_keys[name] = key
        return key
