"""Sender of one client: published messages, changes and questions for its hub, as far as the kernel takes them now."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from socket import SocketType

from ..kernel.packet_writer import PacketWriter


class ClientWriter:
    """Sender of one client. ``lock`` is held while packets are sent: inside of the leader's lock, if both are held."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self.lock = lock  # see above
        self._writer = PacketWriter()  # sends many packets with one call
        self.unsaid: deque[bytes] = deque()
        """Changes and questions that are still to be sent over this connection, in order."""

    def note(self, packets: Iterable[bytes]) -> None:
        """Note changes for the hub. A change that undoes an unsent one removes it, and is not sent either."""
        with self.lock:
            for packet in packets:
                taken_back = packet[2:] if packet.startswith(b"UNSUB ") else b"UN" + packet
                if self.unsaid and taken_back in self.unsaid:
                    self.unsaid.remove(taken_back)
                else:
                    self.unsaid.append(packet)

    def withdraw(self, packet: bytes) -> bool:
        """Drop an unsent change; ``False`` if it was sent."""
        with self.lock:
            if packet not in self.unsaid:
                return False
            self.unsaid.remove(packet)
            return True

    def say_some(self, here: Callable[[], SocketType]) -> None:
        """Send changes and questions to the hub, over the connection that is ``here``. Raises :exc:`OSError`, and as
        ``here``.
        """
        unsaid = self.unsaid
        with self.lock:
            while unsaid:
                packets = [unsaid[place] for place in range(min(len(unsaid), PacketWriter.SIZE))]
                try:
                    sent = self._writer.send(here(), packets)
                except OSError as error:
                    if error.errno == errno.EMSGSIZE:  # it never goes
                        unsaid.popleft()
                    raise

                for _ in range(sent):
                    unsaid.popleft()
                if sent < len(packets):
                    return

    def send(self, sock: SocketType, packets: list[bytes], flags: int) -> int:
        """Send packets; return how many went. Raises :exc:`OSError`."""
        with self.lock:
            return self._writer.send(sock, packets, flags)
