"""``PacketWriter``: sends packets from anywhere in memory, many with one system call."""

from __future__ import annotations

import ctypes
import mmap
import socket
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from .vectors import CALLS, COUNTS, NO_WAIT, ONE_PACKET_FLAGS, WORD_FORMAT, Vector, has_calls, send_each


class PacketWriter:
    """Sends packets that lie anywhere in memory, many with one call. Not for several threads at once.

    They are copied into one block first, which costs less than giving the kernel the place of each.
    """

    SIZE: Final = 64
    BLOCK_BYTES: Final = 256 * 1024

    def __init__(self) -> None:
        self._vector: Vector | None = None  # where the C library has the calls
        if has_calls():
            self._vector = Vector(self.SIZE)
            self._block = mmap.mmap(-1, self.BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            anchor = ctypes.c_char.from_buffer(self._block)
            self._start = ctypes.addressof(anchor)

    def send(
        self, sock: socket.SocketType, packets: Sequence[bytes | memoryview], flags: int = ONE_PACKET_FLAGS
    ) -> int:
        """Send ``packets`` in order. Returns the number sent before the kernel would have blocked.

        Raises :exc:`OSError` only if the first packet cannot be sent; ``EMSGSIZE``: it is too long.
        """
        if self._vector is None or len(packets) == 1 or flags != ONE_PACKET_FLAGS:
            return send_each(sock, packets, flags)
        sent = 0
        while sent < len(packets):
            batch = packets[sent : sent + self.SIZE]
            tried, went = self._send(sock, self._vector, batch)
            if went <= 0:
                # Nothing went: the plain call raises the error, or sends a packet that is too long for the block.
                try:
                    tried, went = 1, send_each(sock, batch[:1])
                except OSError:
                    if not sent:
                        raise
                    break
            sent += went
            if went < tried:
                break
        return sent

    def _send(self, sock: socket.SocketType, vector: Vector, packets: Sequence[bytes | memoryview]) -> tuple[int, int]:
        """Send as many of ``packets`` as fit the block. Returns their number, and the number sent."""
        count = self._lay_out(vector, packets)
        return (count, self._call(sock, vector, count)) if count else (0, 0)

    def _lay_out(self, vector: Vector, packets: Sequence[bytes | memoryview]) -> int:
        """Put as many of ``packets`` into the block as fit. Returns their number."""
        sizes = array(WORD_FORMAT, map(len, packets))
        ends = list(accumulate(sizes))
        count = bisect_right(ends, self.BLOCK_BYTES)
        if count:
            sizes = sizes[:count]
            self._block[: ends[count - 1]] = b"".join(packets[:count])
            starts = array(WORD_FORMAT, accumulate(sizes, initial=self._start))
            vector.bases[0][:count] = memoryview(starts)[:count]
            vector.sizes[0][:count] = memoryview(sizes)
        return count

    @staticmethod
    def _call(sock: socket.SocketType, vector: Vector, count: int) -> int:
        assert CALLS is not None
        sent: int = CALLS[1](sock.fileno(), vector.addresses[0], COUNTS[count], NO_WAIT)
        return sent
