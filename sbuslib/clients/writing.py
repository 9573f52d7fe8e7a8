"""Sends what a client publishes, and what its hub has still to be told and asked, as far as the kernel takes it now."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from socket import SocketType

from ..kernel.packet_writer import PacketWriter


class ClientWriter:
    """What one client sends. ``lock`` is held while packets are sent: inside of the lead's lock, if both are held."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self.lock = lock  # see above
        self._writer = PacketWriter()  # sends many packets with one call
        self.unsaid: deque[bytes] = deque()
        """What the hub of this connection has still to be told or asked, in order."""

    def note(self, packets: Iterable[bytes]) -> None:
        """The hub has to be told of changes. What takes back a change that it was not told of is not said either."""
        with self.lock:
            for packet in packets:
                taken_back = packet[2:] if packet.startswith(b"UNSUB ") else b"UN" + packet
                if self.unsaid and taken_back in self.unsaid:
                    self.unsaid.remove(taken_back)
                else:
                    self.unsaid.append(packet)

    def withdraw(self, packet: bytes) -> bool:
        """Say something no more; ``False`` if it was said."""
        with self.lock:
            if packet not in self.unsaid:
                return False
            self.unsaid.remove(packet)
            return True

    def say_some(self, here: Callable[[], SocketType]) -> None:
        """Tell and ask the hub, over the connection that is ``here``. Raises :exc:`OSError`, and as ``here``."""
        unsaid = self.unsaid
        with self.lock:
            while unsaid:
                some = [unsaid[place] for place in range(min(len(unsaid), PacketWriter.SIZE))]
                try:
                    sent = self._writer.send(here(), some)
                except OSError as error:
                    if error.errno == errno.EMSGSIZE:  # it never goes
                        unsaid.popleft()
                    raise

                for _ in range(sent):
                    unsaid.popleft()
                if sent < len(some):
                    return

    def send(self, sock: SocketType, packets: list[bytes], flags: int) -> int:
        """Send packets; how many went. Raises :exc:`OSError`."""
        with self.lock:
            return self._writer.send(sock, packets, flags)
