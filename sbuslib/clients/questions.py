"""The questions that a client asks its hub, each with its answer. A question may be asked again on a new connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self, TypeAlias

from ..errors import StateError, UsageError
from ..statistics import ClientStatistics, LinkStatistics, decode_clients, decode_links
from ..wire import control
from .session import Session

__all__ = ["Scope", "Sync", "Whoami", "all_clients", "all_links", "reloaded"]


Answerer: TypeAlias = Callable[[bytes, str, bytes], Awaitable[bytes | None]]
"""Asks the hub: the key of a question, what it would do, in words, and a payload."""


class Scope(str):
    """How far all that a client said is in force: ``local``, ``tree`` or ``partial``."""

    trusted_only = False
    """Whether hubs below were not waited for, because the hubs above them do not trust their users."""


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


class Whoami:
    """The question for the client's own credentials, which are the session's once it is answered."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ticket = 0

    def ask(self) -> list[bytes]:
        """The packets that ask."""
        self._ticket, packet = self._session.whoami()
        return [packet]

    def is_answered(self) -> bool:
        return self._session.knows_itself(self._ticket)


class Sync:
    """The question whether all that the client said is in force. Used with ``with``, which ends the wait for answers.

    Raises :exc:`~sbuslib.errors.UsageError` for a scope that there is not.
    """

    def __init__(self, session: Session, scope: str) -> None:
        if scope not in ("local", "tree"):
            raise UsageError(f"a scope is 'local' or 'tree', not {scope!r}")
        self._session = session
        self._scope = scope.encode()
        self._tokens: list[bytes] = []

    def ask(self) -> list[bytes]:
        """The packets that ask."""
        token, packet = self._session.sync(self._scope)
        self._tokens.append(token)
        return [packet]

    def is_answered(self) -> bool:
        return bool(self.answer)

    @property
    def answer(self) -> Scope:
        """How far it is in force; empty without an answer."""
        scope = self._session.scopes.get(self._tokens[-1], b"")
        answer = Scope(scope.partition(b"\0")[0].decode("ascii", "replace"))
        answer.trusted_only = scope == control.SCOPE_TRUSTED
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for token in self._tokens:
            self._session.scopes.pop(token, None)
