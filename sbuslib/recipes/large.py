"""Large messages: a file in parts, in order, checked by its hash, for any number of receivers at once.

The sender publishes an *offer* under the key, again and again. A receiver that takes it subscribes to ``<key>/<id>``,
where the parts will come, and sends *words* to the sender: how many parts it has, one after another from the start. The
last part is the SHA-256 of all. What one client publishes stays in order, so a receiver that sees a part too many has
lost one: a hub was away, or a queue was full. It asks to go on from where it is, and asks again while nothing comes;
the sender goes back, and those that have the parts ignore them. No more than :data:`WINDOW_BYTES` are sent beyond what
the slowest receiver has. This is the flow control: no queue on the way holds more. Those that make no progress for a
time limit are given up.

No input or output here: the bytes come from a ``read`` function and go into a :class:`Sink`.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Meta

from ..errors import PeerError, UsageError
from ..limits import PACKET_BYTES
from ..secrets import Namespace
from ..wire.packets import Message
from ..wire.text import plainly, printable
from .mailbox import Mailbox, Party

__all__ = ["MOST_BYTES", "PART_BYTES", "Offer", "Received", "Receiving", "Sending", "Sent", "Sink", "Word"]

PART_BYTES: Final = 131_072
"""Bytes of a part. Longer ones gain little, and take larger send buffers of each hub."""
WINDOW_BYTES: Final = 4_194_304
"""Bytes that are under way to the slowest receiver: a quarter of what a hub queues for it."""
MOST_BYTES: Final = 1_073_741_824
"""Bytes of the largest file that is taken, unless the application says otherwise."""
MOST_RECEIVERS: Final = 1_024
"""Receivers of one file that a sender heeds."""
MOST_AT_ONCE: Final = 16
"""Files that one receiver takes at the same time. Other offers are taken up later: they come again."""
MOST_ENDED: Final = 1_024
"""Files that a receiver remembers to have done with: their offers may come once more."""
PAUSE: Final = 0.25
"""Seconds between two offers, and without a part until a receiver asks for it."""

_INDEX: Final = 8  # bytes before each part: its number, from 0, little-endian
_LARGEST: Final = 2**53
S = TypeVar("S", bound=msgspec.Struct)


class Offer(msgspec.Struct, frozen=True):
    """What a sender offers, in JSON under the key. ``large`` is the id of the transfer, ``part`` the bytes of a part.

    ``name`` may be anything. Words go ``to`` a secret key of the sender, or to ``<key>/<id>/to`` where it is empty.
    """

    large: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    size: Annotated[int, Meta(ge=0, le=_LARGEST)]
    part: Annotated[int, Meta(ge=1, le=PACKET_BYTES)]
    name: Annotated[str, Meta(max_length=255)] = ""
    to: Annotated[str, Meta(max_length=4_096)] = ""

    @property
    def parts(self) -> int:
        """How many parts there are, without the hash."""
        return -(-self.size // self.part)


class Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a receiver tells the sender, in JSON: its random name, and how many parts it has, the hash included.

    With ``again`` it asks to go on from there; ``refused`` says why it takes no more.
    """

    who: Annotated[str, Meta(max_length=32)]
    have: Annotated[int, Meta(ge=0, le=_LARGEST)]
    again: bool = False
    refused: Annotated[str, Meta(max_length=200)] = ""


class Sent(msgspec.Struct, frozen=True):
    """How many ``receivers`` have a file, checked, and why each of the others ``failed``."""

    receivers: int
    failed: tuple[str, ...] = ()


class Received(msgspec.Struct, frozen=True):
    """A file that came whole. ``file`` is what its sink made of it: a path, or an open file."""

    key: bytes
    name: str
    size: int
    file: Any
    sender: bytes | None = None


class Sink(Protocol):
    """Where the bytes of one file go. Each method may raise :exc:`OSError`."""

    def write(self, data: memoryview) -> object: ...

    def finish(self) -> Any:
        """All bytes came, and they are right: the file."""

    def discard(self) -> object:
        """There will be no file."""


