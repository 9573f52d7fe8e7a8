"""What clients hand out at their doors: frames, descriptors, files."""

from __future__ import annotations

import os
from math import inf
from time import monotonic
from typing import Any, Final

from ..doors.copying import open_file
from ..doors.memory import bytes_of
from ..doors.transfers import Sent, Transfer
from ..errors import PayloadError
from ..wire.offers import MAGIC, META_BYTES, Offer, encode_offer
from ..wire.text import printable
from .basics import Basics

__all__ = ["publish_descriptor", "publish_frame", "send_file"]

PAUSE: Final = 0.25
"""Seconds between two offers of a file."""
LONGEST_NAME: Final = 255
"""Characters of a file's name."""
MOST_IN_PACKET: Final = 98_304
"""Bytes of the largest frame that goes in its packet: longer ones are quicker as memory, also to one receiver."""


async def publish_frame(verbs: Basics, key: bytes, frame: object, meta: bytes) -> None:
    """Publish a frame: in its packet while that is quicker, or as memory."""
    view = bytes_of(frame)
    if view.nbytes <= MOST_IN_PACKET and not meta and bytes(view[: len(MAGIC)]) != MAGIC:
        await verbs.publish(key, frame if type(frame) is bytes else bytes(view))
        return
    _check(verbs, key, meta)
    offer = Offer("frame", view.nbytes, meta)
    if view.nbytes <= MOST_IN_PACKET:
        await verbs.publish(key, encode_offer(offer, view))
    else:
        await _publish(verbs, key, offer, verbs.channel._door.offer_frame(view))


async def publish_descriptor(verbs: Basics, key: bytes, descriptor: Any, meta: bytes) -> None:
    _check(verbs, key, meta)
    fd = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    await _publish(verbs, key, Offer("descriptor", 0, meta), verbs.channel._door.offer_descriptor(fd))


def _check(verbs: Basics, key: bytes, meta: bytes) -> None:
    verbs.channel._session.check_publishable(key)
    if len(meta) > META_BYTES:
        raise PayloadError(f"{len(meta):,} bytes of metadata are more than {META_BYTES:,}: put them into the frame")


async def _publish(verbs: Basics, key: bytes, offer: Offer, token: bytes) -> None:
    door = verbs.channel._door
    try:
        await verbs.publish(key, encode_offer(door.named(offer, token)))
    except BaseException:
        door.take_back(token)
        raise


async def send_file(verbs: Basics, key: bytes, source: Any, name: str | None, receivers: int, timeout: float) -> Sent:
    """Hand out a file until so many receivers have it."""
    verbs.channel._session.check_publishable(key)
    door, offered = verbs.channel._door, -inf

    # Receivers say in other threads how it goes; an eventfd wakes the caller.
    fd, found = open_file(source)
    changes = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    token = b""
    try:
        transfer = Transfer(receivers, timeout, monotonic(), fd, lambda: os.eventfd_write(changes, 1))
        token = door.lend(transfer)
        told = (found if name is None else name)[:LONGEST_NAME].encode(errors="replace")
        offer = encode_offer(door.named(Offer("file", os.fstat(fd).st_size, told), token))
        while not transfer.is_over(now := monotonic()):
            if now - offered >= PAUSE:  # for those who have come since
                await verbs.publish(key, offer)
                offered = now
            if await verbs.channel._wait_readable(changes, PAUSE):
                os.eventfd_read(changes)
        return transfer.result(printable(key))
    finally:
        door.take_back(token)
        os.close(changes)
        os.close(fd)
