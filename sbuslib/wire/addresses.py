"""Grammar of addresses.

============================  ==========================================================================
``/run/sbus.socket``          a path
``/dev/fd/N``                 a socket that was passed to this process, listening already or not yet
``/dev/unix/abstract``        a random name in the abstract namespace; the hub prints which
``/dev/unix/abstract/HEX``    a name in the abstract namespace: its bytes in hexadecimal from the leading
                              ``00`` on, filled up with NUL to the 108 of a ``sockaddr_un``
============================  ==========================================================================

Source: the C daemon, which binds the whole ``sun_path``, so that two names that differ only in trailing
NUL bytes are the same to it; here too.
"""

from __future__ import annotations

import os
import secrets
from typing import TypeAlias

import msgspec

from ..errors import AddressError

SUN_PATH_BYTES = 108  # unix(7)
_DESCRIPTOR = "/dev/fd/"
_ABSTRACT = "/dev/unix/abstract"


class PathAddress(msgspec.Struct, frozen=True):
    """A socket in the file system."""

    path: str

    def __str__(self) -> str:
        return self.path


class DescriptorAddress(msgspec.Struct, frozen=True):
    """A socket that this process already has, by its descriptor."""

    fd: int

    def __str__(self) -> str:
        return f"{_DESCRIPTOR}{self.fd}"


class AbstractAddress(msgspec.Struct, frozen=True):
    """A socket in the abstract namespace; ``name`` is all of its 108 bytes, the leading NUL included."""

    name: bytes

    def __str__(self) -> str:
        return f"{_ABSTRACT}/{self.name.hex()}"

    @classmethod
    def random(cls) -> AbstractAddress:
        """Make a random name, which no other process can guess or take first."""
        return cls(b"\0" + secrets.token_bytes(SUN_PATH_BYTES - 1))


Address: TypeAlias = PathAddress | DescriptorAddress | AbstractAddress


def parse_address(text: str | bytes | os.PathLike[str]) -> Address:
    """Parse an address; ``/dev/unix/abstract`` gives another random one at each call.

    Raises :exc:`~sbuslib.errors.AddressError` if ``text`` is no address.
    """
    try:
        address = os.fsdecode(text)
    except TypeError:
        raise AddressError(f"an address is text, not {type(text).__name__}") from None
    if address.startswith(_DESCRIPTOR):
        digits = address.removeprefix(_DESCRIPTOR)
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 10) or int(digits) > 0x7FFF_FFFF:
            raise AddressError(f"{address}: {_DESCRIPTOR} is followed by the number of a descriptor")
        return DescriptorAddress(int(digits))

    # An abstract name: a random one, or in hexadecimal digits.
    if address == _ABSTRACT:
        return AbstractAddress.random()
    if address.startswith(_ABSTRACT + "/"):
        try:
            name = bytes.fromhex(address.removeprefix(_ABSTRACT + "/"))
        except ValueError:
            raise AddressError(f"{address}: an abstract name is an even number of hexadecimal digits") from None
        if not name.startswith(b"\0"):
            raise AddressError(f"{address}: the digits of an abstract name start with 00, its leading NUL")
        if len(name) > SUN_PATH_BYTES:
            raise AddressError(f"{address}: an abstract name has at most {SUN_PATH_BYTES} bytes, not {len(name)}")
        return AbstractAddress(name.ljust(SUN_PATH_BYTES, b"\0"))

    # Anything else is a path.
    if not address or "\0" in address:
        raise AddressError("an address is not empty and holds no NUL")
    if len(os.fsencode(address)) >= SUN_PATH_BYTES:
        raise AddressError(f"{address}: the path of a socket has at most {SUN_PATH_BYTES - 1} bytes")
    return PathAddress(address)
