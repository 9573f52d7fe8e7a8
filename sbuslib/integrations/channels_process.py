"""One process's side of the Django Channels layer: a bus client that all its event loops share, and a reader thread.

To send to a channel of another process, a process sends it a request; the reply says whether the channel had room.
Messages for a group are published, and each process with a channel in the group is subscribed. The reader thread acts
on both, in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from secrets import token_bytes
from socket import MSG_DONTWAIT
from threading import Lock, Thread
from time import monotonic
from typing import Final, Literal, ParamSpec, TypeVar

import msgspec

from .. import blocking
from ..clients.endpoint import ClientSubscription
from ..clients.recipes.request import FAILED, REPLY, Request, encode_answer, parse_question
from ..errors import DisconnectedError, NoServerError
from ..secrets import Namespace
from ..wire.packets import Message
from .channels_memory import LayerSettings, LocalChannels
from .channels_queues import Queues
from .trust import TrustedUsers

P = ParamSpec("P")
R = TypeVar("R")

MOST_BYTES: Final = 4_194_304
"""Most bytes of a message. The specification of layers wants a megabyte of JSON; small numbers take twice that here."""
PART_BYTES: Final = 262_144
"""Bytes of a message that go in one packet."""
JOINED: Final = 16
"""Most incomplete long messages that a process keeps while it awaits their other parts."""
THREADS: Final = 16
"""Threads of one process for calls that wait for the hub or another process."""
NO_ROOM: Final = b"full"
"""The reply of a process whose channel has no room."""

logger = logging.getLogger("sbuslib.integrations")


class Word(msgspec.Struct, frozen=True, array_like=True):
    """A packet between processes: puts part of a message into a channel or a group, or changes a group.

    ``size`` is that of the whole message, and ``token`` that of all its parts.
    """

    verb: Literal["put", "add", "discard"]
    channel: str = ""
    group: str = ""
    part: bytes = b""
    size: int = 0
    token: bytes = b""


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Word)


def _split(message: bytes, channel: str = "", group: str = "") -> list[bytes]:
    """Yield the packets that put a message there."""
    token = token_bytes(8) if len(message) > PART_BYTES else b""
    starts = range(0, len(message), PART_BYTES)
    words = (Word("put", channel, group, message[at : at + PART_BYTES], len(message), token) for at in starts)
    return [*map(_encode, words)]


class _Parts:
    """Joins long messages. One that has lost a part stays incomplete, and is dropped as others come."""

    def __init__(self) -> None:
        self._begun: dict[bytes, bytes] = {}  # by token, the newest last

    def join(self, word: Word) -> bytes | None:
        """Add a part; return the message if this is its last part, else *None*."""
        whole = self._begun.pop(word.token, b"") + word.part
        if len(whole) == word.size:
            return whole
        if word.token and len(whole) < word.size <= MOST_BYTES:
            self._begun[word.token] = whole
            if len(self._begun) > JOINED:
                del self._begun[next(iter(self._begun))]
        return None


class Process:
    """The client of one process, and the threads that wait for it. Raises as :class:`sbuslib.blocking.Client`.

    :param name: under which others ask this process.
    :param channels: its own.
    """

    def __init__(self, settings: LayerSettings, name: str, channels: LocalChannels) -> None:
        url = settings.url
        #: The client of all threads and event loops.
        self.client = blocking.Client(
            url.address, reconnect=True, senders=True, echo=False, on_reconnect=_note_outage, **url.options
        )
        self.queues = Queues(settings, self.client)
        """Sends to ordinary channels."""
        self._settings = settings
        self._channels = channels
        self._namespace = Namespace(self.client.hub.separator)  # of the hub
        self._home = settings.key("at", name).encode()  # the key of requests from others
        self._parts = _Parts()  # of long messages
        self._trusted = TrustedUsers("messages", settings.users, self._namespace.separator)
        self._lost = 0  # messages that were logged as lost
        self._lock = Lock()  # for the subscriptions
        self._subscriptions: dict[str, Future[ClientSubscription]] = {}  # to groups that have channels here
        self._threads = ThreadPoolExecutor(THREADS, "sbus channel layer")  # wait for the hub and for other processes

        # From here on others can ask this process.
        try:
            self.client.subscribe(self._home)
        except BaseException:
            self.client.close()
            raise
        self._reader = Thread(target=self._read, daemon=True, name="sbus channel layer")  # acts on messages
        self._reader.start()

    def close(self) -> None:
        """Close the connection, and end the threads."""
        self.client.close()
        self._reader.join()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.queues.close()

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function that may wait, in a thread."""
        return await asyncio.wrap_future(self._threads.submit(function, *args, **kwargs))

    # -- messages -----------------------------------------------------------------------------------

    def _read(self) -> None:
        """Act on messages, until the client is closed."""
        while True:
            try:
                messages = self.client.receive_many()
            except DisconnectedError:
                return
            for message in messages:
                try:
                    self._take_in(message)
                except Exception:  # one message never ends this thread
                    logger.exception("a message of %r", message.sender)
            if (lost := sum(self.client.lost.values())) > self._lost:
                logger.error("%d messages were lost on their way to the channels of this process", lost - self._lost)
                self._lost = lost

    def _take_in(self, message: Message) -> None:
        # 1. A request to this process, or a message for a group.
        question = None
        if message.key == self._home:
            question = parse_question(message, monotonic(), self._namespace)
            if question is None:  # a caller has given up
                return

        # 2. Its user.
        if (why := self._trusted.why_refused(message.sender, self.client.credentials)) is not None:
            if question is not None:
                self._say(question, why.encode(), is_refused=True)
            return

        # 3. Its action.
        word = _decoder.decode(message.payload if question is None else question.payload)
        if question is not None:
            self._answer(question, word)
        elif (whole := self._parts.join(word)) is not None:
            self._put_into_group(word.group, whole)
            self._unsubscribe(word.group)  # if all its channels have left meanwhile

    def _answer(self, question: Request, word: Word) -> None:
        if word.verb == "put":
            whole = self._parts.join(word)
            has_room = whole is None or self._channels.put(word.channel, whole)
            self._say(question, b"" if has_room else NO_ROOM)
        elif word.verb == "add":
            self.join(word.group, word.channel).add_done_callback(partial(self._answer_add, question, word))
        else:
            self.leave(word.group, word.channel)
            self._say(question, b"")

    def _answer_add(self, question: Request, word: Word, joined: Future[ClientSubscription]) -> None:
        if failed := joined.cancelled() or joined.exception() is not None:
            self.leave(word.group, word.channel)
        self._say(question, b"the hub is away" if failed else b"", is_refused=failed)

    def _say(self, question: Request, text: bytes, *, is_refused: bool = False) -> None:
        """Answer. If the hub is away, the caller is left without an answer."""
        answer = encode_answer(FAILED if is_refused else REPLY, question.number, text)
        with suppress(TimeoutError, DisconnectedError):
            self.client.publish(question.reply_to, answer)

    # -- groups -------------------------------------------------------------------------------------

    def join(self, group: str, channel: str) -> Future[ClientSubscription]:
        """Put a channel into a group. When the returned future is done, messages of other processes come.

        Where that fails, the channel has to leave again.
        """
        self._channels.join(group, channel)
        self._unsubscribe_ended()
        with self._lock:
            subscribing = self._subscriptions.get(group)
            if subscribing is None or (subscribing.done() and subscribing.exception() is not None):
                subscribing = self._threads.submit(self.client.subscribe, self._settings.key("group", group))
                self._subscriptions[group] = subscribing
        return subscribing

    def leave(self, group: str, channel: str) -> None:
        """Take a channel out of a group."""
        self._channels.leave(group, channel)
        self._unsubscribe_ended()

    def _unsubscribe_ended(self) -> None:
        """End the subscriptions to groups whose last channel has left, or has expired."""
        for group in self._channels.take_ended():
            self._unsubscribe(group)

    def _unsubscribe(self, group: str) -> None:
        """End the subscription to a group, unless the group has channels here."""
        with self._lock:
            if self._channels.has_group(group) or (subscribing := self._subscriptions.pop(group, None)) is None:
                return
        self._threads.submit(lambda: subscribing.result().unsubscribe())

    async def send_to_group(self, group: str, message: bytes) -> None:
        """Publish a message for a group, and put it into the group's channels of this process."""
        key = self._settings.key("group", group)
        for word in _split(message, group=group):
            try:
                self.client.publish(key, word, flags=MSG_DONTWAIT)
            except BlockingIOError:  # the hub is away, or has no room now
                await self.run(self.client.publish, key, word)
        self._put_into_group(group, message)

    def _put_into_group(self, group: str, message: bytes) -> None:
        for channel in self._channels.put_into_group(group, message):
            self.queues.forward(group, channel, message)

    # -- other processes ----------------------------------------------------------------------------

    async def send_to(self, name: str, channel: str, message: bytes) -> bool:
        """Put a message into a channel of another process. Returns whether there was room."""
        return await self.run(self._ask, name, _split(message, channel)) != NO_ROOM

    async def change_group_at(self, name: str, verb: Literal["add", "discard"], group: str, channel: str) -> None:
        """Have another process put its channel into a group, or take it out."""
        await self.run(self._ask, name, [_encode(Word(verb, channel, group))])

    def _ask(self, name: str, words: list[bytes]) -> bytes:
        """Send packets to another process, one after another; return its answer to the last."""
        answer = b""
        try:
            for word in words:
                answer = self.client.request(self._settings.key("at", name), word, timeout=self.client.timeout)
        except NoServerError:  # as for any channel from which nobody receives any more
            logger.info("what is said to process %s is lost: it has ended, or has no hub", name)
        return answer


def _note_outage(_: object) -> None:
    logger.warning("the hub was away: messages for groups did not reach every process then; how many, nobody knows")
