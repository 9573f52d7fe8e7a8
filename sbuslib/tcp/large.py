"""Transfer of files of any size between peers: a stream over existing connections, to any number of receivers.

The sender publishes an *offer* under the name, again and again: ``{"large": "<id>", "size": 3000, "name": "a.txt"}``,
where ``<id>`` is 32 random hexadecimal digits. A receiver subscribes to ``<name>/<id>/<who>``, and publishes *requests*
under ``<name>/<id>/receivers``: ``{"who": "<8 digits>", "at": 0}`` asks for the next :data:`STEP_BYTES` from that byte
on; with ``"is_whole": true`` it has the whole file, with ``"refused": "<why>"`` it takes no more. Parts begin with
their position in the file: 8 bytes, little-endian. The only state of a receiver at the sender is the time of its last
progress. A receiver asks again for parts that were lost on the way or with a connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from secrets import token_hex
from time import monotonic
from typing import Annotated, Final, Self, TypeVar

import msgspec
from msgspec import Meta

from ..clients.fds.copying import Source, open_file
from ..clients.fds.files import FileSink, safe_name
from ..clients.fds.transfers import ReceivedFile, Sent, Transfer
from ..errors import PeerError, UsageError
from ..limits import check_seconds
from ..malformed import MALFORMED
from ..wire.offers import ASK, FAILED, HAVE
from ..wire.text import plainly
from .framing import Publish
from .peer import Peer
from .peer_inbox import PeerInbox

PART_BYTES: Final = 131_072
"""Bytes of a part. Longer ones gain little."""
STEP_BYTES: Final = 16 * PART_BYTES
"""Bytes that are asked for at once. Two steps are under way to each receiver: a quarter of what may wait for a peer."""
MOST_BYTES: Final = 1_073_741_824
"""Bytes of the largest file that is taken, unless the application says otherwise."""
MOST_RECEIVERS: Final = 1_024
"""Receivers of one file that a sender heeds."""
MOST_KNOWN: Final = 1_024
"""Files that a receiver remembers to have seen: their offers come again."""
PAUSE: Final = 0.25
"""Seconds between two offers."""
AGAIN: Final = 5.0
"""Seconds without a part after which a receiver asks again."""
TIMEOUT: Final = 30.0
"""Seconds in which a file does not go on, after which it is given up."""

_INDEX: Final = 8  # bytes before each part: where in the file it belongs, little-endian
S = TypeVar("S", bound=msgspec.Struct)


class _Offer(msgspec.Struct, frozen=True):
    """Offer of a file, in JSON under the name."""

    large: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    size: Annotated[int, Meta(ge=0, le=2**53)]
    name: Annotated[str, Meta(max_length=255)] = ""


class _Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """Request of a receiver: its random name, and the position of the next bytes it wants, or why it wants no more."""

    who: Annotated[str, Meta(pattern=r"\A[0-9a-f]{8}\Z")]
    at: Annotated[int, Meta(ge=0, le=2**53)] = 0
    is_whole: bool = False
    refused: Annotated[str, Meta(max_length=200)] = ""


def _decode(data: bytes, kind: type[S]) -> S | None:
    """Decode an offer or a request; ``None`` for any other data."""
    try:
        return msgspec.json.decode(data, type=kind)
    except MALFORMED:
        return None


class _Sending:
    """One file that is open for reading. ``place`` is the prefix of the names of its parts."""

    def __init__(self, peer: Peer, place: str, fd: int, transfer: Transfer) -> None:
        self._peer = peer
        self._place = place
        self._fd = fd
        self._transfer = transfer
        self._stat = os.fstat(fd)  # as it was at first
        self._reached: dict[str, int] = {}  # the farthest place that each receiver asked for
        self.size = self._stat.st_size

    def hear(self, words: PeerInbox) -> None:
        """Answer requests of receivers, for a moment."""
        with suppress(TimeoutError):
            for message in words.receive_many(timeout=PAUSE):
                if (word := _decode(message.data, _Word)) is not None:
                    self._act_on(word)

    def _act_on(self, word: _Word) -> None:
        now, before = monotonic(), self._reached.get(word.who, -1)
        if word.at > before and (before >= 0 or len(self._reached) < MOST_RECEIVERS):
            self._reached[word.who] = word.at
            self._transfer.hear(word.who, ASK, "", True, now)
        if word.is_whole or word.refused:
            self._transfer.hear(word.who, HAVE if word.is_whole else FAILED, word.refused, True, now)
        elif word.who in self._reached:
            self._send_step(word)

    def _send_step(self, word: _Word) -> None:
        parts, end = list[tuple[str, bytes]](), min(self.size, word.at + STEP_BYTES)
        for at in range(word.at, end, PART_BYTES):
            part = os.pread(self._fd, min(PART_BYTES, end - at), at)
            parts.append((f"{self._place}/{word.who}", at.to_bytes(_INDEX, "little") + part))

        now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns) != (self.size, self._stat.st_mtime_ns):
            raise UsageError("the file changed while it was sent")
        self._peer.publish_many(parts)


def send_large(peer: Peer, name: str, source: Source, *, receivers: int = 1, timeout: float = TIMEOUT) -> Sent:
    """Send a file, or bytes, to so many peers that receive large messages under ``name``.

    Further receivers have ``timeout`` seconds more. Raises :exc:`TimeoutError` when there are fewer receivers within
    ``timeout`` seconds, :exc:`~sbuslib.errors.PeerError` when no receiver got the whole file, :exc:`OSError` when it
    cannot be read, and :exc:`~sbuslib.errors.UsageError`.
    """
    timeout, identity = check_seconds(timeout, "timeout"), token_hex(16)
    fd, file_name = open_file(source)
    try:
        transfer, offered = Transfer(receivers, timeout, monotonic()), -inf
        sending = _Sending(peer, f"{name}/{identity}", fd, transfer)
        offer = msgspec.json.encode(_Offer(identity, sending.size, file_name.encode(errors="replace").decode()[:255]))
        with peer.subscribe(f"{name}/{identity}/receivers") as words:
            while not transfer.is_over(now := monotonic()):
                if now - offered >= PAUSE:
                    peer.publish(name, offer)
                    offered = now
                sending.hear(words)

            # Others that have begun may end.
            end = monotonic() + timeout
            while transfer.copying and monotonic() < end:
                sending.hear(words)
        return transfer.result(name)
    finally:
        os.close(fd)


class PeerFiles:
    """Iterator of the files that a peer receives, made by :func:`receive_large`. For one caller."""

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
        self._offers.unsubscribe()

    def receive(self, *, timeout: float | None = None) -> ReceivedFile:
        """Wait for the next whole file.

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
            if (received := self._take(message, offer)) is not None:
                return received

    def __iter__(self) -> Iterator[ReceivedFile]:
        """Yield files as they come. Raises as :meth:`receive`."""
        while True:
            yield self.receive()

    def _take(self, message: Publish, offer: _Offer) -> ReceivedFile | None:
        """Receive the file of an offer; ``None``, after a refusal to the sender, if it is too large."""
        who, place = token_hex(4), f"{message.name}/{offer.large}"

        def say(at: int = 0, is_whole: bool = False, refused: str = "") -> None:
            self._peer.publish(f"{place}/receivers", msgspec.json.encode(_Word(who, at, is_whole, refused[:200])))

        if offer.size > self._most:
            say(refused=f"{offer.size:,} bytes are more than {self._most:,}")
            return None
        sink, is_whole = FileSink(self._folder, safe_name(offer.name, offer.large)), False
        try:
            with self._peer.subscribe(f"{place}/{who}") as parts:
                self._take_parts(message.name, offer.size, parts, sink, say)
            file, is_whole = sink.finish(), True
        except (OSError, PeerError) as error:
            say(refused=plainly(error))
            raise
        finally:
            if not is_whole:
                sink.discard()
        say(offer.size, is_whole=True)
        return ReceivedFile(message.name.encode(), offer.name, offer.size, file)

    @staticmethod
    def _take_parts(name: str, size: int, parts: PeerInbox, sink: FileSink, say: Callable[[int], object]) -> None:
        have, asked, went_on = 0, 0, monotonic()
        while have < size:
            # 1. Two steps are under way, so that the parts never stop coming.
            while asked < size and asked - have <= STEP_BYTES:
                say(asked)
                asked += STEP_BYTES

            # 2. The next part. If others come, or none, one was lost.
            try:
                data = parts.receive(timeout=AGAIN).data
            except TimeoutError:
                if monotonic() - went_on > TIMEOUT:
                    raise PeerError(f"{name}: nothing came for {TIMEOUT:g} s") from None
                asked = have
                continue
            part = memoryview(data)[_INDEX:]
            if int.from_bytes(data[:_INDEX], "little") == have and 0 < len(part) <= size - have:
                sink.write(part)
                have, went_on = have + len(part), monotonic()


def receive_large(
    peer: Peer, *substrings: str, folder: str | os.PathLike[str] | None = None, most: int = MOST_BYTES
) -> PeerFiles:
    """Receive files under names that contain one of ``substrings``, into a folder or open temporary files.

    ``most`` is the bytes of the largest file that is taken.
    """
    return PeerFiles(peer, peer.subscribe(*substrings), folder, most)