def _decode(payload: bytes, kind: type[S]) -> S | None:
    """What somebody sent; ``None`` for anything else."""
    try:
        return msgspec.json.decode(payload, type=kind)
    except (ValueError, RecursionError):
        return None


class Sending:
    """Sends one file to those that take its offer.

    :param words: where words come. If its pattern is a secret one, that is told as ``to``.
    :param read: bytes at an offset. It is asked in order, and again where a receiver lost something.
    """

    def __init__(
        self,
        party: Party,
        key: bytes,
        separator: bytes,
        offer: Offer,
        words: Mailbox,
        read: Callable[[int, int], bytes],
    ) -> None:
        self._party = party  # what it publishes and waits with
        self._key = key
        self._parts_key = key + separator + offer.large.encode()
        self._offer = offer
        self._words = words
        self._read = read
        self._taking: dict[str, list[Any]] = {}  # by receiver: what it has, and since when, or when it had all
        self._done: set[str] = set()
        self._failed: dict[str, str] = {}
        self._next = self._hashed = self._furthest = 0
        self._digest = sha256()

    async def run(self, receivers: int, timeout: float, clock: Callable[[], float]) -> Sent:
        """Wait for so many receivers, then until each has it all or is given up.

        Raises :exc:`TimeoutError` when not so many come within ``timeout`` seconds, and
        :exc:`~sbuslib.errors.PeerError` when none of them has it in the end.
        """
        began, offered = clock(), -PAUSE
        await self._party.open_mailbox(self._words)
        try:
            while (joined := len(self._taking) + len(self._done) + len(self._failed)) < receivers or self._taking:
                now = clock()
                if joined < receivers and now - began > timeout:
                    raise TimeoutError(f"{joined} of {receivers} receivers took the file within {timeout:g} s")
                if now - offered >= PAUSE:
                    await self._publish_offer()
                    offered = now
                if joined >= receivers and self._has_room():
                    await self._party.publish(self._parts_key, self._next_part())
                    continue
                await self._party.wait_until(self._words.is_ready, PAUSE)
                now = clock()
                while (message := self._words.take()) is not None:
                    self._hear(message.payload, now)
                self._give_up(now, timeout)
        finally:
            await self._party.close_mailbox(self._words)
        if not self._done:
            raise PeerError(f"nobody has {printable(self._key)}: {', '.join(set(self._failed.values()))}")
        return Sent(len(self._done), tuple(self._failed.values()))

    async def _publish_offer(self) -> None:
        to = self._words.patterns[0]
        secret = {"to": to.decode()} if to.startswith(b"!") else {}
        await self._party.publish(self._key, msgspec.json.encode(msgspec.structs.replace(self._offer, **secret)))

    def _has_room(self) -> bool:
        if not self._taking or self._next > self._offer.parts:
            return False
        least: int = min(have for have, _ in self._taking.values())
        return self._next - least < max(1, WINDOW_BYTES // self._offer.part)

    def _next_part(self) -> bytes:
        number, offer = self._next, self._offer
        self._next += 1
        self._furthest = max(self._furthest, self._next)
        if number == offer.parts:
            return number.to_bytes(_INDEX, "little") + self._digest.digest()
        at = number * offer.part
        data = self._read(at, min(offer.part, offer.size - at))
        if len(data) != min(offer.part, offer.size - at):
            raise UsageError("the file became shorter while it was sent")
        if number == self._hashed:  # and not a part that is sent again
            self._digest.update(data)
            self._hashed += 1
        return number.to_bytes(_INDEX, "little") + data

    def _hear(self, payload: bytes, now: float) -> None:
        word = _decode(payload, Word)
        if word is None or word.who in self._done or word.who in self._failed:
            return
        if word.who not in self._taking and len(self._taking) + len(self._done) + len(self._failed) >= MOST_RECEIVERS:
            return
        receiver = self._taking.setdefault(word.who, [0, now])
        if word.refused:
            self._fail(word.who, word.refused)
        elif word.have > self._offer.parts:
            del self._taking[word.who]
            self._done.add(word.who)
        elif word.have > receiver[0]:
            receiver[:] = [word.have, now]
        if word.again:
            self._next = min(self._next, receiver[0])

    def _give_up(self, now: float, timeout: float) -> None:
        """Give up receivers that have not taken what was sent to them."""
        for who, receiver in list(self._taking.items()):
            if receiver[0] >= self._furthest:
                receiver[1] = now
            elif now - receiver[1] > timeout:
                self._fail(who, f"a receiver made no progress for {timeout:g} s")

    def _fail(self, who: str, why: str) -> None:
        del self._taking[who]
        self._failed[who] = why


class _Incoming:
    """One file that is being received."""

    def __init__(self, message: Message, offer: Offer, separator: bytes, sink: Sink, now: float) -> None:
        self.key = message.key
        self.sender = message.sender
        self.offer = offer
        self.sink = sink
        self.parts = Mailbox(message.key + separator + offer.large.encode())
        self.have = self.told = 0
        self.heard = now  # when a part or the offer came last
        self.asked = now  # when a part came last, or the sender was asked to go on
        self.gap = False  # whether it was asked because of a part that was lost
        self._separator = separator
        self._digest = sha256()

    def is_from(self, message: Message) -> bool:
        """Whether a message may be of the sender of the offer: of the same user, as it may come by another process.

        A hub on the way that was started again has another process id, which is in the sender's credential key.
        """
        if message.sender is None or self.sender is None:  # the client may have begun to ask for senders since
            return True
        return message.sender == self.sender or self._users(message.sender) == self._users(self.sender)

    def _users(self, sender: bytes) -> list[bytes]:
        """A credential key without the process ids."""
        return [field for number, field in enumerate(sender.split(self._separator)) if number % 5 != 4]

    def add(self, data: memoryview) -> Received | None:
        """Take the next part; the file, if it is whole. Raises :exc:`~sbuslib.errors.PeerError` and :exc:`OSError`."""
        offer = self.offer
        if self.have == offer.parts:
            if data != self._digest.digest():
                raise PeerError(f"{printable(self.key)}: what came is not what was sent")
            return Received(self.key, offer.name, offer.size, self.sink.finish(), self.sender)
        if len(data) == min(offer.part, offer.size - self.have * offer.part):  # or it is no part of the sender's
            self.sink.write(data)
            self._digest.update(data)
            self.have += 1
        return None


class Receiving:
    """Takes the files that are offered under ``patterns``. While nobody calls :meth:`next`, senders wait.

    :param who: a random name, by which senders tell receivers apart.
    :param sink: where the bytes of an offer go; may raise :exc:`OSError`.
    :param most: bytes of the largest file that is taken.
    """

    def __init__(
        self,
        party: Party,
        patterns: tuple[bytes, ...],
        separator: bytes,
        who: str,
        sink: Callable[[Offer], Sink],
        most: int,
        timeout: float,
        clock: Callable[[], float],
    ) -> None:
        self._party = party  # what it publishes and waits with
        self._offers = Mailbox(*patterns)
        self._separator = separator
        self._who = who
        self._sink = sink
        self._most = most
        self._timeout = timeout
        self._clock = clock
        self._incoming: dict[tuple[bytes, str], _Incoming] = {}
        self._ended: dict[tuple[bytes, str], str] = {}  # why a file does not come; empty for one that came

    async def open(self) -> None:
        """Begin: offers are seen from now on."""
        await self._party.open_mailbox(self._offers)

    async def close(self) -> None:
        """End. Nothing is left of what did not come whole."""
        for incoming in self._incoming.values():
            incoming.sink.discard()
        await self._party.close_mailbox(self._offers)
        for incoming in list(self._incoming.values()):
            await self._end(incoming, "the receiver left")

    async def next(self, timeout: float | None = None) -> Received:
        """The next file that is whole, after :meth:`open`.

        Raises :exc:`TimeoutError` after ``timeout`` seconds, and :exc:`~sbuslib.errors.PeerError` and :exc:`OSError`
        when a file that was coming fails. The others still come.
        """
        deadline = None if timeout is None else self._clock() + timeout
        while True:
            while (message := self._offers.take()) is not None:
                await self._take_offer(message)
            for incoming in list(self._incoming.values()):
                if (received := (await self._take_parts(incoming))) is not None:
                    return received
            left = None if deadline is None else deadline - self._clock()
            if left is not None and left <= 0:
                raise TimeoutError(f"no file within {timeout:g} s")
            if self._incoming:
                left = PAUSE if left is None else min(left, PAUSE)
            await self._party.wait_until(self._is_ready, left)

    def _is_ready(self) -> bool:
        return self._offers.is_ready() or any(incoming.parts.messages for incoming in self._incoming.values())

    async def _take_offer(self, message: Message) -> None:
        offer = _decode(message.payload, Offer)
        if offer is None or not self._may_answer(offer):
            return
        known = (message.key, offer.large)
        if known in self._ended:  # and the sender has not heard it
            why = self._ended[known]
            await self._say(message.key, offer, offer.parts + (not why), refused=why)
        elif known in self._incoming:
            incoming = self._incoming[known]
            if incoming.is_from(message):  # whose secret key may have changed
                incoming.offer = msgspec.structs.replace(incoming.offer, to=offer.to)
                incoming.heard = self._clock()
        elif offer.size > self._most:
            why = f"{offer.size:,} bytes are more than {self._most:,}"
            await self._say(message.key, offer, 0, refused=why)
        elif len(self._incoming) < MOST_AT_ONCE:
            try:
                sink = self._sink(offer)
            except OSError as error:
                await self._say(message.key, offer, 0, refused=f"cannot write: {error.strerror}")
                raise
            incoming = self._incoming[known] = _Incoming(message, offer, self._separator, sink, self._clock())
            await self._party.open_mailbox(incoming.parts)
            await self._ask(incoming)

    def _may_answer(self, offer: Offer) -> bool:
        """Whether words may go where an offer wants them: to nobody but a sender of large messages."""
        end = self._separator.join((b"", b"large", offer.large.encode()))
        to = offer.to.encode()
        return not to or (to.endswith(end) and Namespace(self._separator).is_credential(to[: -len(end)]))

    async def _take_parts(self, incoming: _Incoming) -> Received | None:
        """Take what came of one file; the file, if it is whole."""
        now = self._clock()
        while (message := incoming.parts.take()) is not None:
            number = int.from_bytes(message.payload[:_INDEX], "little")
            if not incoming.is_from(message) or number < incoming.have:
                continue
            if number > incoming.have:
                if not incoming.gap:  # one word for all parts after a gap
                    incoming.gap = True
                    await self._ask(incoming)
                continue
            try:
                received = incoming.add(memoryview(message.payload)[_INDEX:])
            except (OSError, PeerError) as error:
                await self._end(incoming, plainly(error))
                raise
            if received is not None:
                await self._end(incoming)
                return received
            incoming.heard = incoming.asked = now
            incoming.gap = False
            if (incoming.have - incoming.told) * incoming.offer.part * 8 >= WINDOW_BYTES:
                incoming.told = incoming.have
                await self._say(incoming.key, incoming.offer, incoming.have)
        if now - incoming.heard > self._timeout:
            why = f"{printable(incoming.key)}: nothing came for {self._timeout:g} s"
            await self._end(incoming, why)
            raise PeerError(why)
        if now - incoming.asked > PAUSE:
            await self._ask(incoming)
        return None

    async def _ask(self, incoming: _Incoming) -> None:
        """Ask the sender to go on from the first part that is missing."""
        incoming.asked = self._clock()
        await self._say(incoming.key, incoming.offer, incoming.have, again=True)

    async def _end(self, incoming: _Incoming, why: str = "") -> None:
        """No more of this file: it is whole, or does not come, and why."""
        if why:
            incoming.sink.discard()
        known = (incoming.key, incoming.offer.large)
        del self._incoming[known]
        if len(self._ended) >= MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        self._ended[known] = why
        await self._party.close_mailbox(incoming.parts)
        await self._say(incoming.key, incoming.offer, incoming.offer.parts + (not why), refused=why)

    async def _say(self, key: bytes, offer: Offer, have: int, *, again: bool = False, refused: str = "") -> None:
        to = offer.to.encode() or self._separator.join((key, offer.large.encode(), b"to"))
        await self._party.publish(to, msgspec.json.encode(Word(self._who, have, again, refused[:200])))
