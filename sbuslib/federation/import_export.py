"""Import and export filters between a bus and other places, and the reasons for drops. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from hashlib import blake2b

from ..errors import ReservedKeyError, UsageError
from ..keys.covering import covers
from ..keys.own_keys import CONTROL, has_own_beginning, own_patterns
from ..limits import PACKET_BYTES
from ..matcher import Pattern, Subscriptions
from ..secrets import RESERVED, Namespace
from ..wire.control import Features
from ..wire.packets import MSG, check_key
from ..wire.text import printable

_SEPARATORS = rb"[^\x00*!0-9\x80-\xff]"  # what sbuslib.matcher.check_separator allows
_RESERVED_SOMEWHERE = re.compile(rb"(?:\A|(%b))!(?:\Z|(?(1)\1|%b))" % (_SEPARATORS, _SEPARATORS), re.DOTALL)
"""The reserved token between two equal separators, or a separator and an end of the key, whichever is the separator."""


class DropReason(StrEnum):
    """Reason why a gateway or bridge drops a message; a label of its counters."""

    RESERVED = "reserved key"
    """Secret keys, and others with a lone ``!``, stay on their bus."""
    OF_GATEWAYS = "key of the gateways"
    """Control messages of gateways and bridges stay on their bus."""
    OF_PROGRAMS = "key of our programs"
    """What queues, recordings, alerts, backends and other parts of this package say on another bus is not imported."""
    OUTSIDE = "outside the patterns"
    """No pattern of ``export`` or ``import`` matches the key."""
    NO_NAME_OF_A_KEY = "not the name for a key"
    """The name stands for no key, or is not how that key is written."""
    BROUGHT = "brought by another"
    """Another gateway or bridge of this bus imported it."""
    RETURNED = "came back"
    """Its origin is this bus."""
    REPEATED = "came again"
    """A duplicate."""
    HOST_ONLY = "on this host only"
    """The message refers to a descriptor, which only processes of this host can fetch."""
    NAME_TOO_LONG = "name too long"
    """The other side cannot hold the name of the key."""
    PAYLOAD_TOO_LONG = "payload too long"
    """The other side cannot hold the payload."""
    MESSAGE_TOO_LONG = "message too long"
    """No packet of the bus can hold the message."""
    UNTRUSTED = "untrusted"
    """Its origin is not one of those that ``trust`` names."""
    BAD_HEARTBEAT = "malformed heartbeat"
    """A heartbeat of another gateway that cannot be parsed."""
    FORGED_HEARTBEAT = "forged heartbeat"
    """A heartbeat with this gateway's own id, from another client."""
    TOO_MANY_GATEWAYS = "too many gateways"
    """A heartbeat of one gateway more than are known at a time."""


def fits_a_packet(key: bytes, payload: bytes) -> bool:
    """Whether a packet of the bus can hold this message. Data of a peer may be longer."""
    return len(MSG) + len(key) + 1 + len(payload) <= PACKET_BYTES


def bus_of(features: Features | None, host: str, address: str) -> tuple[str, str]:
    """Name of the bus, and a name of this hub's address that outlives the hub.

    A tree of hubs is one bus: the id of its root is the name. A daemon without features is named by its address.
    """
    place = blake2b(f"{host} {address}".encode(), digest_size=6).hexdigest()
    return (place if features is None else (features.path or (features.hub_id,))[-1].decode()), place


class ImportExportFilter:
    """Filter of keys for one direction: passes keys that one of ``patterns`` matches, and no secrets.

    Unless it is ``certain`` that ``separator`` is the hub's, no key crosses that would be reserved under any separator.
    If ``strict``, no key crosses that starts with ``!``. A filter that ``imports`` passes no key of
    :mod:`sbuslib.keys.own_keys`.

    Raises :exc:`~sbuslib.errors.UsageError` for a pattern that uses the reserved token or would import such keys alone,
    and :exc:`~sbuslib.errors.KeyFormatError`.
    """

    def __init__(
        self, patterns: Iterable[bytes], *, separator: bytes, certain: bool, strict: bool, imports: bool
    ) -> None:
        if isinstance(patterns, (str, bytes)):
            raise UsageError("the patterns that cross are a list")
        self._certain = certain
        self._strict = strict
        self.patterns = tuple(dict.fromkeys(patterns))  # without repeats
        self._namespace = Namespace(separator)  # which keys are reserved on this bus
        self._index: Subscriptions[None] = Subscriptions(separator)  # finds the patterns that match a key
        # Whether a key is one of the package's own; None: this exports.
        self._own: Subscriptions[None] | None = Subscriptions(separator) if imports else None
        own = own_patterns(separator) if imports else ()
        for pattern in self.patterns:
            check_key(pattern, "pattern")
            if self.is_reserved(pattern):
                raise UsageError(f"{printable(pattern)}: secret and reserved keys never cross")
            if imports and (has_own_beginning(pattern) or any(covers(each, pattern, separator) for each in own)):
                raise UsageError(f"{printable(pattern)}: what this package itself says there is never imported")
            self._index.add(Pattern(pattern, separator), None)
        if self._own is not None:
            for pattern in own:
                self._own.add(Pattern(pattern, separator), None)

    def is_reserved(self, key: bytes) -> bool:
        """Whether ``key`` uses the reserved token in any way."""
        if not self._certain:
            return _RESERVED_SOMEWHERE.search(key) is not None
        try:
            return self._namespace.check_key(key)
        except ReservedKeyError:
            return True

    def refusal(self, key: bytes) -> DropReason | None:
        """Reason why ``key`` is dropped; ``None`` if it may cross."""
        if (self._strict and key.startswith(RESERVED)) or self.is_reserved(key):
            return DropReason.RESERVED
        if key == CONTROL:
            return DropReason.OF_GATEWAYS
        if self._own is not None and (has_own_beginning(key) or self._own.subscribers(key)):
            return DropReason.OF_PROGRAMS
        if not self._index.subscribers(key):
            return DropReason.OUTSIDE
        return None
