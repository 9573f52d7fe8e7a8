"""Publishing of frames, descriptors and files: ``client.frames``, ``client.descriptors`` and ``client.files``.

For asyncio as it is; the other clients carry out the coroutines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, Final

from ..errors import PayloadError, UsageError
from ..limits import check_count, check_seconds, check_users
from ..wire.offers import MAGIC, META_BYTES, Offer, encode_offer
from ..wire.packets import Key, as_key
from ..wire.text import printable
from .basic_operations import BasicOperations, mailbox_of
from .fd_subscriptions import AioDescriptors, AioFiles, AioFrames
from .fds.copying import Source, open_file
from .fds.memory import bytes_of
from .fds.transfers import Sent, Transfer
from .handles import starting

PAUSE: Final = 0.25
"""Seconds between two offers of a file."""
LONGEST_NAME: Final = 255
"""Characters of a file's name."""
MOST_BYTES: Final = 1_073_741_824
"""Bytes of the largest frame or file that is taken, unless the application says otherwise."""
MOST_IN_PACKET: Final = 98_304
"""Bytes of the largest frame that goes in its packet: longer ones are quicker as memory, also to one receiver."""


class _Exchange:
    def __init__(self, operations: BasicOperations) -> None:
        self._operations = operations

    def _check(self, key: Key, meta: bytes) -> bytes:
        self._operations.connection.session.check_publishable(key := as_key(key))
        if not isinstance(meta, bytes):
            raise PayloadError(f"meta is bytes, not {type(meta).__name__}")
        if len(meta) > META_BYTES:
            raise PayloadError(f"{len(meta):,} bytes of metadata are more than {META_BYTES:,}: put them into the frame")
        return key

    async def _offer(self, key: bytes, offer: Offer, token: bytes) -> None:
        """Publish that something is handed out."""
        descriptor_store = self._operations.descriptor_store
        try:
            await self._operations.publish(key, encode_offer(descriptor_store.named(offer, token)))
        except BaseException:
            descriptor_store.take_back(token)
            raise


class AioFrameExchange(_Exchange):
    """Frames: buffers of any size, for example ``bytes``, arrays of NumPy, buffers of Arrow. ``client.frames`` is
    one.
    """

    async def publish(self, key: Key, frame: Any, *, meta: bytes = b"") -> None:
        """Publish a frame.

        A frame longer than 96 KiB is copied once, into memory that receivers map. The memory is offered for
        ``ClientLimits.offered_seconds``, and for a second at most once this client is closed or the program ends: a
        receiver that asks later has lost it.

        :param meta: a description for receivers, for example its shape: up to 4,096 bytes.

        Raises :exc:`~sbuslib.errors.UsageError` for anything but a buffer in one piece,
        :exc:`~sbuslib.errors.PayloadError` for more than ``ClientLimits.offered_bytes``, :exc:`OSError`, and as
        ``publish`` of the client.
        """
        view = bytes_of(frame)
        if view.nbytes <= MOST_IN_PACKET and not meta and bytes(view[: len(MAGIC)]) != MAGIC:
            await self._operations.publish(key, frame if type(frame) is bytes else bytes(view))
            return
        key, offer = self._check(key, meta), Offer("frame", view.nbytes, meta)
        if view.nbytes <= MOST_IN_PACKET:
            await self._operations.publish(key, encode_offer(offer, view))
        else:
            await self._offer(key, offer, self._operations.descriptor_store.offer_frame(view))

    @starting
    async def subscribe(self, *patterns: Key, most: int = MOST_BYTES) -> AioFrames:
        """Subscribe to frames. ``with client.frames.subscribe("camera/") as frames: frames.receive()``.

        A :class:`~sbuslib.Frame` is a read-only buffer. Any other message comes as the frame that is its payload.
        Each frame is taken from the descriptor store of its sender's user alone, so messages carry their senders from
        then on. Where the hub has no senders, only frames of our own user are taken.

        :param most: bytes of the largest frame that is taken.

        Raises as ``subscribe`` of the client.
        """
        check_count(most, "most")
        self._operations.ask_for_senders()
        frames = AioFrames(self._operations, mailbox_of(patterns), most)
        await frames.open()
        return frames


