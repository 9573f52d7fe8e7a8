"""Requests of a client to its hub, and the answers."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Self

from ..errors import UsageError
from ..wire import control
from ..wire.packets import check_key
from ..wire.text import printable
from .recipes.mailbox import Mailbox

_WILDCARDS = {b"#", b">", b"**"}
_ALL_BELOW = re.compile(rb"(?:(.*)([./]))?(#|>|\*\*)", re.DOTALL)
"""All below a key, as MQTT, NATS and patterns of files write it: the key, the separator, the wildcard."""

_warned_of: set[bytes] = set()  # patterns


def warn_of_wildcard(pattern: bytes, separator: bytes) -> None:
    """Warn, once for each pattern, of wildcards of other systems: here these stand for themselves."""
    how = "* is one segment, and a pattern that ends with the separator matches all below"

    # 1. At the end: NATS cuts keys at the full stop, MQTT and patterns of files at the slash.
    if (found := _ALL_BELOW.fullmatch(pattern.replace(separator, b"/"))) is not None:
        start, stop, foreign = found.groups()
        here = printable(start.replace(stop, separator) + separator) if start else "the empty pattern"
        how = f"NATS and MQTT write it so; here it is {here}"

    # 2. Elsewhere.
    else:
        foreign = next(iter(_WILDCARDS.intersection(pattern.split(separator))), None)
    if foreign is not None and pattern not in _warned_of:
        _warned_of.add(pattern)
        what = f"{printable(foreign)} is no wildcard here, in {printable(pattern)}"
        warnings.warn(f"{what}: {how}", UserWarning, stacklevel=2)


class PatternRequest:
    """Patterns requested, with messages into the inbox or a mailbox.

    Until they are confirmed, a hub that kicks this client is taken to have refused them. Raises
    :exc:`~sbuslib.errors.UsageError` without patterns, and :exc:`~sbuslib.errors.KeyFormatError`.
    """

    def __init__(self, patterns: Sequence[bytes], separator: bytes, mailbox: Mailbox | None = None) -> None:
        if not patterns:
            raise UsageError("subscribe to at least one pattern; b'' is everything")
        for pattern in patterns:
            check_key(pattern, "pattern")
            warn_of_wildcard(pattern, separator)
        self.patterns = patterns
        self.mailbox = mailbox  # where their messages go; None: the inbox
        self.refused: str | None = None
        """Why the hub refused them."""


class HubQuestion:
    """A question to the hub: its packet, and the answer once it came."""

    __slots__ = ("__weakref__", "answer", "key", "packet")

    def __init__(self, packet: bytes, key: bytes | None = None) -> None:
        self.packet = packet  # what asks it
        self.key = key  # under which the answer comes, in the order of the questions; None: it comes with a token
        self.answer: bytes | None = None  # None until it came


class SyncScope(str):
    """How far all that a client said is in force: ``local``, ``tree`` or ``partial``."""

    trusted_only = False
    """Whether children were not waited for, because the hubs above them do not trust their users."""

    @classmethod
    def of(cls, answer: bytes) -> Self:
        """Decode a hub's answer to a sync."""
        scope = cls(answer.partition(b"\0")[0].decode("ascii", "replace") or "local")
        scope.trusted_only = answer == control.SCOPE_TRUSTED
        return scope
