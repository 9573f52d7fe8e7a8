"""Files of any size between peers: a plain stream over the connections that are there, to any number of receivers.

The sender publishes an *offer* under the name, again and again. Who takes it subscribes to ``<name>/<id>``, where the
parts come in order, the last of them the SHA-256 of all, and publishes *words* under ``<name>/<id>/to``: how many parts
it has, or why it takes no more. No more than :data:`WINDOW` parts are sent beyond what the slowest has. A receiver that
misses a part, or a connection that is lost, ends that receiver's file: the file is sent anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from secrets import token_hex
from time import monotonic
from typing import Annotated, Final, Self, TypeVar

import msgspec
from msgspec import Meta

from ..doors.copying import Source, open_file
from ..doors.files import FileSink, safe_name
from ..doors.transfers import Received, Sent
from ..errors import PeerError, UsageError
from ..wire.text import plainly
from .framing import Publish
from .inbox import PeerInbox
from .peer import Peer

__all__ = ["PeerFiles", "receive_large", "send_large"]

PART_BYTES: Final = 131_072
"""Bytes of a part. Longer ones gain little."""
WINDOW: Final = 32
"""Parts under way to the slowest receiver: 4 MiB, a fraction of what an inbox keeps."""
MOST_BYTES: Final = 1_073_741_824
"""Bytes of the largest file that is taken, unless the application says otherwise."""
MOST_RECEIVERS: Final = 1_024
"""Receivers of one file that a sender heeds."""
MOST_KNOWN: Final = 1_024
"""Files that a receiver remembers to have seen: their offers come again."""
PAUSE: Final = 0.25
"""Seconds between two offers."""
TIMEOUT: Final = 30.0
"""Seconds without a part, or a word of a receiver, after which a file is given up."""

_INDEX: Final = 8  # bytes before each part: its number, from 0, little-endian
S = TypeVar("S", bound=msgspec.Struct)


class _Offer(msgspec.Struct, frozen=True):
    """What a sender offers, in JSON under the name."""

    large: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    size: Annotated[int, Meta(ge=0, le=2**53)]
    name: Annotated[str, Meta(max_length=255)] = ""

    @property
    def parts(self) -> int:
        """How many parts there are, without the hash."""
        return -(-self.size // PART_BYTES)


class _Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a receiver tells: its random name, how many parts it has, the hash included, or why it takes no more."""

    who: Annotated[str, Meta(max_length=32)]
    have: Annotated[int, Meta(ge=0, le=2**53)] = 0
    refused: Annotated[str, Meta(max_length=200)] = ""


