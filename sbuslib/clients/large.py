"""The large messages of a client: what :mod:`sbuslib.patterns.large` needs of it, and the files that it receives."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Iterator
from secrets import token_hex
from time import monotonic
from typing import Protocol, Self, TypeVar

from ..errors import UsageError
from ..kernel.files import FileSink, Opened, safe_name
from ..patterns.large import PART_BYTES, Offer, Received, Receiving, Sending, Sent
from ..patterns.steps import Mailbox, Steps
from .base import ClientBase

__all__ = ["AioFiles", "Files", "receiving", "sending"]

T = TypeVar("T")


def sending(
    client: ClientBase, key: bytes, opened: Opened, name: str | None, receivers: int, timeout: float
) -> Steps[Sent]:
    """Send one file. Raises :exc:`~sbuslib.errors.UsageError` for what cannot be sent."""
    if receivers < 1:
        raise UsageError(f"receivers is at least 1, not {receivers!r}")
    session, identity = client._session, token_hex(16)
    session.check_publishable(key)
    words = Mailbox(session.separator.join((client.credentials, b"large", identity.encode())))
    told = (opened.name if name is None else name).encode(errors="replace").decode()
    offer = Offer(identity, opened.size, PART_BYTES, told[:255])
    return Sending(key, session.separator, offer, words, opened.read).run(receivers, timeout, monotonic)


def receiving(
    client: ClientBase, patterns: tuple[bytes, ...], folder: str | os.PathLike[str] | None, most: int, timeout: float
) -> Receiving:
    """Receive files into a folder, or into temporary files. A name that is not safe is replaced by the id."""

    def sink(offer: Offer) -> FileSink:
        return FileSink(folder, safe_name(offer.name, offer.large))

    return Receiving(patterns, client._session.separator, token_hex(8), sink, most, timeout, monotonic)


class _Client(Protocol):
    def perform(self, steps: Steps[T]) -> T: ...


class _AioClient(Protocol):
    def perform(self, steps: Steps[T]) -> Awaitable[T]: ...


class Files:
    """The files that a client receives, within a ``with``. What ``client.receive_large`` returns. For one caller."""

    def __init__(self, client: _Client, receiving: Receiving) -> None:
        self._client = client
        self._receiving = receiving

    def __enter__(self) -> Self:
        self._client.perform(self._receiving.open())
        return self

    def __exit__(self, *_: object) -> None:
        self._client.perform(self._receiving.close())

    def receive(self, timeout: float | None = None) -> Received:
        """The next file that came whole.

        Raises :exc:`TimeoutError` after ``timeout`` seconds; :exc:`~sbuslib.errors.PeerError` and :exc:`OSError` when a
        file that was coming fails. Call it again for the others.
        """
        return self._client.perform(self._receiving.next(timeout))

    def __iter__(self) -> Iterator[Received]:
        """Files as they come. Raises as :meth:`receive`."""
        while True:
            yield self.receive()


class AioFiles:
    """As :class:`Files`, for ``async with``."""

    def __init__(self, client: _AioClient, receiving: Receiving) -> None:
        self._client = client
        self._receiving = receiving

    async def __aenter__(self) -> Self:
        await self._client.perform(self._receiving.open())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.perform(self._receiving.close())

    async def receive(self, timeout: float | None = None) -> Received:
        return await self._client.perform(self._receiving.next(timeout))

    async def __aiter__(self) -> AsyncIterator[Received]:
        while True:
            yield await self.receive()
