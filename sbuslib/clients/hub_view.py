"""The hub of a client: ``client.hub``. For asyncio as it is."""

from __future__ import annotations

from ..errors import KeyFormatError, StateError
from ..limits import check_count
from ..secrets import Credentials, Namespace, credentials_of
from ..statistics import (
    ClientStatistics,
    Explanation,
    HeldPatterns,
    HubStatistics,
    LinkStatistics,
    decode_clients,
    decode_explanation,
    decode_held_patterns,
    decode_links,
    decode_statistics,
)
from ..wire import control
from ..wire.packets import Key, as_key
from ..wire.text import printable
from .basic_operations import BasicOperations
from .handles import starting
from .hub_requests import HubQuestion
from .present import AioInterest, watch_interest
from .session import Session


class Offers:
    """Features of a client's hub, on this connection."""

    def __init__(self, session: Session) -> None:
        self.session = session  # of the client

    @property
    def features(self) -> control.Features | None:
        """The hub's features; ``None`` for one that has none, for example the C daemon."""
        return self.session.features

    @property
    def separator(self) -> bytes:
        """The byte between the segments of a key on this hub."""
        return self.session.separator

    def credentials_of(self, sender: bytes | None) -> Credentials | None:
        """The process that answers for what has this ``sender``: a message, frame, question, answer or job.

        See :func:`sbuslib.secrets.credentials_of`. *None* without a sender, as for a client without ``senders=True``.
        """
        return credentials_of(sender, self.session.credentials, self.session.separator)

    def can(self, feature: str) -> bool:
        """Return whether the hub has an extension, for example ``"senders"``, ``"notices"``, ``"batch"`` or
        ``"sync"``.
        """
        words = self.session.features.words if self.session.features is not None else ()
        return any(as_key(feature, "feature") in word.split(b"/") for word in words)


class AioHubView(Offers):
    """The hub of a client: its features, and requests to it. ``client.hub`` is one.

    Each request raises :exc:`TimeoutError` and :exc:`~sbuslib.errors.DisconnectedError`.
    """

    def __init__(self, operations: BasicOperations) -> None:
        super().__init__(operations.connection.session)
        self._operations = operations

    async def whoami(self) -> bytes:
        """Ask for this client's credential key, ``!/cred/<gid>/<uid>/<pid>``."""
        return await self._operations.whoami()

    async def is_wanted(self, key: Key, *, timeout: float | None = None) -> bool | None:
        """Return whether ``key`` has addressees now, as far as the hub knows; ``None`` if it does not know in time.

        A monitor is no addressee.

        A hub knows the interest of its whole tree, and answers nothing about keys that this client may not publish to.
        Raises :exc:`~sbuslib.errors.KeyFormatError`.
        """
        return await self._operations.is_wanted(key, timeout=timeout)

    @starting
    async def watch_interest(self, pattern: Key) -> AioInterest:
        """Watch whether ``pattern``, or any key that it matches, has addressees: ``wanted``, then events.

        Changes are coalesced. *None* where the hub does not know, and for keys to which this client may not publish.
        Raises :exc:`~sbuslib.errors.StateError` for a hub without watches, and as :meth:`is_wanted`.
        """
        return await watch_interest(self._operations, pattern)

    async def statistics(self) -> HubStatistics:
        """Its counts. Raises :exc:`~sbuslib.errors.StateError` when it has none or does not trust this user with
        them."""
        return decode_statistics(await self._ask(control.STATISTICS, "give statistics"), self._address)

    async def clients(self) -> list[ClientStatistics]:
        """The counts of each of its clients, however many there are. Raises as :meth:`statistics`."""
        clients: list[ClientStatistics] = []
        start: int | None = 0
        while start is not None:
            page = decode_clients(
                await self._ask(control.CLIENTS, "tell its clients", b"%d" % start), self._address, start
            )
            clients += page.clients
            start = page.next
        return clients

    async def patterns(self) -> list[HeldPatterns]:
        """The patterns of each of its clients, but for secret ones. Raises as :meth:`statistics`."""
        held: list[HeldPatterns] = []
        start: int | None = 0
        while start is not None:
            answer = await self._ask(control.PATTERNS, "tell its clients' patterns", b"%d" % start)
            page = decode_held_patterns(answer, self._address, start)
            held += page.clients
            start = page.next
        return held

    async def links(self, *, most: int | None = None) -> list[LinkStatistics]:
        """The counts of each of its links to other hubs, or of the first ``most``. Raises as :meth:`statistics`."""
        check_count(most, "most")
        links: list[LinkStatistics] = []
        start: int | None = 0
        while start is not None and (most is None or len(links) < most):
            page = decode_links(await self._ask(control.LINKS, "tell its links", b"%d" % start), self._address, start)
            links += page.links
            start = page.next
        return links[:most]

    async def why(self, key: Key, *, sender: Key | int | None = None, receiver: Key | int | None = None) -> Explanation:
        """Explain where a message under ``key`` would end, if it were published on this hub now. Nothing is sent.

        ``sender`` and ``receiver`` are ids of users or credential keys of clients: by default this client sends, and
        all receivers of the key are in the answer. A user whom the hub does not trust sees only its own clients. Raises
        :exc:`~sbuslib.errors.KeyFormatError`, and :exc:`~sbuslib.errors.StateError` where the hub is too old for this.
        """
        parts = [as_key(key)]
        for party in (sender, receiver):
            parts.append(b"%d" % party if isinstance(party, int) else as_key(party or b"", "credential key"))
            is_key = parts[-1] in (b"", b"parent") or Namespace(self.session.separator).chain(parts[-1])
            if not (is_key or (isinstance(party, int) and 0 <= party < 2**32)):
                raise KeyFormatError(f"{printable(parts[-1][:80])} is neither the id of a user nor a credential key")
        connection, rest = self._operations.connection, b"\0" + b"\0".join(parts)

        def ask() -> HubQuestion:
            connection.require(control.WHY, "this hub cannot tell what becomes of a message: it is an older one")
            return self.session.ask_by_token(control.WHY, rest)

        return decode_explanation(await connection.ask(ask, connection.limit()), self._address)

    async def reload(self) -> str:
        """Have it read its configuration file again, and wait until it has applied it. Returns its report.

        Raises :exc:`~sbuslib.errors.StateError` if it does not trust us, has no configuration file, or finds an error.
        """
        answer = await self._ask(control.RELOAD, "read its configuration again")
        done, _, text = (answer or b"").decode(errors="replace").partition("\0")
        if not done:
            raise StateError(f"{self._address}: the hub reads its configuration again for trusted users only")
        if done != "done":
            raise StateError(f"{self._address}: {text} (nothing has changed)")
        return text

    @property
    def _address(self) -> str:
        return self._operations.connection.address

    async def _ask(self, key: bytes, what: str, payload: bytes = b"") -> bytes:
        connection = self._operations.connection

        def ask() -> HubQuestion:
            connection.require(key, f"this hub cannot {what}")
            return self.session.ask(key, payload)

        return await connection.ask(ask, connection.limit())
