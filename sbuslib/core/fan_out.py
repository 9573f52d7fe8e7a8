"""Fan-out to many clients of one other user, as work of that user.

A publisher pays for the delivery to each receiver. So a user with a thousand connections that all want one key would
stop every publisher of that key. Therefore, when a message goes to many clients of one user, and another user published
it, it goes into the *fan-out queue* of the receiving user. That takes the same time for any number of clients. From
there it is handed to each client in turns of the receiving user: see :mod:`.fan_out_queue`. Many clients that a message
reaches in this way are a :class:`~.fan_out_queue.Group`, which is one receiver to the publisher.

Users that may hold publishers back have no fan-out queues: they are trusted. While the clients of only one user are
connected, nothing is put into a fan-out queue, since there is no other user to protect.
"""

from __future__ import annotations

from operator import is_
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from .context import Context
from .fan_out_queue import FanOutQueue, Group
from .outgoing import Outgoing
from .protocols import Routes, Sender
from .quotas import Account

__all__ = ["FanOuts"]

REMEMBERED_GROUPS: Final = 1_024
"""Most sets of receivers whose groups are remembered: enough for as many keys."""


class FanOuts:
    """The fan-out queues of one hub, and the groups that they serve. Implements :class:`~.context.FanOut`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # An account refers to its queue while anything waits.
        self._queues: WeakValueDictionary[Account, FanOutQueue] = WeakValueDictionary()
        # By the identity of a tuple of receivers: this tuple, kept so that no other gets its identity; its groups, by
        # user; and the receivers with these groups, by the publishing user (None: a user without a group).
        self._groups: dict[int, tuple[Routes, dict[int, Group], dict[int | None, Routes]]] = {}
        self._remembered = 0  # receivers in all tuples of _groups
        self.waiting: set[FanOutQueue] = set()
        """The queues in which something waits."""

    def with_groups(self, receivers: Routes, sender: Sender) -> Routes:
        if len(receivers) < self._context.limits.fanout or not self._is_in_force():
            return receivers
        # 1. The groups among these receivers, remembered for as long as nobody leaves.
        found = self._groups.get(id(receivers))
        if found is None:
            limits = self._context.limits
            self._remembered += len(receivers)
            if len(self._groups) >= REMEMBERED_GROUPS or self._remembered > limits.cached_receivers:
                self.forget()
                self._remembered = len(receivers)
            found = self._groups[id(receivers)] = receivers, self._make_groups(receivers), {}

        # 2. These receivers for a publisher of this user, whose own group is taken apart.
        _, groups, results = found
        uid: int | None = sender.credentials.uid
        if uid not in groups:
            uid = None
        result = results.get(uid)
        if result is None:
            result = results[uid] = self._put_groups(uid, receivers, groups)
        return result

    def routes_with_groups(self, routes: list[Routes], sender: Sender) -> list[Routes]:
        """The same for several messages; ``routes`` itself if nothing changes."""
        if not self._is_in_force():
            return routes
        found = [self.with_groups(receivers, sender) for receivers in routes]
        return routes if all(map(is_, found, routes)) else found

    def _is_in_force(self) -> bool:
        """Whether several users are connected, or were: messages in a queue have to go before new ones."""
        return self._context.scheduler.several or bool(self.waiting)

    def _make_groups(self, receivers: Routes) -> dict[int, Group]:
        """The groups of users that have many clients among ``receivers``, by user."""
        context = self._context
        alike: dict[Account, list[Outgoing]] = {}
        for receiver in receivers:
            # A hub below does its own fan-out. A client that has left is in routes for a moment.
            if isinstance(receiver, Outgoing) and not (receiver.is_link or receiver.closed):
                alike.setdefault(receiver.account, []).append(receiver)
        return {
            account.uid: Group(self._queue(account), tuple(some))
            for account, some in alike.items()
            if len(some) >= context.limits.fanout and account.uid not in context.trusted
        }

    @staticmethod
    def _put_groups(uid: int | None, receivers: Routes, groups: dict[int, Group]) -> Routes:
        """The receivers for messages of user ``uid``, with groups in place of other users' clients."""
        others = [group for other, group in groups.items() if other != uid]
        if not others:
            return receivers
        grouped = {receiver for group in others for receiver in group.receivers}
        return (*(receiver for receiver in receivers if receiver not in grouped), *others)

    def _queue(self, account: Account) -> FanOutQueue:
        queue = self._queues.get(account)
        if queue is None:
            queue = self._queues[account] = FanOutQueue(self._context, account, self.waiting)
        return queue

    def forget(self) -> None:
        self._groups.clear()
        self._remembered = 0

    def settle(self, until: float) -> bool:
        """Hand on all that waits, until a time of the monotonic clock. Returns whether that was enough."""
        while self.waiting and monotonic() < until:
            for queue in list(self.waiting):
                queue.take_turn()
        return not self.waiting

    def clear(self) -> None:
        self.forget()
        for queue in list(self.waiting):
            queue.clear()
