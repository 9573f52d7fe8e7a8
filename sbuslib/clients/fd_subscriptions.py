"""Subscriptions to frames, descriptors and files, which are fetched from the descriptor stores of publishers.

For asyncio as it is; the other clients carry out the coroutines.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Container
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, Self, TypeVar

from ..errors import DescriptorError, DisconnectedError, UsageError
from ..kernel.closers import close_later
from ..kernel.descriptors import close_elsewhere
from ..kernel.peers import peer_credentials
from ..wire.offers import FAILED, MOST_TOKENS, Offer, decode_offer
from ..wire.packets import Message
from ..wire.text import plainly
from .basic_operations import BasicOperations
from .connection import ClientConnection
from .fds.copying import Copying, check_readable, say
from .fds.descriptor_client import user_behind
from .fds.files import FileSink, safe_name
from .fds.memory import Frame, PacketFrame, check_memory, map_memory
from .fds.transfers import ReceivedFile
from .handles import Subscribed
from .leadership import time_left
from .recipes.mailbox import Mailbox

MOST_KNOWN: Final = 1_024
"""Files that a receiver remembers to have seen: their offers come again."""

_GONE: Final = DescriptorError("gone")
T = TypeVar("T")


class Descriptor:
    """A descriptor that a client published. It is closed by :meth:`close`, by the end of its ``with``, or collected."""

    def __init__(self, key: bytes, sender: bytes | None, meta: bytes, fd: int, user: int) -> None:
        self.key = key
        """The routing key that it was published under."""
        self.sender = sender
        """The credential key of its publisher; ``None`` where the hub has no senders."""
        self.meta = meta
        """The publisher's description."""
        self._fd = fd  # -1 once it is closed or given away
        self._user = user  # that handed it out, and whose threads close it

    def fileno(self) -> int:
        """The descriptor, which stays this object's."""
        return self._fd

    def detach(self) -> int:
        """The descriptor, which is the caller's from now on."""
        fd, self._fd = self._fd, -1
        return fd

    def close(self) -> None:
        """Close it. In another thread, as that may take for ever."""
        if self._fd >= 0:
            close_later(self._user, partial(os.close, self.detach()), 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    __del__ = close


class FdSubscription(Subscribed[T]):
    """A subscription to offers, which are fetched from descriptor stores in the order of the messages.

    :param users: whose offers are taken; ``None``: everybody's.
    """

    def __init__(self, operations: BasicOperations, mailbox: Mailbox, users: Container[int] | None = None) -> None:
        super().__init__(operations, mailbox)
        self._users = users
        self._ready: deque[T | DescriptorError] = deque()  # for the application, oldest first

    async def receive(self, *, timeout: float | None = None) -> T:
        """The next one, oldest first.

        Raises :exc:`~sbuslib.errors.DescriptorError` for one that cannot be had, which is counted in :attr:`lost`; call
        again for the next. Raises :exc:`TimeoutError` after ``timeout`` seconds without a message, and
        :exc:`~sbuslib.errors.DisconnectedError` as a subscription does.
        """
        deadline = self._operations.connection.deadline(timeout)
        while True:
            try:
                found = self._ready.popleft()
            except IndexError:
                await self._fetch(time_left(deadline))
                continue
            if isinstance(found, DescriptorError):
                raise found
            return found

    async def unsubscribe(self) -> None:
        """End the subscription, and close everything that was not received."""
        await super().unsubscribe()
        while self._ready:
            found: Any = self._ready.popleft()
            if not isinstance(found, DescriptorError):
                found.close()

    async def _fetch(self, timeout: float | None) -> None:
        """Fetch the next offers: one, or some of the same descriptor store. A caller that gives up leaves them to the
        next.
        """
        # 1. What the first message says. It may have it all.
        mailbox, leadership = self._mailbox, self._operations.connection.leadership
        if (message := mailbox.take()) is None:
            if mailbox.closed:
                raise DisconnectedError("the subscription was taken back")
            if not await self._operations.wait_until(lambda: bool(self._ready) or mailbox.is_ready(), timeout):
                raise TimeoutError(f"nothing came within {timeout} s")
            return
        try:
            found = self._read(message)
        except DescriptorError as error:
            self._ready.append(self._miss(message, error))
            return
        if not isinstance(found, Offer):
            self._ready.append(found)
            return

        # 2. Those after it that are offered at the same descriptor store.
        messages, offers = [message], [found]
        for other in islice(iter(mailbox.take, None), MOST_TOKENS - 1):
            try:
                offer = self._read(other)
            except DescriptorError:
                offer = None
            if not isinstance(offer, Offer) or (offer.store, other.sender) != (
                found.store,
                message.sender,
            ):
                mailbox.put_first([other])  # and it is read again
                break
            messages.append(other)
            offers.append(offer)

        # 3. Their descriptors.
        left = messages  # to be asked for the next time
        try:
            found_now = await self._ask(messages, offers)
            self._ready.extend(found_now)
            left = messages[len(found_now) :]
        finally:
            mailbox.put_first(left)
            with leadership.lock:
                leadership.wake_all()  # other callers may wait for these

    async def _ask(self, messages: list[Message], offers: list[Offer]) -> list[T | DescriptorError]:
        """Fetch the offers of the first messages: of one at least, and of as many as the descriptor store sends at
        once.
        """
        try:
            user = _user_behind(self._operations.connection, messages[0])
            if self._users is not None and user not in self._users:
                raise DescriptorError("descriptor of another user")
            descriptors = await self._operations.descriptor_client.fetch(offers, user)
        except DescriptorError as error:
            return [self._miss(message, error) for message in messages]
        return [
            self._miss(message, _GONE) if fd is None else self._open(message, offer, fd, user)
            for message, offer, fd in zip(messages, offers, descriptors, strict=False)
        ]

    def _open(self, message: Message, offer: Offer, fd: int, user: int) -> T | DescriptorError:
        """Open a descriptor. One that is not as it was offered is closed in another thread: that may take for ever."""
        try:
            return self._make(message, offer, fd, user)
        except (DescriptorError, OSError) as error:
            close_elsewhere([fd], user)
            if isinstance(error, DescriptorError):
                self._operations.descriptor_client.refuse(user)
            return self._miss(message, error if isinstance(error, DescriptorError) else DescriptorError(plainly(error)))

    @abstractmethod
    def _read(self, message: Message) -> T | Offer:
        """Read a message: it has the whole content, or an offer. Raises :exc:`~sbuslib.errors.DescriptorError`."""

    @abstractmethod
    def _make(self, message: Message, offer: Offer, fd: int, user: int) -> T:
        """Make the object for a descriptor of this user, which owns the descriptor from then on."""


class AioFrames(FdSubscription[Frame]):
    """The frames that are published under patterns. ``client.frames.subscribe`` returns it."""

    def __init__(self, operations: BasicOperations, mailbox: Mailbox, most: int) -> None:
        super().__init__(operations, mailbox)
        self._most = most  # bytes of the largest frame that is taken

    def _read(self, message: Message) -> Frame | Offer:
        decoded = decode_offer(message.payload)
        if decoded is None:
            return _describe(PacketFrame(message.payload), message, b"")
        offer, data = decoded
        if offer.kind != "frame":
            raise DescriptorError(f"no frame but a {offer.kind}")
        if offer.size > self._most:
            raise DescriptorError("larger than is taken")
        return offer if offer.store is not None else _describe(PacketFrame(data), message, offer.meta)

    def _make(self, message: Message, offer: Offer, fd: int, user: int) -> Frame:
        check_memory(fd, offer.size, is_ours=user == os.geteuid())
        frame = _describe(map_memory(fd, offer.size), message, offer.meta)
        os.close(fd)
        return frame


def _describe(frame: Frame, message: Message, meta: bytes) -> Frame:
    frame.key, frame.sender, frame.meta = message.key, message.sender, meta
    return frame


class AioDescriptors(FdSubscription[Descriptor]):
    """The descriptors that are published under patterns. ``client.descriptors.subscribe`` returns it."""

    def _read(self, message: Message) -> Offer:
        decoded = decode_offer(message.payload)
        if decoded is None or decoded[0].kind != "descriptor":
            raise DescriptorError("no descriptor")
        return decoded[0]

    def _make(self, message: Message, offer: Offer, fd: int, user: int) -> Descriptor:
        return Descriptor(message.key, message.sender, offer.meta, fd, user)


class AioFiles(Subscribed[ReceivedFile]):
    """The files that a client receives. ``client.files.receive`` returns it. For one caller."""

    def __init__(
        self,
        operations: BasicOperations,
        mailbox: Mailbox,
        folder: str | os.PathLike[str] | None,
        most: int,
        timeout: float,
    ) -> None:
        super().__init__(operations, mailbox)
        self._folder = folder  # where files appear
        self._most = most  # bytes of the largest that is taken
        self._timeout = timeout  # seconds for which a copy may stand still
        self._known: OrderedDict[bytes, None] = OrderedDict()  # tokens of files that were seen, as offers come again
        self._copying: tuple[Copying, Message, Offer] | None = None  # what comes at the moment

    async def unsubscribe(self) -> None:
        """Take no more files. Nothing is left of what did not come whole."""
        await super().unsubscribe()
        await self._stop_copying()

    async def receive(self, *, timeout: float | None = None) -> ReceivedFile:
        """The next file that came whole.

        Raises :exc:`TimeoutError` when none is offered for ``timeout`` seconds; :exc:`~sbuslib.errors.DescriptorError`
        and
        :exc:`OSError` when one cannot be had or written. Call it again for the others.
        """
        deadline = self._operations.connection.deadline(timeout)
        while self._copying is None:
            message = await self._receive(time_left(deadline))
            offer = self._read(message)
            if offer is not None:
                try:
                    await self._begin_copy(message, offer)
                except DescriptorError as error:
                    raise self._miss(message, error) from None
        copying, message, offer = self._copying

        # A caller that is interrupted here leaves the copy to its next call.
        try:
            file = await copying.wait(self._operations.connection.runtime.wait_readable, self._timeout)
        except DescriptorError as error:
            await self._stop_copying()
            raise self._miss(message, error) from None
        except OSError:
            await self._stop_copying()
            raise
        await self._stop_copying()
        return ReceivedFile(message.key, _name(offer), offer.size, file, message.sender)

    def _read(self, message: Message) -> Offer | None:
        """Return the offer of a message, if that is a file that was not seen before."""
        with suppress(DescriptorError):
            decoded = decode_offer(message.payload)
            if decoded is not None and decoded[0].kind == "file" and decoded[0].token not in self._known:
                self._known[decoded[0].token] = None
                if len(self._known) > MOST_KNOWN:
                    self._known.popitem(last=False)
                return decoded[0]
        return None

    async def _begin_copy(self, message: Message, offer: Offer) -> None:
        """Begin to copy a file; if it is too large, send that to its sender."""
        user = _user_behind(self._operations.connection, message)
        sock, fd = await self._operations.descriptor_client.visit(offer, user)

        # A file of another user is read only where that cannot stall: its owner may have it anywhere.
        try:
            if offer.size > self._most:
                raise UsageError(f"{offer.size:,} bytes are more than {self._most:,}")
            if user not in (0, os.geteuid()):
                check_readable(fd)
            sink = FileSink(self._folder, safe_name(_name(offer), offer.token.hex()))
            try:
                self._copying = Copying(sock, offer.token, fd, offer.size, sink), message, offer
            except OSError:
                sink.discard()
                raise
        except (UsageError, DescriptorError, OSError) as error:
            say(sock, FAILED, offer.token, plainly(error))
            sock.close()
            close_elsewhere([fd], user)
            if isinstance(error, DescriptorError):
                self._operations.descriptor_client.refuse(user)
            if not isinstance(error, UsageError):
                raise

    async def _stop_copying(self) -> None:
        if self._copying is not None:
            copying, self._copying = self._copying[0], None
            await copying.stop(self._operations.connection.runtime.wait_readable)


def _name(offer: Offer) -> str:
    return offer.meta.decode(errors="replace")


def _user_behind(connection: ClientConnection, message: Message) -> int:
    """Return the user whose descriptor store a message may refer to: where the hub has no senders, our own.

    Raises :exc:`~sbuslib.errors.DescriptorError`.
    """
    if message.sender is None:
        return os.geteuid()
    trusted = frozenset((0, os.geteuid(), peer_credentials(connection.here()).uid))
    return user_behind(connection.session.separator, message.sender, connection.session.credentials, trusted)
