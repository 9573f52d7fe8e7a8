"""Interface of brokers to a bridge, their options, and the origin header. Each kind of broker is a module of its own.

**The origin.** Where a broker can carry headers, a message has one called :data:`ORIGIN`, with four words: the bridge
that sent it, its number among the messages of that bridge with this key, the bus that it came from, and its publisher
there. With the bus, a bridge recognizes its own messages that come back; with the number, duplicates. It drops both.
The publisher is written as ``HOST/UID/PID``. That is a claim: any client that may publish at the broker can write it.
"""

from __future__ import annotations

import asyncio
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import ClassVar, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec

from ..errors import UsageError
from ..federation.name_format import NameFormat
from ..kernel.tls import make_context

T = TypeVar("T")

ORIGIN: Final = "Sbus-Origin"
_PREFIX: Final = re.compile(r"[0-9A-Za-z_-]*")
_ORIGIN: Final = re.compile(r"([0-9a-f.]{1,40}) ([0-9]{1,15}) ([0-9A-Za-z._-]{1,64}) ([!-~]{0,300})")
BATCH: Final = 256
"""Messages of one batch for the bridge."""
UNREAD: Final = 16_384
"""Messages that wait for the bridge; further ones are dropped."""
_UNREAD_BYTES: Final = 64 * 1_024 * 1_024
""":data:`UNREAD` long ones would fill the memory: a server allows some a megabyte each."""
_WARNINGS: Final = 100
"""Different warnings before there is a new connection."""

BROKERS: Final = {
    "nats": "nats",
    "tls": "nats",
    "mqtt": "mqtt",
    "mqtts": "mqtt",
    "redis": "redis",
    "rediss": "redis",
}
"""The module for each scheme of a URL. The extra of the package has the same name."""


class Leaving(msgspec.Struct, gc=False):
    """A message on its way to the broker. ``number`` is its own among those of the bridge."""

    subject: str
    payload: bytes
    origin: str
    number: int
    key: bytes


class Incoming(msgspec.Struct, gc=False):
    """A message that came from the broker, with its header if it had one."""

    subject: str
    payload: bytes
    origin: str | None = None


class Origin(msgspec.Struct, frozen=True):
    """Header of a message: its origin."""

    bridge: str
    count: int
    bus: str
    claim: bytes

    @classmethod
    def decode(cls, text: str) -> Origin | None:
        """Decode a header. ``None`` for one that no bridge wrote."""
        match = _ORIGIN.fullmatch(text)
        return cls(match[1], int(match[2]), match[3], match[4].encode()) if match is not None else None


Take: TypeAlias = Callable[[Sequence[Incoming], Callable[[], Awaitable[object]]], Awaitable[None]]
"""Imports messages of a broker, and calls back to acknowledge them once the hub has passed them on."""


class BrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a bridge for its broker: identity, TLS, naming, persistence. Names of files are paths.

    :param user, password, token: credentials; a user and a password may stand in the URL as well.
    :param nkey, credentials: for NATS, files with a seed, or with a JWT and a seed.
    :param ca, certificate, private_key: files in PEM for TLS: the authority of the server's certificate, and our own
        certificate and key.
    :param prefix: the first segment of all subjects; empty for none.
    :param stream: the stream of JetStream or Redis that keeps exported messages, and from which imports come.
    :param name: name of this bus there. A stream keeps the position of its imports under this name.
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

    def start(self, between: str) -> str:
        """Prefix of all subjects."""
        return self.prefix + between if self.prefix else ""

    def check(self) -> None:
        """Raise :exc:`~sbuslib.errors.UsageError` for a wrong prefix, and if there is a file that cannot be read."""
        if not _PREFIX.fullmatch(self.prefix):
            raise UsageError(f"a prefix is letters, digits, '_' and '-', not {self.prefix!r}")
        for path in (self.ca, self.certificate, self.private_key, self.nkey, self.credentials):
            if path is not None and (os.path.isdir(path) or not os.access(path, os.R_OK)):
                raise UsageError(f"{path}: this file cannot be read")

    def tls(self, wanted: bool) -> SSLContext | None:
        """The TLS context, where TLS is ``wanted`` or files for it are given. Raises as :meth:`check`."""
        files = self.certificate, self.private_key, self.ca
        return make_context(SSLContext, PROTOCOL_TLS_CLIENT, *files) if wanted or any(files) else None


