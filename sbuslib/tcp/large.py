"""Files of any size between peers: :mod:`sbuslib.recipes.large`, with names in place of keys.

Offers come under the name, parts under ``<name>/<id>``, and words under ``<name>/<id>/to``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from secrets import token_hex
from time import monotonic

from gevent.event import Event

from ..clients.channel import run
from ..clients.endpoint import Files
from ..clients.objects import AioFiles
from ..kernel.files import FileSink, Source, open_source, safe_name
from ..recipes.large import MOST_BYTES, PART_BYTES, Offer, Receiving, Sending, Sent
from ..recipes.mailbox import Mailbox
from ..wire.packets import Message
from .framing import Publish
from .peer import Peer

__all__ = ["receive_large", "send_large"]


class _Box:
    """Puts what a peer receives into a mailbox: what is under its very name, or for offers what has it in its name."""

    def __init__(self, mailbox: Mailbox, whole: bool, came: Event) -> None:
        self._mailbox = mailbox
        self._names = {pattern.decode() for pattern in mailbox.patterns} if whole else None
        self._came = came

    def take(self, messages: Sequence[Publish], source: object) -> None:
        for message in messages:
            if self._names is None or message.name in self._names:
                self._mailbox.put(Message(message.name.encode(), message.data))
        self._came.set()


class _Party:
    """What one transfer, or one receiver, uses of a peer."""

    def __init__(self, peer: Peer, offers: tuple[bytes, ...] = ()) -> None:
        self._peer = peer
        self._offers = offers
        self._boxes: dict[int, _Box] = {}
        self._came = Event()

    async def publish(self, key: bytes, payload: bytes) -> None:
        self._peer.publish(key.decode(), payload)

    async def open_mailbox(self, mailbox: Mailbox) -> None:
        box = self._boxes[id(mailbox)] = _Box(mailbox, tuple(mailbox.patterns) != self._offers, self._came)
        self._peer.attach(box, *(pattern.decode() for pattern in mailbox.patterns))

    async def close_mailbox(self, mailbox: Mailbox) -> None:
        self._peer.detach(self._boxes.pop(id(mailbox)))

    async def wait_until(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        deadline = None if timeout is None else monotonic() + timeout
        while not ready():
            self._came.clear()
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                return False
            self._came.wait(left)
        return True


def send_large(peer: Peer, name: str, source: Source, *, receivers: int = 1, timeout: float = 30.0) -> Sent:
    """Send a file, or bytes, to peers that receive large messages under ``name``. As ``Client.send_large``."""
    key, identity = name.encode(), token_hex(16)
    with open_source(source) as opened:
        offer = Offer(identity, opened.size, PART_BYTES, opened.name.encode(errors="replace").decode())
        words = Mailbox(b"/".join((key, identity.encode(), b"to")))
        sending = Sending(_Party(peer), key, b"/", offer, words, opened.read)  # type: ignore[arg-type]  # it has what this needs
        return run(sending.run(receivers, timeout, monotonic))


def receive_large(
    peer: Peer,
    *substrings: str,
    folder: str | os.PathLike[str] | None = None,
    most: int = MOST_BYTES,
    timeout: float = 30.0,
) -> Files:
    """Receive files under names that contain one of ``substrings``. As ``Client.receive_large``."""

    def sink(offer: Offer) -> FileSink:
        return FileSink(folder, safe_name(offer.name, offer.large))

    patterns = tuple(substring.encode() for substring in substrings)
    party = _Party(peer, patterns)
    files = AioFiles(Receiving(party, patterns, b"/", token_hex(8), sink, most, timeout, monotonic))  # type: ignore[arg-type]
    run(files.start())
    return Files(files)
