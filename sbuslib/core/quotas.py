"""Quotas of each user's clients: connections, patterns, and room in queues.

Quotas are for a user and not for a connection: else a user would get around them by opening more connections. Two
rules:

* *Patterns* are a plain maximum for each user: in number, in bytes, and in *steps*. A presence is one, and its
  information counts among the bytes. All patterns of a user together may
  add ``user_pattern_steps`` steps to the look-up of one key, for any key and any patterns: a sum over their distinct
  shapes, by the theory in :mod:`sbuslib.matcher`. Patterns without ``*`` cost nothing; any number of patterns of one
  shape, for example ``room/*/temp`` and ``hall/*/door``, cost once.
* *Connections*, *room in queues* and *send buffers* are shared out among users, see :mod:`sbuslib.shares`.

A queue is charged to the user of its receiver, on behalf of the user of the sender: users that flood a receiver take
their shares from one another, and not from users that do not.

The object that charges something also releases it. Source: the accounting of dbus-broker,
``src/util/user.c``, and its shares of ``1 / (n + 1)``.
"""

from __future__ import annotations

from typing import Any, Final

from ..keys.policy import Policy, Scope
from ..limits import Limits
from ..matcher import Pattern, Shapes
from ..shares import Shares

SEGMENT_BYTES: Final = 32
"""Bytes that are charged for each segment of a pattern with a wildcard, beside its own. Even an empty segment may be a
node of the index, of some 300 bytes; a tenth of that is charged, as everywhere in the index."""


class Room:
    """Room for so many packets and bytes, shared out among the users that sent them."""

    __slots__ = ("packets", "queued_bytes", "releases")

    def __init__(self, packets: int, size: int) -> None:
        self.releases = 0
        """Goes up whenever room is released. A user that found no room finds none before it goes up."""
        self.packets = Shares(packets)  # by sender's user
        self.queued_bytes = Shares(size)  # by sender's user

    def take_room(self, sender: int, packets: int, size: int) -> bool:
        """Charge room on behalf of ``sender``; ``False``, and nothing charged, beyond its share."""
        if not self.packets.take(sender, packets):
            return False
        if not self.queued_bytes.take(sender, size):
            self.packets.give(sender, packets)
            return False
        return True

    def has_room(self, sender: int, size: int = 1) -> bool:
        """Whether ``sender`` may have another packet, of ``size`` bytes, wait."""
        return self.packets.could_take(sender, 1) and self.queued_bytes.could_take(sender, size)

    def has_any_room(self, size: int) -> bool:
        """Return whether another packet of ``size`` bytes stays within the maximum, shares aside."""
        return self.packets.remaining >= 1 and self.queued_bytes.remaining >= size

    def force_room(self, sender: int, packets: int, size: int) -> None:
        self.packets.force(sender, packets)
        self.queued_bytes.force(sender, size)

    def give_room(self, sender: int, packets: int, size: int) -> None:
        self.releases += 1
        self.packets.give(sender, packets)
        self.queued_bytes.give(sender, size)

    def is_below_share(self, sender: int, packets: int = 1, size: int = 1) -> bool:
        """Whether n >= 2 users hold room, and ``sender`` holds at most 1/n of it, with so much more."""
        users = self.packets.users + (not self.packets.held(sender))
        return (
            users > 1
            and (self.packets.held(sender) + packets) * users <= self.packets.maximum
            and (self.queued_bytes.held(sender) + size) * users <= self.queued_bytes.maximum
        )

    def is_empty(self) -> bool:
        return not (self.packets.used or self.queued_bytes.used)


class Account(Room):
    """The account of one user's clients. As a :class:`Room` it is the room in all their queues."""

    __slots__ = ("connections", "fan_out", "pattern_bytes", "patterns", "queue", "scope", "shapes", "uid")

    def __init__(self, uid: int, limits: Limits) -> None:
        super().__init__(limits.user_queued_packets, limits.user_queued_bytes)
        self.uid = uid
        self.connections = 0  # accepted, or closed and not finished
        self.patterns = 0  # distinct ones of each client
        self.pattern_bytes = 0  # of these, with what their segments cost
        self.shapes = Shapes()
        """The shapes of its clients' patterns, and what these may add to the look-up of one key."""
        self.fan_out = Room(limits.fanout_packets, limits.fanout_bytes)
        """Room in the fan-out queue of this user."""
        self.queue: Any = None
        """The fan-out queue (:class:`~.protocols.Queue`), while anything waits in it."""
        self.scope: tuple[Policy, Scope] | None = None
        """The rules, and this user's scope in them; ``None``: not looked up yet."""

    def is_clear(self) -> bool:
        charged = self.connections or self.patterns or self.pattern_bytes or self.shapes.steps
        return not charged and self.is_empty() and self.fan_out.is_empty() and self.queue is None


