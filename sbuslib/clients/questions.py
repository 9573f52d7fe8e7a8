"""What a client asks its hub, and what the hub answers."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeAlias

from ..errors import StateError, UsageError
from ..recipes.mailbox import Mailbox
from ..statistics import ClientStatistics, LinkStatistics, decode_clients, decode_links
from ..wire import control
from ..wire.packets import check_key
from ..wire.text import printable

__all__ = ["HubQuestion", "PatternRequest", "Scope", "all_clients", "all_links", "reloaded", "warn_of_wildcard"]

_warned_of: set[bytes] = set()  # patterns


Answerer: TypeAlias = Callable[[bytes, str, bytes], Awaitable[bytes | None]]
"""Asks the hub: the key of a question, what it would do, in words, and a payload."""


def warn_of_wildcard(pattern: bytes, separator: bytes) -> None:
    """Warn, once for each, of a segment that is a wildcard elsewhere: here it stands for itself."""
    for segment in {b"#", b">", b"**"}.intersection(pattern.split(separator)):
        if pattern not in _warned_of:
            _warned_of.add(pattern)
            what = f"{printable(segment)} is no wildcard here, in {printable(pattern)}"
            how = "* is one segment, and a pattern that ends with the separator matches all below"
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
        self.key = key  # under which the answer comes, in the order of such questions; None: it comes with a token
        self.answer: bytes | None = None  # None until it came


class Scope(str):
    """How far all that a client said is in force: ``local``, ``tree`` or ``partial``."""

    trusted_only = False
    """Whether hubs below were not waited for, because the hubs above them do not trust their users."""

    @classmethod
    def of(cls, answer: bytes) -> Self:
        """What a hub answered to a sync."""
        scope = cls(answer.partition(b"\0")[0].decode("ascii", "replace") or "local")
        scope.trusted_only = answer == control.SCOPE_TRUSTED
        return scope


def reloaded(answer: bytes | None, address: str) -> str:
    """What a hub says when it has read its configuration again. Raises :exc:`~sbuslib.errors.StateError` if not."""
    done, _, text = (answer or b"").decode(errors="replace").partition("\0")
    if not done:
        raise StateError(f"{address}: the hub reads its configuration again for trusted users only")
    if done != "done":
        raise StateError(f"{address}: {text} (nothing has changed)")
    return text


async def all_clients(ask: Answerer, address: str) -> list[ClientStatistics]:
    """What the hub tells of each of its clients, asked page by page."""
    clients: list[ClientStatistics] = []
    start: int | None = 0
    while start is not None:
        answer = await ask(control.CLIENTS, "tell its clients", b"%d" % start)
        page = decode_clients(answer, address, start)
        clients += page.clients
        start = page.next
    return clients


async def all_links(ask: Answerer, address: str, key: bytes | None, most: int | None) -> list[LinkStatistics]:
    """What the hub tells of its links, or of the first ``most``, asked page by page."""
    links: list[LinkStatistics] = []
    start: int | None = 0
    while start is not None and (most is None or len(links) < most):
        asked = b"%d" % start if key is None else b"%d\0%b" % (start, key)
        answer = await ask(control.LINKS, "tell its links", asked)
        page = decode_links(answer, address, start)
        links += page.links
        start = page.next
    return links[:most]