class Broker(ABC):
    """One connection to a broker. It connects again by itself.

    :param warn: logs what goes wrong.
    """

    name_format: NameFormat
    has_origins: bool = True
    """Whether a header goes along with each message."""
    keeps: bool = False
    """Whether the broker keeps messages until they are acknowledged, also while the bridge is away."""
    shares: bool = False
    """Whether the broker gives each message to one of several bridges of a bus."""
    payload_bytes: int = 400_000
    """The longest payload."""
    lost: int = 0
    """Messages that the client of the broker dropped, since the bridge took them too slowly."""
    SUBJECT_BYTES: ClassVar[int] = 65_535

    def __init__(self, url: str, options: BrokerOptions, separator: bytes, warn: Callable[[str], object]) -> None:
        self._url = url
        self._options = options
        self._warn = warn
        self._warned: set[str] = set()  # texts logged since there was a connection
        self.connected = asyncio.Event()
        """Set while there is a connection."""
        self.ready = asyncio.Event()
        """Set when the first connection is there and the filters are in force."""

    def fits(self, subject: str) -> bool:
        """Whether the broker can carry this subject."""
        return len(subject.encode()) <= self.SUBJECT_BYTES

    def warn_once(self, trouble: str) -> None:
        """Log a problem, once until there is a new connection: each attempt may fail in several ways."""
        if trouble not in self._warned and len(self._warned) < _WARNINGS:
            self._warned.add(trouble)
            self._warn(trouble)

    def _on_connected(self) -> None:
        """Note that there is a connection, which may be new."""
        if not self.connected.is_set():
            self._warned.clear()
            self.connected.set()

    @abstractmethod
    async def run(self, take: Take, patterns: Sequence[bytes], bus: str, name: str) -> None:
        """Connect, however long that takes, and hand all that ``patterns`` match to ``take``, until cancelled.

        ``bus`` is the same for all bridges of a bus; ``name`` is that of the options, or one that lasts.
        """

    @abstractmethod
    async def send(self, messages: Sequence[Leaving]) -> None:
        """Publish, and return when the broker has all of them. Raises :exc:`ConnectionError` if that is uncertain."""

    async def drain(self) -> None:  # noqa: B027
        """Stop receiving, and wait until the bridge took all that came. A stream would deliver the rest again, late."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""


class Unread(asyncio.Queue[T]):
    """Queue of messages for the bridge, which is as slow as its hub. Bounded by number and by bytes.

    :param size: size of a message.
    """

    def __init__(self, size: Callable[[T], int]) -> None:
        super().__init__(UNREAD)
        self._size_of = size
        self._bytes = 0  # of all that wait

    def full(self) -> bool:
        return super().full() or self._bytes >= _UNREAD_BYTES

    def _put(self, item: T) -> None:
        self._bytes += self._size_of(item)
        super()._put(item)

    def _get(self) -> T:
        item = super()._get()
        self._bytes -= self._size_of(item)
        return item


async def next_batch(queue: asyncio.Queue[T]) -> list[T]:
    """Wait for a message. Returns it, and more that wait already."""
    batch = [await queue.get()]
    while len(batch) < BATCH and not queue.empty():
        batch.append(queue.get_nowait())
    return batch


def make_broker(url: str, options: BrokerOptions, separator: bytes, warn: Callable[[str], object]) -> Broker:
    """Make the broker for a URL, not yet connected. Raises :exc:`~sbuslib.errors.UsageError`."""
    name, *others = map(_module_of, url.split(",") if url.startswith(("nats:", "tls:")) else [url])
    if any(other != name for other in others):
        raise UsageError("a bridge joins one broker")
    try:
        module = import_module(f".{name}", __package__)
        broker: Broker = getattr(module, name.capitalize())(url, options, separator, warn)
    except ImportError as error:
        raise UsageError(f"{error}: pip install 'sbuslib[{name}]'") from None
    return broker


def _module_of(url: str) -> str:
    """The module for a URL. The error does not repeat the URL, where a password may be."""
    try:
        place = urlsplit(url)
        if place.scheme in BROKERS and place.hostname and place.port != 0 and not place.query:
            return BROKERS[place.scheme]
    except ValueError:
        pass
    raise UsageError(f"the URL of a broker is SCHEME://HOST or SCHEME://HOST:PORT; schemes: {', '.join(BROKERS)}")
