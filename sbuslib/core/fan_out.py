"""Fan-out to many clients of one other user, as work of that user.

A publisher pays for the delivery to each receiver. So a user with a thousand connections that all want one key would
stop every publisher of that key. Therefore, when a message goes to many clients of one user, and another user published
it, it goes into the *fan-out queue* of the receiving user. That takes the same time for any number of clients. Many
clients that a message reaches in this way are a :class:`Group`, which is one receiver to the publisher.

Each entry of the queue goes to each of its receivers in turns of their user, in the order in which the entries came. A
turn that has lasted long enough ends between two receivers, and the next turn goes on there. As long as anything waits,
all messages of other users to the user's clients, and all answers, go to the end of the queue, so that order is kept.

The queue has bounds for messages and bytes, which are charged to their sender's user, for answers, and for the
receivers that its groups name, which may be a thousand for one message. Messages without room are lost (cause
``quota``). Messages for a client that leaves are lost too, and all messages when the hub stops (cause ``outage``). A
loss is counted once for a group, and each of its receivers gets a notice in its next turn. How many messages may wait
for one receiver is a matter of its own outbox.

Users that may hold publishers back have no fan-out queues: they are trusted. While the clients of only one user are
connected, nothing is put into a fan-out queue, since there is no other user to protect.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from operator import is_
from time import monotonic, time
from typing import Final
from weakref import WeakValueDictionary

from ..secrets import Credentials
from .context import Context
from .messages import Copied, Messages
from .outbound import Outbound
from .protocols import Receiver, Routes, Sender
from .quotas import Account

REMEMBERED_GROUPS: Final = 1_024
"""Most sets of receivers whose groups are remembered: enough for as many keys."""


class Group:
    """Many clients of one user, as one receiver. Implements :class:`~.protocols.Receiver`."""

    takes_batches = True

    def __init__(self, queue: FanOutQueue, receivers: tuple[Outbound, ...]) -> None:
        self._queue = queue
        self.receivers = receivers
        self.waiting = 0  # entries of the queue that are for this group
        self.lost = 0  # messages without room since the last notice to the receivers
        self.lost_since = 0.0

    @property
    def credentials(self) -> Credentials:
        return self.receivers[0].credentials

    def deliver(self, sender: Sender, messages: Messages) -> None:
        self._queue.put(self, sender, messages)


@dataclass(slots=True, eq=False, repr=False)
class _Entry:
    """Messages of one sender for some receivers. Without a sender: an answer, or a count of lost messages."""

    receivers: Collection[Outbound]
    group: Group | None = None
    pending: Iterator[Outbound] | None = None  # receivers that did not get it yet; None: none of them did
    sender: Sender | None = None
    messages: Messages | None = None
    packets: list[bytes] | None = None  # of the messages, while more may be added
    answer: bytes | None = None
    missed: Counter[Outbound] | None = None  # how many messages each receiver lost, if not the same for all
    count: int = 0  # messages; these and their bytes are charged to the sender's user, if there is one
    size: int = 0
    since: float = 0.0

    def begin(self) -> Iterator[Outbound]:
        """The receivers that did not get this entry yet. From now on no messages are added to it."""
        if self.pending is None:
            self.pending = iter(self.receivers)
            self.packets = None
            if self.group is not None and self.sender is None:
                self.count, self.since, self.group.lost = self.group.lost, self.group.lost_since, 0
        return self.pending


class FanOutQueue:
    """The queue of one user's clients. Implements :class:`~.protocols.Queue` and
    :class:`~.delivery_barrier.Pending`.
    """

    in_order = True
    hands_on = True
    is_hub = False

    def __init__(self, context: Context, account: Account, waiting: set[FanOutQueue]) -> None:
        self._context = context
        self._account = account
        self._waiting = waiting
        self._entries: deque[_Entry] = deque()  # oldest first
        self._names = 0  # receivers of all groups that have entries
        self._answers = 0
        self._missed: _Entry | None = None  # losses of groups with too many receivers, while open
        self._postponed = False
        self.queued = 0  # messages that wait; one for a group counts once
        self.delivered = 0  # messages that have gone to all of their receivers, ever

    # -- in -----------------------------------------------------------------------------------------

    def takes(self, sender: Sender) -> bool:
        return sender.credentials.uid != self._account.uid

    def add(self, receiver: Receiver, sender: Sender, messages: Messages) -> None:
        assert isinstance(receiver, Outbound)
        if self._account.fan_out.take_room(sender.credentials.uid, messages.count, messages.size):
            self._add((receiver,), None, sender, messages)
        else:
            receiver.miss("quota", messages.count, time())

    def put(self, group: Group, sender: Sender, messages: Messages) -> None:
        """Put messages for a group at the end. If there is no room, they are lost."""
        most = self._context.limits.cached_receivers
        has_names = group.waiting or not self._names or self._names + len(group.receivers) <= most
        if has_names and self._account.fan_out.take_room(sender.credentials.uid, messages.count, messages.size):
            self._add(group.receivers, group, sender, messages)
        elif has_names:
            if not group.lost:
                group.lost_since = time()
                self._put(_Entry(group.receivers, group))  # sends notices of the loss
            group.lost += messages.count
        else:
            self._miss(group, messages.count)

    def _miss(self, group: Group, count: int) -> None:
        """Lose messages for a group. Its receivers get notices in turns of their user: the publisher does not wait."""
        if self._missed is None:
            missed: Counter[Outbound] = Counter()
            self._missed = _Entry(missed, missed=missed, since=time())
            self._put(self._missed)
        assert self._missed.missed is not None
        self._missed.missed.update(dict.fromkeys(group.receivers, count))

    def _add(self, receivers: tuple[Outbound, ...], group: Group | None, sender: Sender, messages: Messages) -> None:
        count, size = messages.count, messages.size
        self.queued += count

        # With what came last, if it is for the same receivers and of the same sender: so one call sends both.
        last = self._entries[-1] if self._entries else None
        if (
            last is None
            or last.packets is None
            or last.sender is not sender
            or last.group is not group
            or (group is None and last.receivers != receivers)
            or messages.is_batch
            or last.count + count > self._context.limits.batch
        ):
            last = _Entry(receivers, group, sender=sender)
            if messages.is_batch:
                last.messages = messages.keep()
            else:
                last.packets = []
            self._put(last)

        if last.packets is not None:
            last.packets += messages.packets()
            last.messages = None  # made in the next turn, from all that was added until then
        last.count += count
        last.size += size

    def add_answer(self, receiver: Receiver, packet: bytes) -> bool:
        # Answers for clients that left count as well: else clients that come and go could queue any number.
        assert isinstance(receiver, Outbound)
        if self._answers >= self._context.limits.fanout_packets:
            return False
        self._answers += 1
        self._put(_Entry((receiver,), answer=packet))
        return True

    def _put(self, entry: _Entry) -> None:
        if not self._entries:
            self._account.queue = self
            self._waiting.add(self)
            self._context.running.delivery_barrier.note(self, True)
        self._entries.append(entry)
        if entry.group is not None:
            if not entry.group.waiting:
                self._names += len(entry.receivers)
            entry.group.waiting += 1
        self._postpone()

    # -- out ----------------------------------------------------------------------------------------

    def _postpone(self) -> None:
        if not self._postponed:
            self._postponed = True
            self._context.running.scheduler.postpone(self._account.uid, self._resume)

    def _resume(self) -> None:
        self._postponed = False
        if self._entries:
            self.take_turn()

    def take_turn(self) -> None:
        most, spent, clients = self._context.limits.turn_deliveries, 0, 1
        until = monotonic() + self._context.limits.turn_time
        self._account.queue = None  # else these messages would go to the end of this queue again

        # Each receiver in turn, until the time is over. An entry that is not done goes on in the next turn.
        while self._entries and spent < most:
            entry = self._entries[0]
            if entry.messages is None and entry.packets is not None:
                entry.messages = Copied(self._context.running.writer, entry.packets)
            messages = entry.messages
            clients = max(clients, len(entry.receivers))
            for receiver in self._begin(entry):
                self._hand_to(entry, messages, receiver)
                spent += 1 if messages is None or receiver.takes_batches else messages.count
                if spent >= most or monotonic() > until:
                    spent = most
                    break
            else:
                self._release(self._entries.popleft())

        if self._entries:
            self._account.queue = self
            self._postpone()
        else:
            self._end()
        self._context.running.scheduler.serves(clients)

    def _begin(self, entry: _Entry) -> Iterator[Outbound]:
        if entry is self._missed:
            self._missed = None
        return entry.begin()

    @staticmethod
    def _hand_to(entry: _Entry, messages: Messages | None, receiver: Outbound) -> None:
        if entry.answer is not None:
            receiver.answer_from_queue(entry.answer)
        elif messages is None:
            missed = entry.count if entry.missed is None else entry.missed[receiver]
            receiver.miss("quota", missed, entry.since)
        elif receiver.closed:
            receiver.miss("outage", messages.count, time())
        else:
            assert entry.sender is not None
            receiver.deliver(entry.sender, messages)

    def _release(self, entry: _Entry) -> None:
        """An entry has gone to all of its receivers."""
        if entry.group is not None:
            entry.group.waiting -= 1
            if not entry.group.waiting:
                self._names -= len(entry.receivers)
        if entry.answer is not None:
            self._answers -= 1
        elif entry.sender is not None:
            self._account.fan_out.give_room(entry.sender.credentials.uid, entry.count, entry.size)
            self.queued -= entry.count
            self.delivered += entry.count
            self._context.running.delivery_barrier.check()

    def _end(self) -> None:
        self._waiting.discard(self)
        self._context.running.delivery_barrier.note(self, False)
        self._context.quotas.tidy(self._account)
        self._context.running.emptied.set()

    def clear(self) -> None:
        """The hub stops: lose all waiting messages."""
        self._account.queue = None
        now = time()
        # Added up for each group, then for each receiver: there may be many messages for many receivers.
        by_group: Counter[Group] = Counter()
        outage: Counter[Outbound] = Counter()
        while self._entries:
            entry = self._entries.popleft()
            if entry.sender is None:
                for receiver in () if entry.answer is not None else self._begin(entry):
                    self._hand_to(entry, None, receiver)
            elif entry.pending is None and entry.group is not None:
                by_group[entry.group] += entry.count
            else:
                for receiver in self._begin(entry):
                    outage[receiver] += entry.count
            self._release(entry)
        for group, count in by_group.items():
            for receiver in group.receivers:
                outage[receiver] += count
        for receiver, count in outage.items():
            receiver.miss("outage", count, now)
        self._end()


class FanOuts:
    """The fan-out queues of one hub, and the groups that they serve."""

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
        """``receivers``, but with one group in place of many clients of one user that is not the sender's."""
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
        """The same for several messages; ``routes`` itself if nothing changes.

        Else they have to be handed on in order, one after another.
        """
        if not self._is_in_force():
            return routes
        found = [self.with_groups(receivers, sender) for receivers in routes]
        return routes if all(map(is_, found, routes)) else found

    def _is_in_force(self) -> bool:
        """Whether several users are connected, or were: messages in a queue have to go before new ones."""
        return self._context.running.scheduler.several or bool(self.waiting)

    def _make_groups(self, receivers: Routes) -> dict[int, Group]:
        """The groups of users that have many clients among ``receivers``, by user."""
        context = self._context
        alike: dict[Account, list[Outbound]] = {}
        for receiver in receivers:
            # A child does its own fan-out. A client that has left is in routes for a moment.
            if isinstance(receiver, Outbound) and not (receiver.is_link or receiver.closed):
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
        """Forget all groups: a client left, or became a link."""
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
