"""What a hub answers to the questions of a client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self, TypeAlias

from ..errors import StateError
from ..statistics import ClientStatistics, LinkStatistics, decode_clients, decode_links
from ..wire import control

__all__ = ["Scope", "all_clients", "all_links", "reloaded"]


Answerer: TypeAlias = Callable[[bytes, str, bytes], Awaitable[bytes | None]]
"""Asks the hub: the key of a question, what it would do, in words, and a payload."""


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
