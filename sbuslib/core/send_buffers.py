"""Send buffers in the kernel, for packets that clients have not read yet: small ones, and full ones where needed.

A packet that a hub has sent waits in the kernel until the client reads it, in memory that is charged to the hub's
process and not to the client's. So each connection begins with a small send buffer, which is enough for a client that
is idle or keeps up. When a client falls behind, or a packet is longer than the small buffer, the connection gets the
full one, charged to its user. All full buffers together are bounded by ``Limits.send_buffers``, and shared out among
users as :mod:`.quotas` tells. When the share of a user is used up, a full buffer is taken back from one of its clients
that has read everything. If there is none, its clients go on with small buffers. They queue in the hub sooner, and a
message that is longer than the small buffer is lost (cause ``quota``).
"""

from __future__ import annotations

from collections import OrderedDict
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from ..kernel.sockets import set_send_buffer, unread_bytes

if TYPE_CHECKING:
    from socket import SocketType

    from ..limits import Limits
    from ..shares import Shares
    from .quotas import Account

__all__ = ["Growing", "SendBuffers"]

_LOOKED_AT: Final = 8
"""Clients of a user that are looked at for one that has read everything. Each takes a system call."""

_PAUSE: Final = 0.02
"""Seconds for which a user's clients are not looked at again, after none of them had read everything."""


class Growing(Protocol):
    """A client's connection."""

    account: Account
    socket: SocketType
    grown: bool
    """Whether its send buffer is the full one."""

    def __hash__(self) -> int: ...


class SendBuffers:
    """The send buffers of one hub's connections; the full ones are charged to ``shares``."""

    def __init__(self, limits: Limits, shares: Shares) -> None:
        self._limits = limits
        self._shares = shares
        self._size = 2 * limits.send_buffer  # which is what the kernel makes of it
        # By user, those looked at longest ago first; whether for good.
        self._grown: dict[int, OrderedDict[Growing, bool]] = {}
        self._vain: dict[int, float] = {}  # by user: until when no client has to be looked at again

    def grow(self, connection: Growing, for_good: bool = False) -> bool:
        """Give a connection the full buffer; ``False`` if it has it, or its user's share is used up.

        ``for_good``: whatever the share, and it is not taken back.
        """
        uid = connection.account.uid
        if not connection.grown:
            if not (self._shares.take(uid, self._size) or (self._reclaim(uid) and self._shares.take(uid, self._size))):
                if not for_good:
                    return False
                self._shares.force(uid, self._size)
            connection.grown = True
            set_send_buffer(connection.socket, self._limits.send_buffer)
        elif not for_good:
            return False
        self._grown.setdefault(uid, OrderedDict())[connection] = for_good
        return True

    def release(self, connection: Growing) -> None:
        """A connection is about to be closed."""
        mine = self._grown.get(connection.account.uid)
        if mine is not None and connection in mine:
            self._forget(connection, mine)

    def _forget(self, connection: Growing, mine: OrderedDict[Growing, bool]) -> None:
        uid = connection.account.uid
        del mine[connection]
        if not mine:
            del self._grown[uid]
            self._vain.pop(uid, None)
        self._shares.give(uid, self._size)
        connection.grown = False

    def _reclaim(self, uid: int) -> bool:
        """Take the full buffer back from a client of this user that has read all; whether there was one."""
        mine = self._grown.get(uid)
        now = monotonic()
        if mine is None or now < self._vain.get(uid, 0.0):
            return False
        for _ in range(min(_LOOKED_AT, len(mine))):
            connection = next(iter(mine))
            mine.move_to_end(connection)
            if not mine[connection] and not unread_bytes(connection.socket):
                self._forget(connection, mine)
                set_send_buffer(connection.socket, self._limits.idle_send_buffer)
                return True
        self._vain[uid] = now + _PAUSE
        return False
