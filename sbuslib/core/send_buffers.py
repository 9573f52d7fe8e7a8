"""Send buffers in the kernel, for packets that clients have not read yet: small ones, and full ones where needed.

A packet that a hub has sent waits in the kernel until the client reads it, in memory that is charged to the hub's
process and not to the client's. So each connection begins with a small send buffer, which is enough for a client that
is idle or keeps up. When a client falls behind, or a packet is longer than the small buffer, the connection gets the
full one, charged to its user, and keeps it. All full buffers together are bounded by ``Limits.send_buffers``, and
shared out among users as :mod:`.quotas` tells. When the share of a user is used up, its clients go on with small
buffers. They queue in the hub sooner, and a message that is longer than the small buffer is lost (cause ``quota``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..kernel.sockets import set_send_buffer

if TYPE_CHECKING:
    from socket import SocketType

    from ..limits import Limits
    from ..shares import Shares
    from .quotas import Account

__all__ = ["Growing", "SendBuffers"]


class Growing(Protocol):
    """A client's connection."""

    account: Account
    socket: SocketType
    grown: bool
    """Whether its send buffer is the full one."""


class SendBuffers:
    """The send buffers of one hub's connections; the full ones are charged to ``shares``."""

    def __init__(self, limits: Limits, shares: Shares) -> None:
        self._limits = limits
        self._shares = shares
        self._size = 2 * limits.send_buffer  # which is what the kernel makes of it

    def grow(self, connection: Growing, anyway: bool = False) -> bool:
        """Give a connection the full buffer; ``False`` if it has it, or its user's share is used up.

        ``anyway``: whatever the share.
        """
        uid = connection.account.uid
        if connection.grown:
            return False
        if anyway:
            self._shares.force(uid, self._size)
        elif not self._shares.take(uid, self._size):
            return False
        connection.grown = True
        set_send_buffer(connection.socket, self._limits.send_buffer)
        return True

    def release(self, connection: Growing) -> None:
        """A connection is about to be closed."""
        if connection.grown:
            self._shares.give(connection.account.uid, self._size)
            connection.grown = False
