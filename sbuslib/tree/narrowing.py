"""What a link may subscribe to of what it asks for: the part that its user may read.

A hub below subscribes for all of its clients, and one of them may ask for everything. So a link's ``SUB`` of a pattern
that its user may not read as a whole is no violation: the link gets the parts that the user may read
(:meth:`~sbuslib.core.authorization.Authorization.narrow`), and nothing if there are none. What it asked for is
remembered, so that its ``UNSUB`` takes the same parts back, and that a change of the policy finds it.

A part that several of these patterns share is subscribed to once for each of them, since subscriptions are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from ..core.context import Context
from ..core.protocols import Receiver
from ..core.quotas import Account
from ..errors import PacketError
from ..reasons import Reason

__all__ = ["Narrowed", "PatternHolder"]


class PatternHolder(Receiver, Protocol):
    """The other end of a link."""

    closed: bool
    account: Account


class Narrowed:
    """The patterns that one link asked for and does not hold as they are.

    Each is charged to the link's user like a pattern that is held.

    :param narrow: the parts of a pattern that it may hold; by default those that its user may read.
    """

    def __init__(
        self, context: Context, connection: PatternHolder, narrow: Callable[[bytes], list[bytes]] | None = None
    ) -> None:
        self._context = context
        self._router = context.router  # of the hub, which holds the parts
        self._connection = connection
        self._account = connection.account  # which is charged
        self._asked: dict[bytes, tuple[int, list[bytes]]] = {}  # how many times, and its parts
        self._bytes = 0  # of these patterns
        self._parts: Counter[bytes] = Counter()  # for how many of these patterns each part is held
        self._narrow = narrow or self._narrow_to_rules  # the parts of a pattern

    def _narrow_to_rules(self, pattern: bytes) -> list[bytes]:
        return self._context.authorization.narrow(self._account, self._connection.credentials, pattern)

    def holds(self, pattern: bytes) -> bool:
        """Whether the link asked for a pattern."""
        return pattern in self._asked or self._direct(pattern) > 0

    def subscribe(self, pattern: bytes, anyway: bool = False) -> None:
        """The link asked for a plain pattern.

        Raises :exc:`~sbuslib.errors.PacketError` if the link gets nothing of it, and beyond the limits, unless it is to
        be put in force ``anyway``.
        """
        self._router.check_size(pattern)
        if pattern in self._asked:
            count, parts = self._asked[pattern]
            self._asked[pattern] = count + 1, parts
            return
        parts = self._narrow(pattern)
        if self._connection.closed:
            return  # authorize= had it closed
        if parts == [pattern]:
            if anyway:
                self._router.subscribe_anyway(pattern, self._connection, self._account)
            else:
                self._router.subscribe(pattern, self._connection, self._connection.credentials, self._account)
            return
        quotas = self._context.quotas
        if anyway:
            quotas.force_pattern(self._account, len(pattern))
        elif not quotas.take_pattern(self._account, len(pattern)):
            raise PacketError(Reason.TOO_MANY_PATTERNS)
        self._enter(pattern, 1, parts)
        if not parts:
            raise PacketError(Reason.SUBSCRIPTION_REFUSED)

    def _enter(self, pattern: bytes, count: int, parts: list[bytes]) -> None:
        """Remember a pattern that is charged, and subscribe to its parts. They are few: the policy has them."""
        self._asked[pattern] = count, parts
        self._bytes += len(pattern)
        for part in parts:
            self._hold(part)

    def _hold(self, part: bytes) -> None:
        self._parts[part] += 1
        self._router.subscribe_anyway(part, self._connection, self._account)

    def _let_go(self, part: bytes) -> None:
        self._parts[part] -= 1
        if not self._parts[part]:
            del self._parts[part]
        self._router.unsubscribe(part, self._connection, self._account)

    def unsubscribe(self, pattern: bytes) -> bool:
        """The link takes one subscription back. Returns whether there was one."""
        if pattern not in self._asked:
            # Nor does it take back what is held in place of another pattern.
            return self._direct(pattern) > 0 and self._router.unsubscribe(pattern, self._connection, self._account)
        count, parts = self._asked[pattern]
        if count > 1:
            self._asked[pattern] = count - 1, parts
            return True
        del self._asked[pattern]
        self._bytes -= len(pattern)
        for part in parts:
            self._let_go(part)
        self._context.quotas.give_pattern(self._account, len(pattern))
        return True

    def _direct(self, pattern: bytes) -> int:
        """How many times the link asked for a pattern that it holds as it is."""
        return self._router.times(pattern, self._connection) - self._parts[pattern]

    def review(self) -> Iterator[None]:
        """The policy has changed: bring what the link holds in line with it, one pattern a step."""
        for pattern in [*self._asked, *self._router.plain_patterns_of(self._connection)]:
            yield
            if self._connection.closed:
                return
            if pattern in self._asked:
                count, former = self._asked[pattern]
                parts = self._narrow(pattern)
                self._asked[pattern] = count, parts
                for part in parts:
                    self._hold(part)  # first: nothing is missed meanwhile
                for part in former:
                    self._let_go(part)
            elif (count := self._direct(pattern)) > 0 and (parts := self._narrow(pattern)) != [pattern]:
                self._context.quotas.force_pattern(self._account, len(pattern))
                self._enter(pattern, count, parts)
                self._router.withdraw(pattern, self._connection, self._account, self._parts[pattern])

    def close(self) -> None:
        """The link has ended. The router lets go of what it held."""
        self._context.quotas.give_pattern(self._account, self._bytes, count=len(self._asked))
        self._asked.clear()
        self._parts.clear()
        self._bytes = 0
