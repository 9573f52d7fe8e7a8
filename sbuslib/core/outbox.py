"""One receiver's queue: flood control and order.

A message is sent at once if nothing waits and the kernel takes it. Otherwise this table decides, by two modes that the
receiver chose: ``soft`` while the queue has room, ``hard`` when it is full: of packets, of bytes, or of the sender's
share of what the receiver's user may queue.

===========  ==========  ===========================================================================
queue        mode        what happens to the message
===========  ==========  ===========================================================================
has room     queue       it is kept
has room     discard     it is lost (cause ``discard``)
has room     block       it is kept, and the publisher is held until nothing waits
has room     error       it is lost, and the receiver is disconnected
full         discard     it is lost (cause ``overflow``, or ``quota`` for the share)
full         block       it is kept, and the publisher is held until half the room is free
full         error       it is lost, and the receiver is disconnected
===========  ==========  ===========================================================================

**Below its share.** One user's flood does not stop another user. When messages of n >= 2 users wait in one queue (the
sender's user counted), a user is *below its share* as long as its own messages there, the new one counted, are at most
1/n of the packets and 1/n of the bytes that may wait. For its messages the queue is never full, and its publishers
are not held: ``block`` acts as ``queue``. A publisher that is held is let go as soon as its user is below its share.
So the queue of one receiver may hold the messages of one full queue, half of one for a second user, a third for a third
user, and so on, within what the receiver's user may queue in all. While the messages of only one user wait, nothing of
this applies.

If the soft mode of a receiver is ``discard`` or ``error``, it decides for a full queue as well. Where a publisher may
not be held (by a stranger, by itself, or because it is a link to another hub) ``block`` acts as ``queue`` in the soft
place and as ``discard`` in the hard one. Messages that are kept for a held publisher may exceed the bound by the one
batch that was read already. They never exceed what the receiver's user may queue in all: there they are lost (cause
``quota``).

Answers to control messages, and notices, wait in the same queue but are never lost: a client with too many of them is
disconnected instead. A notice of losses stands in the place of the lost messages, before the next message that is
kept. It is made once half of the room is free and no other notice or answer waits. So there is one notice for each
gap, however many messages were lost.

**Order.** ``queue`` sends the oldest first, ``stack`` the newest, ``random`` the largest, which frees memory
fastest. Under the last two, answers go before messages. A change of order takes effect at once, unless
orders change so often that sorting would cost more than the messages themselves: then it takes effect later.

**Batches** count as their messages do: as many packets, and as many bytes as these packets would have. A batch is kept
whole if there is room for all of it and the order is ``queue``. Otherwise its messages are offered one by one. A batch
that waits is taken apart when the order changes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import chain, groupby, repeat
from typing import TypeAlias

from ..errors import StateError
from ..limits import Limits
from ..wire.batches import QueuedBatch
from ..wire.control import Lost
from ..wire.modes import Hard, Order, Soft
from .losses import Cause, Losses
from .quotas import Account, Room
from .records import OutboxRecord

SentPacket: TypeAlias = tuple[bytes, int | None]
"""A packet, and the user that it is charged to; ``None`` for an answer, which is charged to nobody."""


class Action(Enum):
    """Action of the table."""

    KEEP = "keep"
    LOSE = "lose"
    HOLD = "keep and hold the publisher"
    DISCONNECT = "lose and disconnect"


_SOFT: dict[Soft, Action] = {
    "queue": Action.KEEP,
    "discard": Action.LOSE,
    "block": Action.HOLD,
    "error": Action.DISCONNECT,
}
_HARD: dict[Hard, Action] = {"discard": Action.LOSE, "block": Action.HOLD, "error": Action.DISCONNECT}


def decide(full: bool, soft: Soft, hard: Hard, may_hold: bool) -> Action:
    """The table above, for a message that cannot be sent at once."""
    if not may_hold:
        soft = "queue" if soft == "block" else soft
        hard = "discard" if hard == "block" else hard
    if full and soft in ("queue", "block"):
        return _HARD[hard]
    return _SOFT[soft]


_KEPT = (Action.KEEP, Action.HOLD)


class Outbox:
    """The packets that wait for one receiver, charged to ``account``, its user. ``losses`` counts lost messages."""

    def __init__(self, limits: Limits, account: Account) -> None:
        self._limits = limits
        self._account = account
        self._by_user = Room(limits.queued_packets, limits.queued_bytes)  # room here, by sender's user
        self._items: deque[SentPacket] = deque()  # in the order in which they go, but for ``random``
        # In place of _items while the order is "random": largest first, oldest first among equals.
        self._heap: list[tuple[int, int, SentPacket]] | None = None
        self._urgent: deque[SentPacket] = deque()  # answers, while the order is not "queue"
        self._batches_waiting = 0  # batches that wait or were taken
        self._extra = 0  # messages in the batches that wait, less one for each batch
        self._taken: list[SentPacket] = []  # and not settled yet
        self._number = self._number_back = 0  # of the last packets that came into the heap, and came back
        self._work = 0  # messages that came since the order was last put into effect
        self.soft: Soft = "queue"  # where the kernel takes no more
        self.hard: Hard = "discard"  # where the queue has no room
        self.order: Order = "queue"  # in which packets go
        self.has_notices = False
        """Whether the receiver gets notices of losses, in the queue."""
        self.bytes = 0  # of all that waits
        self.answers = 0  # that wait
        self.peak = 0  # most messages that waited
        self.losses = Losses()  # messages for this receiver that were lost

    def __len__(self) -> int:
        return len(self._items) + len(self._urgent) + (len(self._heap) if self._heap is not None else 0) + self._extra

    # -- in -----------------------------------------------------------------------------------------

    def why_lost(self, sender: int, may_hold: bool, size: int) -> Cause | None:
        """Return why each message of user ``sender`` of ``size`` bytes or more would be lost now; ``None``: some may be
        kept.

        The reason is that for the shortest message; a longer one may be lost for another.
        A caller that would have to copy messages to offer them may count them as lost instead.
        """
        if decide(False, self.soft, self.hard, may_hold) is Action.LOSE:
            return "discard"
        if self.soft == "error" or decide(True, self.soft, self.hard, may_hold) is not Action.LOSE:
            return None
        if not (self._fits(1, size) or self.is_below_share(sender, 1, size)):
            return "overflow"
        return None if self._account.has_room(sender, size) else "quota"

    def offer(self, packets: Sequence[bytes], sender: int, may_hold: bool, now: float) -> Action:
        """Keep or lose messages of user ``sender`` that could not be sent at once, as the modes say.

        If the table says :attr:`Action.DISCONNECT` for one message, returns that and loses all after it. Else returns
        :attr:`Action.HOLD` if that was said for one, else :attr:`Action.LOSE` if one was lost. ``now`` is the time in
        seconds since the epoch.
        """
        # 1. All of them, mostly.
        size = sum(map(len, packets))
        action = self._take_room(len(packets), size, sender, may_hold)
        if action is not None:
            if self._heap is None:
                self._items.extend(zip(packets, repeat(sender)))
                self.bytes += size
                self._work += len(packets)
            else:
                for packet in packets:
                    self._push((packet, sender))
            self.peak = max(self.peak, len(self))
            return action

        # 2. One by one: some may have room.
        worst = Action.KEEP
        for position, packet in enumerate(packets):
            action = self._offer_one(packet, sender, may_hold, now)
            if action is Action.DISCONNECT:
                self.losses.add("discard", len(packets) - position - 1, now)
                return action
            if action is Action.HOLD or worst is Action.KEEP:
                worst = action
        return worst

    def offer_batch(self, batch: QueuedBatch, sender: int, may_hold: bool) -> Action | None:
        """As :meth:`offer`, for a batch. ``None``: nothing was done, and its messages have to be offered instead."""
        if self.order != "queue" or self._heap is not None:
            return None
        action = self._take_room(batch.messages, batch.charge, sender, may_hold)
        if action is not None:
            self._items.append((batch, sender))
            self.bytes += batch.charge
            self._work += batch.messages
            self._batches_waiting += 1
            self._extra += batch.messages - 1
            self.peak = max(self.peak, len(self))
        return action

    def _take_room(self, count: int, size: int, sender: int, may_hold: bool) -> Action | None:
        """Charge room for messages that are all kept, and return the action. ``None``: they are not kept so."""
        is_below = self.is_below_share(sender, count, size)
        action = decide(False, self.soft, self.hard, may_hold and not is_below)
        if action not in _KEPT or not (is_below or self._fits(count, size)):
            return None
        if not self._account.take_room(sender, count, size):
            return None
        self._by_user.force_room(sender, count, size)
        self._report()
        return action

    def foresee(self, size: int, sender: int, may_hold: bool) -> tuple[Action, Cause | None]:
        """Return the action for one message of ``size`` bytes that cannot be sent at once, and the reason if it is
        lost.

        Nothing changes. Beyond the bound, kept messages exceed it.
        """
        is_below = self.is_below_share(sender, 1, size)
        has_place = is_below or self._fits(1, size)
        action = decide(False, self.soft, self.hard, may_hold and not is_below)
        if action in _KEPT and has_place and self._account.has_room(sender, size):
            return action, None

        # There is no room, or it would not be used.
        action = decide(False, self.soft, self.hard, may_hold)
        if action not in _KEPT:
            return action, "discard"
        action = decide(True, self.soft, self.hard, may_hold)
        if action not in _KEPT:
            return action, "quota" if has_place else "overflow"
        if not self._account.has_any_room(size):
            return (action if len(self) else Action.LOSE), "quota"  # held for an empty queue it would stay so
        return action, None

    def _offer_one(self, packet: bytes, sender: int, may_hold: bool, now: float) -> Action:
        size = len(packet)
        action, cause = self.foresee(size, sender, may_hold)
        if cause is not None:
            self.losses.add(cause, 1, now)
            return action

        for room in (self._account, self._by_user):
            room.force_room(sender, 1, size)
        self._report()
        self._push((packet, sender))
        self.peak = max(self.peak, len(self))
        return action

    def _fits(self, packets: int, size: int) -> bool:
        return len(self) + packets <= self._limits.queued_packets and self.bytes + size <= self._limits.queued_bytes

    def is_below_share(self, sender: int, packets: int = 1, size: int = 1) -> bool:
        return self._by_user.is_below_share(sender, packets, size)

    def _report(self) -> None:
        """Queue a notice of the messages that were lost, before the message that is about to be kept."""
        if self.has_notices and self.losses.unreported and not self.answers and self.is_half_empty():
            for report in self.losses.take_report():
                self.push_answer(Lost(*report).encode())

    def _push(self, item: SentPacket) -> None:
        self.bytes += len(item[0])
        self._work += 1
        if self._heap is None:
            self._items.append(item)
        else:
            self._number += 1
            heapq.heappush(self._heap, (-len(item[0]), self._number, item))

    def push_answer(self, packet: bytes) -> bool:
        """Queue an answer or a notice. ``False``: so many wait that the client is to be kicked."""
        self._report()
        self.answers += 1
        self.bytes += len(packet)
        in_order = self.order == "queue" and self._heap is None
        (self._items if in_order else self._urgent).append((packet, None))
        self.peak = max(self.peak, len(self))
        return self.answers <= self._limits.queued_answers

    @property
    def messages(self) -> int:
        return len(self) - self.answers

    # -- out ----------------------------------------------------------------------------------------

    def take(self, count: int) -> list[bytes]:
        """Take up to ``count`` packets out, those to be sent next, in order. :meth:`settle` must follow."""
        self._arrange()
        taken: list[SentPacket] = []
        while self._urgent and len(taken) < count:
            taken.append(self._urgent.popleft())
        if self._heap is not None:
            taken += [heapq.heappop(self._heap)[2] for _ in range(min(count - len(taken), len(self._heap)))]
        else:
            pop = self._items.popleft if self.order == "queue" else self._items.pop
            taken += [pop() for _ in range(min(count - len(taken), len(self._items)))]
        packets = [packet for packet, _ in taken]
        self._taken = taken
        self._account_for(taken, packets, -1)
        return packets

    def open_batches(self) -> None:
        """Take apart the batches that wait, into packets that count as much."""
        opened: deque[SentPacket] = deque()
        for packet, sender in self._items:
            opened.extend(zip(packet.packets() if isinstance(packet, QueuedBatch) else [packet], repeat(sender)))
        self._items = opened
        self._batches_waiting = self._extra = 0

    def settle(self, sent: int) -> int:
        """Put back all packets that :meth:`take` gave, except the first ``sent`` of them, which were sent.

        Returns how many of the sent ones were messages.
        """
        taken, self._taken = self._taken, []
        back = taken[sent:]
        if not back:
            return self._count(taken)
        self._account_for(back, [packet for packet, _ in back], 1)
        for item in reversed(back):
            if item[1] is None and (self.order != "queue" or self._heap is not None):
                self._urgent.appendleft(item)
            elif self._heap is not None:
                # Below every number given out, so that it stays first among its equals.
                self._number_back -= 1
                heapq.heappush(self._heap, (-len(item[0]), self._number_back, item))
            elif self.order == "queue":
                self._items.appendleft(item)
            else:
                self._items.append(item)
        return self._count(taken[:sent])

    def _count(self, gone: Sequence[SentPacket]) -> int:
        """How many messages were in items that have left the queue."""
        if not self._batches_waiting:
            return sum(sender is not None for _, sender in gone)
        count = sum(self._size([packet])[0] for packet, sender in gone if sender is not None)
        self._batches_waiting -= sum(isinstance(packet, QueuedBatch) for packet, _ in gone)
        return count

    def _size(self, packets: Sequence[bytes]) -> tuple[int, int]:
        """As how many packets, and as how many bytes, these packets count."""
        count, size = len(packets), sum(map(len, packets))
        if self._batches_waiting:
            for packet in packets:
                if isinstance(packet, QueuedBatch):
                    count += packet.messages - 1
                    size += packet.charge - len(packet)
        return count, size

    def _account_for(self, items: Sequence[SentPacket], packets: Sequence[bytes], sign: int) -> None:
        """Charge (1) or release (-1) items that enter or leave; ``packets`` are theirs."""
        count, size = self._size(packets)
        self.bytes += sign * size
        self._extra += sign * (count - len(packets))
        rooms: tuple[Room, Room] = (self._account, self._by_user)
        senders = {sender for _, sender in items}
        for sender in senders:
            # Nearly always there is only one sender.
            mine = packets if len(senders) == 1 else [packet for packet, other in items if other == sender]
            if sender is None:
                self.answers += sign * len(mine)
            else:
                charged = self._size(mine)
                for room in rooms:
                    (room.force_room if sign > 0 else room.give_room)(sender, *charged)

    def clear(self, cause: Cause, now: float) -> None:
        items = [*self._items, *self._urgent, *(entry[2] for entry in self._heap or ())]
        self._items.clear()
        self._urgent.clear()
        self._heap = None
        self._account_for(items, [packet for packet, _ in items], -1)
        self.losses.add(cause, self._count(items), now)

    @property
    def full(self) -> float:
        """How much of the room is taken; 1 is all."""
        return max(len(self) / self._limits.queued_packets, self.bytes / self._limits.queued_bytes)

    def is_half_empty(self) -> bool:
        """Whether half of the room is free. A publisher that is held for a full queue waits for this."""
        return len(self) * 2 <= self._limits.queued_packets and self.bytes * 2 <= self._limits.queued_bytes

    def lets_go(self, sender: int) -> bool:
        """Whether a publisher of user ``sender`` that is held may go on."""
        if not self:
            return True
        if not self._account.has_room(sender):
            return False
        # With soft block a publisher is held until nothing waits.
        return self.is_below_share(sender) or (self.soft != "block" and self.is_half_empty())

    # -- for a hub that takes over ------------------------------------------------------------------

    def record(self) -> OutboxRecord:
        items = self._items
        if self._heap is not None:
            items = deque(item for _, _, item in sorted(self._heap, key=lambda entry: entry[1]))
        batches: list[int] = []
        if self._batches_waiting:
            batches = [place for place, (packet, _) in enumerate(items) if isinstance(packet, QueuedBatch)]

        return OutboxRecord(
            soft=self.soft,
            hard=self.hard,
            order=self.order,
            peak=self.peak,
            packets=[bytes(packet) for packet, _ in items],
            runs=[(sender, len([*run])) for sender, run in groupby(sender for _, sender in items)],
            batches=batches,
            urgent=[packet for packet, _ in self._urgent],
            lost=dict(self.losses.total),
            unreported=dict(self.losses.unreported),
        )

    def restore(self, record: OutboxRecord) -> None:
        """Restore the queue of this client on the hub before. Its room is charged, even beyond the present limits.

        Raises :exc:`~sbuslib.errors.StateError`, :exc:`IndexError` and :exc:`~sbuslib.errors.PacketError` for a record
        that contradicts itself.
        """
        # 1. The packets, in order; those that an order sorts are sorted when they are sent.
        packets = list(record.packets)
        if sum(count for _, count in record.runs) != len(packets):
            raise StateError("the hub handed over a queue that contradicts itself")
        for place in record.batches:
            packets[place] = QueuedBatch.parse(packets[place])
        senders = chain.from_iterable(repeat(sender, count) for sender, count in record.runs)
        self._items.extend(zip(packets, senders, strict=True))
        self._urgent.extend((packet, None) for packet in record.urgent)
        self._batches_waiting = len(record.batches)

        # 2. The users to whom they are charged, and losses.
        everything = [*self._items, *self._urgent]
        self._account_for(everything, [packet for packet, _ in everything], 1)
        self._work = self.messages
        self.soft, self.hard, self.order, self.peak = record.soft, record.hard, record.order, record.peak
        self.losses.total.update(record.lost)
        self.losses.unreported.update(record.unreported)

    def _arrange(self) -> None:
        """Bring the waiting messages into the structure that their order needs.

        That takes time for each message that waits. So it is done only after as many messages have come since the
        last time: a client that changes its order with every packet cannot make the hub sort each time.
        """
        if self._batches_waiting and self.order != "queue":
            self.open_batches()
        if (self.order == "random") is (self._heap is not None) or self._work < self.messages:
            return
        self._work = 0
        if self._heap is None:
            messages = []
            for item in self._items:
                if item[1] is None:
                    self._urgent.append(item)
                else:
                    self._number += 1
                    messages.append((-len(item[0]), self._number, item))
            heapq.heapify(messages)
            self._heap = messages
            self._items.clear()
        else:
            # By age, as both other orders need it.
            for _, _, item in sorted(self._heap, key=lambda entry: entry[1]):
                self._items.append(item)
            self._heap = None