def _decode(data: bytes, kind: type[S]) -> S | None:
    """What somebody sent; ``None`` for anything else."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError):
        return None


class _Sending:
    """One file, open for reading, and what its receivers have."""

    def __init__(self, peer: Peer, name: str, fd: int, offer: _Offer, words: PeerInbox) -> None:
        self._peer = peer
        self._name = name
        self._fd = fd
        self._offer = offer
        self._words = words
        self.taking: dict[str, int] = {}  # parts that each receiver has
        self.done = 0
        self.failed: list[str] = []  # why others have it not

    def gather(self, receivers: int, timeout: float) -> None:
        """Offer the file until so many take it."""
        deadline = monotonic() + timeout
        while len(self.taking) < receivers:
            if self.failed and not self.taking:
                raise PeerError(f"nobody has {self._name}: {', '.join(sorted(set(self.failed)))}")
            if monotonic() > deadline:
                raise TimeoutError(f"{len(self.taking)} of {receivers} receivers took the file within {timeout:g} s")
            self._peer.publish(self._name, msgspec.json.encode(self._offer))
            self._hear(PAUSE, new=True)

    def stream(self, timeout: float) -> Sent:
        """Send the parts, as fast as the slowest takes them."""
        digest, parts = sha256(), self._offer.parts
        for number in range(parts + 1):
            while self.taking and number - min(self.taking.values()) >= WINDOW:
                self._wait(timeout)
            if not self.taking:
                break
            at = number * PART_BYTES
            size = min(PART_BYTES, self._offer.size - at)
            data = os.pread(self._fd, size, at) if number < parts else digest.digest()
            if number < parts and len(data) != size:
                raise UsageError("the file became shorter while it was sent")
            digest.update(data)
            part = number.to_bytes(_INDEX, "little") + data
            self._peer.publish_many([(f"{self._name}/{self._offer.large}", part)], patience=timeout)

        while self.taking:
            self._wait(timeout)
        if not self.done:
            raise PeerError(f"nobody has {self._name}: {', '.join(sorted(set(self.failed)))}")
        return Sent(self.done, tuple(self.failed))

    def _wait(self, timeout: float) -> None:
        """Wait until a receiver goes on. If none does in time, give up those that have least."""
        deadline = monotonic() + timeout
        while not self._hear(max(0.0, deadline - monotonic())):
            if monotonic() >= deadline:
                least = min(self.taking.values())
                for who in [who for who, have in self.taking.items() if have == least]:
                    del self.taking[who]
                    self.failed.append(f"a receiver made no progress for {timeout:g} s")
                return

    def _hear(self, timeout: float, new: bool = False) -> bool:
        """Take the words that come within a time. Returns whether a receiver went on, or a new one came."""
        try:
            messages = self._words.receive_many(timeout=timeout)
        except TimeoutError:
            return False

        went_on = False
        for message in messages:
            word = _decode(message.data, _Word)
            if word is None or (word.who not in self.taking and not new) or len(self.taking) >= MOST_RECEIVERS:
                continue
            before = self.taking.get(word.who, -1)
            if word.refused:
                self.taking.pop(word.who, None)
                self.failed.append(word.refused)
            elif word.have > self._offer.parts:
                self.taking.pop(word.who, None)
                self.done += 1
            elif word.have > before:
                self.taking[word.who] = word.have
            went_on = went_on or bool(word.refused) or word.have > before
        return went_on


def send_large(peer: Peer, name: str, source: Source, *, receivers: int = 1, timeout: float = TIMEOUT) -> Sent:
    """Send a file, or bytes, to so many peers that receive large messages under ``name``.

    Raises :exc:`TimeoutError` when they do not come within ``timeout`` seconds, :exc:`~sbuslib.errors.PeerError` when
    nobody has it in the end, :exc:`OSError` when it cannot be read, and :exc:`~sbuslib.errors.UsageError`.
    """
    identity = token_hex(16)
    fd, file_name = open_file(source)
    try:
        offer = _Offer(identity, os.fstat(fd).st_size, file_name.encode(errors="replace").decode()[:255])
        with peer.subscribe(f"{name}/{identity}/to") as words:
            sending = _Sending(peer, name, fd, offer, words)
            sending.gather(receivers, timeout)
            return sending.stream(timeout)
    finally:
        os.close(fd)


class PeerFiles:
    """The files that a peer receives. What :func:`receive_large` returns. For one caller."""

    def __init__(self, peer: Peer, offers: PeerInbox, folder: str | os.PathLike[str] | None, most: int) -> None:
        self._peer = peer
        self._offers = offers
        self._folder = folder
        self._most = most
        self._known: dict[str, None] = {}  # files that were seen, oldest first

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take no more files."""
        self._offers.close()

    def receive(self, *, timeout: float | None = None) -> Received:
        """The next file that came whole.

        Raises :exc:`TimeoutError` when none is offered for ``timeout`` seconds; :exc:`~sbuslib.errors.PeerError` and
        :exc:`OSError` when one that was coming fails. Call it again for the others.
        """
        while True:
            message = self._offers.receive(timeout=timeout)
            offer = _decode(message.data, _Offer)
            if offer is None or offer.large in self._known:
                continue
            self._known[offer.large] = None
            if len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]
            if offer.size > self._most:
                self._say(message, offer, _Word("", refused=f"{offer.size:,} bytes are more than {self._most:,}"))
            else:
                return self._take(message, offer)

    def __iter__(self) -> Iterator[Received]:
        """Files as they come. Raises as :meth:`receive`."""
        while True:
            yield self.receive()

    def _say(self, message: Publish, offer: _Offer, word: _Word) -> None:
        self._peer.publish(f"{message.name}/{offer.large}/to", msgspec.json.encode(word))

    def _take(self, message: Publish, offer: _Offer) -> Received:
        who, sink, is_whole = token_hex(8), FileSink(self._folder, safe_name(offer.name, offer.large)), False
        try:
            with self._peer.subscribe(f"{message.name}/{offer.large}") as parts:
                self._say(message, offer, _Word(who))
                self._take_parts(message, offer, parts, sink, who)
            file, is_whole = sink.finish(), True
        except (OSError, PeerError) as error:
            self._say(message, offer, _Word(who, refused=plainly(error)[:200]))
            raise
        finally:
            if not is_whole:
                sink.discard()
        self._say(message, offer, _Word(who, offer.parts + 1))
        return Received(message.name.encode(), offer.name, offer.size, file)

    def _take_parts(self, message: Publish, offer: _Offer, parts: PeerInbox, sink: FileSink, who: str) -> None:
        digest, have = sha256(), 0
        while have <= offer.parts:
            try:
                part = parts.receive(timeout=TIMEOUT)
            except TimeoutError:
                raise PeerError(f"{message.name}: nothing came for {TIMEOUT:g} s") from None
            if part.name != f"{message.name}/{offer.large}":  # another receiver's word
                continue
            data = memoryview(part.data)[_INDEX:]
            is_last = have == offer.parts
            size = digest.digest_size if is_last else min(PART_BYTES, offer.size - have * PART_BYTES)
            if int.from_bytes(part.data[:_INDEX], "little") != have or len(data) != size:
                raise PeerError(f"{message.name}: a part is missing")
            if is_last and data != digest.digest():
                raise PeerError(f"{message.name}: what came is not what was sent")
            if not is_last:
                sink.write(data)
                digest.update(data)
            have += 1
            if have % (WINDOW // 4) == 0 and not is_last:
                self._say(message, offer, _Word(who, have))


def receive_large(
    peer: Peer, *substrings: str, folder: str | os.PathLike[str] | None = None, most: int = MOST_BYTES
) -> PeerFiles:
    """Receive files under names that contain one of ``substrings``, into a folder or open temporary files.

    ``most`` is the bytes of the largest file that is taken.
    """
    return PeerFiles(peer, peer.subscribe(*substrings), folder, most)
