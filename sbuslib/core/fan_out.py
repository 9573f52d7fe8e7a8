"""Fan-out to many clients of one other user, as work of that user.

A publisher pays for the delivery to each receiver. So a user with a thousand connections that all want one key would
stop every publisher of that key. Therefore, when a message goes to many clients of one user, and another user published
it, the publisher puts it into the *fan-out queue* of the receiving user, which takes the same time for any number of
clients. From there it is handed to each client in turns of that user, as if that user had published it: see
:mod:`.fan_out_queue`.

Users that may hold publishers back have no fan-out queues: they are trusted. While the clients of only one user are
connected nothing is put into a fan-out queue, since they could hurt no other user.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

from .context import Context
from .fan_out_queue import FanOutQueue, Group
from .outgoing import Outgoing
from .protocols import Routes, Run, Sender
from .quotas import Account

__all__ = ["FanOuts"]

REMEMBERED_GROUPS: Final = 1_024
"""Sets of receivers for which it is remembered which queue serves which of them: enough for as many keys."""


class FanOuts:
    """The fan-out queues of one hub, and which clients each serves. Implements :class:`~.context.FanOut`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queues: WeakValueDictionary[Account, FanOutQueue] = WeakValueDictionary()
        # By the identity of the receivers of a key, which are kept here so that the identity stays theirs: the groups
        # of users with many clients among them; and the receivers to which one of these users, or (None) any other
        # user, hands messages at once.
        self._groups: dict[int, tuple[Routes, dict[int, Group], dict[int | None, Routes]]] = {}
        self._remembered = 0  # receivers in all of these
        self.waiting: set[FanOutQueue] = set()
        """The queues in which something waits."""

    def near(self, receivers: Routes, sender: Sender) -> Routes:
        """The receivers that get a message of ``sender`` at once. A queue stands for many clients of one user."""
        if len(receivers) < self._context.limits.fanout or not self._is_in_force():
            return receivers
        found = self._groups.get(id(receivers))
        if found is None:
            limits = self._context.limits
            self._remembered += len(receivers)
            if len(self._groups) >= REMEMBERED_GROUPS or self._remembered > limits.cached_receivers:
                self.forget()
                self._remembered = len(receivers)
            found = self._groups[id(receivers)] = receivers, self._make_groups(receivers), {}
        _, groups, near = found
        uid: int | None = sender.credentials.uid
        if uid not in groups:
            uid = None
        handed = near.get(uid)
        if handed is None:
            handed = near[uid] = self._near(uid, receivers, groups)
        return handed

    def near_runs(self, runs: list[Run], sender: Sender) -> tuple[list[Run], bool]:
        """The same for each run of packets, and whether that changed any: then each run has to go before the next."""
        if not self._is_in_force():
            return runs, False
        least = self._context.limits.fanout
        for _, _, receivers in runs:
            if len(receivers) >= least:
                break
        else:
            return runs, False
        found = [(start, end, self.near(receivers, sender)) for start, end, receivers in runs]
        return found, any(run[2] is not other[2] for run, other in zip(runs, found, strict=True))

    def near_routes(self, routes: list[Routes], sender: Sender) -> tuple[list[Routes], bool]:
        """The same for the receivers of each key of a batch."""
        if not self._is_in_force():
            return routes, False
        found = [self.near(receivers, sender) for receivers in routes]
        return found, any(some is not others for some, others in zip(found, routes, strict=True))

    def _is_in_force(self) -> bool:
        """Whether several users are connected. A queue that has begun is used until it is empty."""
        return self._context.scheduler.several or bool(self.waiting)

    def _make_groups(self, receivers: Routes) -> dict[int, Group]:
        """The groups of those users who have many clients among some receivers, by user."""
        context = self._context
        alike: dict[Account, list[Outgoing]] = {}
        for receiver in receivers:
            # The hub below fans out what it gets by a link. A client that has left stands in routes for a moment.
            if isinstance(receiver, Outgoing) and not (receiver.is_link or receiver.closed):
                alike.setdefault(receiver.account, []).append(receiver)
        return {
            account.uid: Group(self._queue(account), tuple(some))
            for account, some in alike.items()
            if len(some) >= context.limits.fanout and account.uid not in context.trusted
        }

    @staticmethod
    def _near(uid: int | None, receivers: Routes, groups: dict[int, Group]) -> Routes:
        others = [group for other, group in groups.items() if other != uid]
        if not others:
            return receivers
        far = {receiver for group in others for receiver in group.receivers}
        return (*(receiver for receiver in receivers if receiver not in far), *others)

    def _queue(self, account: Account) -> FanOutQueue:
        queue = self._queues.get(account)
        if queue is None:
            queue = self._queues[account] = FanOutQueue(self._context, account, self.waiting)
        return queue

    def forget(self) -> None:
        """Receivers left, or changed what they are, and must not be remembered."""
        self._groups.clear()
        self._remembered = 0

    def clear(self) -> None:
        """The hub stops."""
        self.forget()
        for queue in list(self.waiting):
            queue.clear()
