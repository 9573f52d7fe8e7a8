"""A packet whose payload the caller writes in place."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import PayloadError
from ..limits import PACKET_BYTES
from ..wire.packets import message_header

__all__ = ["PreparedMessage"]


class PreparedMessage:
    """A packet whose payload is still to be written: fill :attr:`payload`, then :meth:`send`.

    ``payload`` is a writable view of as many bytes as still fit the packet. May be sent many times.
    """

    def __init__(self, key: bytes, send: Callable[[memoryview, int], object]) -> None:
        """``send`` takes a packet and the flags of send(2)."""
        header = message_header(key)
        if len(header) > PACKET_BYTES:
            raise PayloadError(f"a key of {len(key):,} bytes leaves no room in a packet of {PACKET_BYTES:,}")
        self._send = send
        self._start = len(header)
        self._packet = memoryview(bytearray(PACKET_BYTES))
        self._packet[: self._start] = header
        self.payload = self._packet[self._start :]

    def send(self, size: int, flags: int = 0) -> None:
        """Publish the first ``size`` bytes of :attr:`payload`. Raises as ``publish`` of the client does."""
        if not 0 <= size <= len(self.payload):
            raise PayloadError(f"a payload of {size:,} bytes: there is room for {len(self.payload):,}")
        self._send(self._packet[: self._start + size], flags)
