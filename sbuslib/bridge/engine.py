"""What a bridge asks of an engine, and what goes along with a message that crosses. Each engine is a module of its own.

**The origin.** Where an engine can carry headers, a message has one called :data:`ORIGIN`, with four words: the bridge
that sent it, its number among the messages of that bridge with this key, the bus that it came from, and who published
it there. By the bus, a bridge knows what came back. By the number it knows repeats, which it drops, and gaps, which it
counts. The publisher is told as ``HOST/UID/PID``: a claim of the host that it names, and of whoever may publish there.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from ssl import SSLContext, create_default_context
from typing import Final, Protocol, TypeAlias

import msgspec

from ..errors import UsageError
from .mapping import Mapping

__all__ = ["ORIGIN", "Engine", "EngineOptions", "Incoming", "Origin", "Outgoing", "Take", "end"]

ORIGIN: Final = "Sbus-Origin"
_ORIGIN: Final = re.compile(r"([0-9a-f.]{1,40}) ([0-9]{1,15}) ([0-9A-Za-z._-]{1,64}) ([!-~]{0,300})")


class Outgoing(msgspec.Struct, gc=False):
    """A message on its way to the engine. ``number`` is its own among those of the bridge."""

    subject: str
    payload: bytes
    origin: str
    number: int
    key: bytes


class Incoming(msgspec.Struct, gc=False):
    """A message that came from the engine, with its header if it had one.

    ``kept`` says that the engine had stored it, so others may have come before it.
    """

    subject: str
    payload: bytes
    origin: str | None = None
    kept: bool = False


class Origin(msgspec.Struct, frozen=True):
    """What the header of a message says."""

    bridge: str
    count: int
    bus: str
    claim: bytes

    @classmethod
    def decode(cls, text: str) -> Origin | None:
        """Read a header. ``None`` for one that no bridge wrote."""
        found = _ORIGIN.fullmatch(text)
        return cls(found[1], int(found[2]), found[3], found[4].encode()) if found is not None else None


Take: TypeAlias = Callable[[Sequence[Incoming], Callable[[], Awaitable[object]]], Awaitable[None]]
"""Takes messages over from an engine, and calls back to acknowledge them once the hub has passed them on."""


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach an engine, and how to use it. Names of files are paths.

    :param user, password, token: who we are; a user and a password may stand in the URL as well.
    :param nkey, credentials: for NATS, files with a seed, or with a JWT and a seed.
    :param ca, certificate, private_key: files in PEM for TLS: who signs the server's certificate, and our own.
    :param prefix: the first segment of all subjects; empty for none.
    :param stream: the stream of JetStream or Redis that keeps what is exported, and from which imports come.
    :param name: what this bus is called there. What a stream has still to send is kept under this name.
    :param qos: quality of service of MQTT: 0 or 1.
    :param retain: patterns of the keys whose newest message an MQTT server keeps.
    :param version: of MQTT: ``5`` or ``3.1.1``.
    """

    user: str | None = None
    password: str | None = None
    token: str | None = None
    nkey: str | None = None
    credentials: str | None = None
    ca: str | None = None
    certificate: str | None = None
    private_key: str | None = None
    prefix: str = "sbus"
    stream: str | None = None
    name: str | None = None
    qos: int = 1
    retain: tuple[bytes, ...] = ()
    version: str = "5"

    def check(self) -> None:
        """Raise :exc:`~sbuslib.errors.UsageError` if there is a file that cannot be read."""
        for path in (self.ca, self.certificate, self.private_key, self.nkey, self.credentials):
            if path is not None and (os.path.isdir(path) or not os.access(path, os.R_OK)):
                raise UsageError(f"{path}: this file cannot be read")

    def tls(self, wanted: bool) -> SSLContext | None:
        """The TLS context, where TLS is ``wanted`` or files for it are given. Raises as :meth:`check`."""
        if self.private_key and not self.certificate:
            raise UsageError(f"{self.private_key}: a private key needs its certificate")
        if not (wanted or self.ca or self.certificate):
            return None
        try:
            context = create_default_context(cafile=self.ca)
        except OSError as error:
            raise UsageError(f"{self.ca}: no certificates of an authority: {error}") from None
        if self.certificate:
            files = self.certificate, self.private_key
            try:
                # Nobody is asked for a password of the key.
                context.load_cert_chain(*files, password=bytes)
            except (OSError, ValueError) as error:
                told = " and ".join(filter(None, files))
                raise UsageError(f"{told}: no certificate with its key, without a password: {error}") from None
        return context


class Engine(Protocol):
    """One connection to an engine. It connects again by itself; each try that fails is told with ``warn``."""

    mapping: Mapping
    has_origins: bool
    """Whether a header goes along with each message."""
    keeps: bool
    """Whether the engine keeps messages until they are acknowledged, also while the bridge is away."""
    shares: bool
    """Whether the engine gives each message to one of several bridges of a bus."""
    lost: int
    """Messages that the client of the engine dropped, since the bridge took them too slowly."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        ...

    @property
    def payload_bytes(self) -> int:
        """The longest payload."""
        ...

    def fits(self, subject: str) -> bool:
        """Whether the engine can carry this subject."""
        ...

    async def run(self, take: Take, filters: list[str], bus: str, name: str, ready: Callable[[], object]) -> None:
        """Connect, however long that takes, and hand all that ``filters`` take to ``take``, until cancelled.

        ``bus`` is the same for all bridges of a bus; ``name`` is that of the options, or one that lasts. ``ready`` is
        called when the first connection is there and the filters are in force.
        """
        ...

    async def send(self, messages: Sequence[Outgoing]) -> None:
        """Publish, and return when the engine has all of them. Raises :exc:`ConnectionError` if that is uncertain."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


async def end(*tasks: asyncio.Task[None] | None) -> None:
    """End tasks that use a client library, which may swallow that they are cancelled."""
    left = {task for task in tasks if task is not None}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.1)
