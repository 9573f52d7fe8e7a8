"""The embedding process as a sender and a receiver: behind ``hub.publish``, ``hub.subscribe`` and so on.

It receives through an :class:`Inbox`: a client without a socket, whose queue is bounded as any client's, with the
default rule: when full, the newest message is lost and counted. All of it belongs to the thread of the hub's
event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import KeyFormatError, PacketError
from ..limits import PACKET_BYTES
from ..statistics import ClientStatistics
from ..wire import control
from ..wire.batches import Batch, pack
from ..wire.control import Away, Lost
from ..wire.packets import MSG, Message, check_key, encode_message, parse
from ..wire.text import printable
from .context import Context
from .fan_out import FanOuts
from .greenlet_inbox import GreenletInbox
from .messages import Batched, Messages, Single
from .protocols import Pausable, Receiver, Routes, Sender


class Embedder:
    """The process that serves the hub. Implements :class:`~.protocols.Sender`."""

    def __init__(self, context: Context, fan_outs: FanOuts) -> None:
        self._context = context
        self._fan_outs = fan_outs
        self._writer = context.running.writer  # writes what receivers do not get from the receive buffer
        self._namespace = context.router.namespace  # the hub's, with its prefix
        self.credentials = context.running.credentials  # this process

    @property
    def key(self) -> bytes:
        return self._namespace.credential_key(self.credentials)

    @property
    def wrapper(self) -> bytes:
        return control.wrapper_from(self.key)

    def holdable_by(self, receiver: Receiver) -> Pausable | None:
        return None  # publish() never blocks

    def receivers_of(self, key: bytes) -> Routes:
        """The receivers of a key. Raises :exc:`~sbuslib.errors.KeyFormatError` where nobody may publish under it."""
        router = self._context.router
        header = b"MSG %b\0" % key
        receivers = router.routes.get(header)
        if receivers is None:
            try:
                receivers = router.route(header)
            except PacketError as error:
                raise KeyFormatError(f"nobody may publish under {printable(key)}: {error.reason}") from None
        return receivers

    def encode(self, key: bytes, payload: bytes) -> bytes:
        """A message as a packet. Raises as :meth:`publish`."""
        packet = encode_message(key, payload)
        self.receivers_of(key)
        return packet

    def publish(self, key: bytes, payload: bytes) -> None:
        """Raises :exc:`~sbuslib.errors.KeyFormatError` and :exc:`~sbuslib.errors.PayloadError`."""
        packet = encode_message(key, payload)
        self._deliver(self.receivers_of(key), Single(packet))

    def publish_some(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Publish in batches. A batch stays whole if all its keys have the same receivers. Raises as above."""
        self._context.check_here()
        writer = self._writer
        for packet, count in pack(pairs, check_key, PACKET_BYTES):
            batch = Batch.parse(packet) if count > 1 else None
            if batch is None:
                self._deliver(self.receivers_of(packet[len(MSG) : packet.index(b"\0")]), Single(packet))
                continue
            routes = [self.receivers_of(key) for key in batch.keys]
            if routes.count(routes[0]) == len(routes):
                self._deliver(routes[0], Batched(writer, batch))
                continue
            of = dict(zip(batch.keys, routes, strict=True))
            for message, one in zip(batch.messages(), batch.plain, strict=True):
                self._deliver(of[message.key], Single(one))

    def _deliver(self, receivers: Routes, messages: Messages) -> None:
        self._context.counts.published += messages.count
        for receiver in self._fan_outs.with_groups(receivers, self):
            receiver.deliver(self, messages)


class Inbox(GreenletInbox[Message]):
    """A subscription of an embedder: a :class:`~sbuslib.Subscription`. ``hub.subscribe`` and ``hub.tap`` return it.

    Its queue is the hub's, as for any client: ``lost`` counts all losses there. Each message carries its sender.

    :param on_closed: called when it ends.
    """

    takes_batches = False

    def __init__(self, context: Context, on_closed: Callable[[Inbox], None], *patterns: bytes) -> None:
        super().__init__()  # a packet waits with the credential key of its sender
        self._context = context
        self._on_closed = on_closed
        self.patterns = patterns  # of the subscription; none for a tap
        self.credentials = context.running.credentials  # this process
        self.account = context.quotas.account(self.credentials.uid)  # of the hub's own user
        self._limits = context.limits  # the hub's
        self.routed = 0  # messages that were to come here, ever
        self.taken = 0  # messages that the application has taken
        self.peak = 0  # most messages that waited
        self.lost: dict[str, int] = {}  # messages without room, by cause

    def deliver(self, sender: Sender, messages: Messages) -> None:
        """Keep copies of messages: the hub's side."""
        if self.closed:
            return
        for packet in messages.packets():
            self.routed += 1
            size = self._bytes + len(packet)
            if len(self._waiting) >= self._limits.queued_packets or size > self._limits.queued_bytes:
                self.lost["overflow"] = self.lost.get("overflow", 0) + 1
                continue
            self._bytes = size
            self._waiting.append((sender.key, packet))
        self.peak = max(self.peak, len(self._waiting))
        self._ready.set()

    def notify(self, notice: Lost | Away) -> None:
        """Messages were lost between two hubs of the tree. Nothing that a plain inbox could do about it."""

    @property
    def delivered(self) -> int:
        """Messages taken by the application."""
        return self.taken if not self.closed else self.taken + len(self._waiting)

    def statistics(self) -> ClientStatistics:
        """This inbox at this instant."""
        limits = self._limits

        return ClientStatistics(
            number=0,
            credentials=self._context.router.namespace.credential_key(self.credentials).decode(),
            patterns=self._context.router.count(self),
            published=0,
            routed=self.routed,
            delivered=self.taken,
            waiting=len(self._waiting),
            waiting_peak=self.peak,
            full=round(max(len(self._waiting) / limits.queued_packets, self._bytes / limits.queued_bytes), 3),
            lost=dict(self.lost),
            soft="queue",
            hard="discard",
            order="queue",
        )

    def _check_here(self) -> None:
        self._context.check_here()

    def _take(self, count: int) -> list[Message]:
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> Message:
        sender, packet = self._waiting.popleft()
        self._bytes -= len(packet)
        self.taken += 1
        message = parse(packet)
        assert isinstance(message, Message)
        return Message(message.key, message.payload, sender)

    def unsubscribe(self) -> None:
        if not self.closed:
            if self._context.is_serving:
                self._context.check_here()
            self._on_closed(self)
            self.end()

    def end(self) -> None:
        """Nothing more comes."""
        self.closed = True
        self._ready.set()