class AioDescriptorExchange(_Exchange):
    """Descriptors: open files, pipes, sockets. ``client.descriptors`` is one."""

    async def publish(self, key: Key, descriptor: Any, *, meta: bytes = b"") -> None:
        """Publish a descriptor, or what has one: an open file, a pipe, a socket. Receivers get copies of it.

        It stays the caller's, who may close it. Raises as :meth:`AioFrameExchange.publish`.
        """
        key = self._check(key, meta)
        try:
            fd = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        except AttributeError:
            raise UsageError(f"a descriptor is a number, or has a fileno(), not {descriptor!r}") from None
        await self._offer(key, Offer("descriptor", 0, meta), self._operations.descriptor_store.offer_descriptor(fd))

    @starting
    async def subscribe(self, *patterns: Key, users: Iterable[int] = ()) -> AioDescriptors:
        """Subscribe to descriptors: each comes as a :class:`~sbuslib.Descriptor`.

        :param users: ids of users whose descriptors are taken besides those of our own. To read from a descriptor, or
            to close it, may take as long as its sender likes.

        Raises as ``subscribe`` of the client.
        """
        trusted = check_users(users, "users") | {os.geteuid()}
        self._operations.ask_for_senders()
        descriptors = AioDescriptors(self._operations, mailbox_of(patterns), trusted)
        await descriptors.open()
        return descriptors


class AioFileExchange(_Exchange):
    """Files, and bytes, of any size. ``client.files`` is one."""

    async def send(
        self, key: Key, source: Source, *, name: str | None = None, receivers: int = 1, timeout: float = 30.0
    ) -> Sent:
        """Hand out a file, or bytes, under ``key``; wait until so many receivers have copied it.

        :param source: a path, an open file, or bytes.
        :param name: what receivers may call the file; without it, the name of ``source``.
        :param receivers: how many to wait for. Others may copy it meanwhile.
        :param timeout: seconds in which they have to come, and for which a receiver may say nothing.

        Raises :exc:`TimeoutError` when they do not come, :exc:`~sbuslib.errors.PeerError` when all that came refused,
        :exc:`OSError` when it cannot be opened, and :exc:`~sbuslib.errors.UsageError`.
        """
        timeout = check_seconds(timeout, "timeout")
        if not isinstance(name, str | None):
            raise UsageError(f"name is text, or None, not {name!r}")
        key, descriptor_store, offered = self._check(key, b""), self._operations.descriptor_store, -inf

        # Receivers say in other threads how it goes; an eventfd wakes the caller.
        fd, found = open_file(source)
        changes = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        token = b""
        try:
            transfer = Transfer(receivers, timeout, monotonic(), fd, lambda: os.eventfd_write(changes, 1))
            token = descriptor_store.lend(transfer)
            called = (found if name is None else name)[:LONGEST_NAME].encode(errors="replace")
            offer = encode_offer(descriptor_store.named(Offer("file", os.fstat(fd).st_size, called), token))
            while not transfer.is_over(now := monotonic()):
                if now - offered >= PAUSE:  # for those who have come since
                    with suppress(TimeoutError):  # the hub is away: receivers that have come go on
                        await self._operations.post(key, offer, together=False, until=now + PAUSE)
                    offered = now
                if await self._operations.connection.runtime.wait_readable(changes, PAUSE):
                    os.eventfd_read(changes)
            return transfer.result(printable(key))
        finally:
            descriptor_store.take_back(token)
            os.close(changes)
            os.close(fd)

    @starting
    async def receive(
        self,
        *patterns: Key,
        folder: str | os.PathLike[str] | None = None,
        most: int = MOST_BYTES,
        timeout: float = 30.0,
    ) -> AioFiles:
        """Receive what :meth:`send` sends: ``with client.files.receive("files/*") as files: files.receive()``.

        :param folder: where files appear, each once it is whole; without it, they are open temporary files. None is
            ever replaced, and a name that points elsewhere is not used.
        :param most: bytes of the largest file that is taken.
        :param timeout: seconds for which a copy may stand still.
        """
        check_count(most, "most")
        timeout = check_seconds(timeout, "timeout")
        self._operations.ask_for_senders()
        files = AioFiles(self._operations, mailbox_of(patterns), folder, most, timeout)
        await files.open()
        return files
