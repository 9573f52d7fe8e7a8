"""The names under which messages cross between a bus and its peers. Pure.

A routing key is bytes, a name is text. ``//sbus/<bus>/<key>`` is the name for a key, with ``%XX`` for each byte that a
name cannot hold as it is: space, CR, LF, ``%`` itself, and what is not UTF-8. Each key has one name, and each name
stands for at most one key; a name that is written in another way stands for no key.
"""

from __future__ import annotations

import re

from ..errors import NameFormatError, UsageError

__all__ = ["Names"]

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
