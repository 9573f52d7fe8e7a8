"""The embedding process as a sender: what ``hub.publish`` and its like do."""

from __future__ import annotations

from ..errors import KeyFormatError, PacketError
from ..limits import PACKET_BYTES
from ..wire import control
from ..wire.batches import Batch, pack
from ..wire.packets import MSG, check_key, encode_message
from ..wire.text import printable
from .context import Context
from .messages import Batched, Copied, Messages
from .protocols import Holdable, Receiver, Routes

__all__ = ["Embedder"]


class Embedder:
    """The process that serves the hub. Implements :class:`~.protocols.Sender`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._namespace = context.router.namespace  # the hub's, with its prefix
        self.credentials = context.credentials  # this process

    @property
    def key(self) -> bytes:
        return self._namespace.credential_key(self.credentials)

    @property
    def wrapper(self) -> bytes:
        return control.wrapper_from(self.key)

    def holdable_by(self, receiver: Receiver) -> Holdable | None:
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
        self._deliver(self.receivers_of(key), Copied(self._context.writer, [packet]))

    def publish_some(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Publish in batches. A batch stays whole if all its keys have the same receivers. Raises as above."""
        self._context.check_here()
        writer = self._context.writer
        for packet, count in pack(pairs, check_key, PACKET_BYTES):
            batch = Batch.parse(packet) if count > 1 else None
            if batch is None:
                self._deliver(self.receivers_of(packet[len(MSG) : packet.index(b"\0")]), Copied(writer, [packet]))
                continue
            routes = [self.receivers_of(key) for key in batch.keys]
            if routes.count(routes[0]) == len(routes):
                self._deliver(routes[0], Batched(writer, batch))
                continue
            of = dict(zip(batch.keys, routes, strict=True))
            for message, one in zip(batch.messages(), batch.plain, strict=True):
                self._deliver(of[message.key], Copied(writer, [one]))

    def _deliver(self, receivers: Routes, messages: Messages) -> None:
        context = self._context
        context.published += messages.count
        for receiver in context.fan_out.with_groups(receivers, self):
            receiver.deliver(self, messages)