class Quotas:
    """The accounts of one hub's users, and its connections shared out among them.

    :param connections: how many connections the hub can hold in all.
    :param exempt: users who may have all connections that are left, for example the hub's own.
    """

    def __init__(self, limits: Limits, connections: int, exempt: frozenset[int] = frozenset()) -> None:
        self._limits = limits
        self._exempt = exempt
        self._accounts: dict[int, Account] = {}  # by user
        self.connections = Shares(connections, exempt)  # by user
        self.allowed = Shares(limits.allowed_bytes)
        """Bytes of keys remembered as allowed by ``authorize=``."""
        self.send_buffers = Shares(limits.send_buffers)
        """Bytes of full send buffers."""

    def account(self, uid: int) -> Account:
        account = self._accounts.get(uid)
        if account is None:
            account = self._accounts[uid] = Account(uid, self._limits)
        return account

    def accounts(self) -> list[Account]:
        """All accounts in which something is charged."""
        return [account for account in self._accounts.values() if not account.is_clear()]

    def several(self) -> bool:
        """Whether more than one user has connections."""
        return self.connections.users > 1

    def open(self, uid: int) -> Account | None:
        """Charge a connection; ``None`` when the user, or the hub, can have no more."""
        if uid not in self._exempt and self.connections.held(uid) >= self._limits.user_connections:
            return None
        if not self.connections.take(uid, 1):
            return None
        account = self.account(uid)
        account.connections += 1
        return account

    def close(self, account: Account) -> None:
        self.connections.give(account.uid, 1)
        account.connections -= 1
        self.tidy(account)

    def keep_open(self, account: Account) -> None:
        """A connection that is about to be closed still counts, until it is closed once more."""
        self.connections.force(account.uid, 1)
        account.connections += 1

    def tidy(self, account: Account) -> None:
        """Forget an account in which nothing is charged.

        The hub's own account is kept: the embedder's inboxes refer to it, and are no connections.
        """
        if account.is_clear() and account.uid not in self._exempt:
            self._accounts.pop(account.uid, None)

    def take_pattern(self, account: Account, pattern: Pattern, more: int = 0) -> bool:
        """Charge a pattern, and more bytes kept with it; ``False``, and nothing charged, beyond the maximum."""
        limits, size = self._limits, _size(pattern) + more
        if account.patterns >= limits.user_patterns or account.pattern_bytes + size > limits.user_pattern_bytes:
            return False
        if not account.shapes.add(pattern.shape, limits.user_pattern_steps):
            return False
        account.patterns += 1
        account.pattern_bytes += size
        return True

    def force_pattern(self, account: Account, pattern: Pattern, more: int = 0) -> None:
        account.patterns += 1
        account.pattern_bytes += _size(pattern) + more
        account.shapes.add(pattern.shape)

    def give_pattern(self, account: Account, pattern: Pattern, more: int = 0) -> None:
        account.patterns -= 1
        account.pattern_bytes -= _size(pattern) + more
        account.shapes.remove(pattern.shape)
        self.tidy(account)

    def take_bytes(self, account: Account, more: int) -> bool:
        """Charge more bytes for a pattern that is charged already, or give some back; ``False`` beyond the maximum."""
        if more > 0 and account.pattern_bytes + more > self._limits.user_pattern_bytes:
            return False
        account.pattern_bytes += more
        return True

    def is_clear(self) -> bool:
        return not (self.accounts() or self.connections.used or self.allowed.used or self.send_buffers.used)


def _size(pattern: Pattern) -> int:
    """The bytes that are charged for a pattern: its own, and those of its segments in the index."""
    segments = 0 if pattern.is_literal else len(pattern.segments) + pattern.below
    return len(pattern.raw) + segments * SEGMENT_BYTES
