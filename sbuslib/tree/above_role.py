"""What comes from the hub above.

To its own hub, a connection to the hub above is a connection like any other: what comes from above takes the same path
as what comes from any client. :class:`AboveRole` is what is different.
"""

from __future__ import annotations

import socket
from collections import Counter, deque
from collections.abc import Iterator
from typing import Protocol

from ..core.batch_routing import take_batch
from ..core.connection import Connection
from ..core.messages import Copied
from ..core.protocols import Receiver, Routes
from ..core.publisher import Publisher
from ..errors import PacketError, ReservedKeyError
from ..kernel.sockets import peer_credentials
from ..limits import CONTROL_EXTRA, PACKET_BYTES
from ..secrets import Credentials
from ..wire import control
from ..wire.batches import BATCH
from ..wire.packets import MSG, Control, parse
from .link_routes import receivers_of, remember
from .tree import Tree
from .vouchers import Voucher, Vouchers

__all__ = ["AboveRole", "Owner"]


class Owner(Protocol):
    """What acts on what comes from the hub above."""

    tree: Tree
    dropped: Counter[str]
    """Packets from above that should not have come, by reason."""

    def count_rubbish(self, reason: str, times: int = 1) -> None:
        """Count packets that mean nothing, and log that."""

    def take_control(self, packet: Control) -> None:
        """Act on a control packet from above."""

    def link_ended(self, role: AboveRole, why: str) -> None:
        """The connection ended."""

    def may_come(self, key: bytes) -> bool:
        """Whether a message may come from above."""


class AboveRole:
    """The peer role of the hub above, on one connection. Implements :class:`~sbuslib.core.publisher.Role`.

    Control packets are acted on after the turn in which they came, since they may end the connection.
    """

    asks = False  # the hub above has asked already
    is_link = True
    longest = PACKET_BYTES + CONTROL_EXTRA

    def __init__(self, owner: Owner, relay: Receiver) -> None:
        self._owner = owner
        self._context = owner.tree.context
        self._relay = relay
        self._controls: deque[Control] = deque()
        self._rubbish: Counter[str] = Counter()  # of one turn

    def connect(self, sock: socket.SocketType) -> Connection:
        """Read from a connection to the hub above."""
        credentials = peer_credentials(sock)

        def vouch(sender: bytes) -> Voucher:
            # Empty is a sender that nobody above knows: one beyond a hub without features.
            if sender and not self._context.router.namespace.is_credential(sender):
                raise PacketError("malformed sender")
            return Voucher(bytes, credentials, sender)

        self._vouchers = Vouchers(vouch)
        account = self._context.quotas.account(credentials.uid)
        return Connection(self._context, sock, credentials, account, self)

    def key_of(self, credentials: Credentials) -> bytes:
        """Empty: who published is known only where the hub above tells."""
        return b""

    def after_turn(self, publisher: Publisher) -> None:
        """Act on control packets, now that the hub's area is free again."""
        if self._rubbish:
            rubbish, self._rubbish = self._rubbish, Counter()
            for reason, times in rubbish.items():
                self._owner.count_rubbish(reason, times)
        while self._controls and not publisher.closed:
            self._owner.take_control(self._controls.popleft())

    def review(self, publisher: Publisher) -> Iterator[None]:
        """Nothing: the hub above is not asked about."""
        return iter(())

    def violated(self, publisher: Publisher, reason: str) -> None:
        """The hub above broke the protocol."""
        self.after_turn(publisher)
        self._owner.link_ended(self, reason)

    def ended(self, publisher: Publisher, why: str) -> None:
        """The hub above has gone. What it said before that still counts: acknowledgements, and why it kicked us."""
        self.after_turn(publisher)
        self._owner.link_ended(self, why)

    def drop(self, reason: str, times: int = 1) -> None:
        """Count what means nothing. It is logged after the turn."""
        self._rubbish[reason] += times

    def look_up(self, publisher: Publisher, header: bytes, times: int) -> Routes:
        """The receivers here but the relay. Nobody receives what this hub did not ask for."""
        try:
            found = receivers_of(self._context, header, self._relay)
        except ReservedKeyError as error:
            self.drop(error.reason, times)
            return ()
        if not self._owner.may_come(header[len(MSG) : -1]):
            # No rubbish: a wider pattern may have been asked for, and the C daemon delivers secrets to wildcards.
            self._owner.dropped["not asked for"] += times
            return ()
        remember(self._context, publisher.routes, header, found)
        return found

    def command(self, publisher: Publisher, data: bytes) -> None:
        """Act on a packet that is no message of an unknown sender."""
        if data.startswith(BATCH):
            take_batch(publisher, data, publisher.sender)
            return
        try:
            packet = parse(data)
            if not isinstance(packet, Control):
                raise PacketError("not for a relay")
            if packet.key != control.FROM:
                self._controls.append(packet)
                return
            sender, inner = control.unwrap_from(packet.payload or b"")
            header = inner[: inner.find(b"\0") + 1]
            if (header != BATCH and not header.startswith(MSG)) or len(inner) > PACKET_BYTES:
                raise PacketError("wrapped packet is no message")
            voucher = self._vouchers.of(sender)
        except PacketError as error:
            self.drop(error.reason)
            return
        if header == BATCH:
            take_batch(publisher, inner, voucher, control.wrapper_from(sender))
            return
        receivers = publisher.routes.get(header) or publisher.look_up(header)
        publisher.deliver(receivers, voucher, Copied(self._context.writer, [inner]))
