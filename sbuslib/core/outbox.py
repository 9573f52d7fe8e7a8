"""One receiver's queue: flood control and order.

What happens to a message that cannot be sent at once is the receiver's choice. It is sent at once while
nothing waits and the kernel takes it; otherwise this table decides. ``soft`` is asked while the queue has
room, ``hard`` when it is full (of packets, of bytes, or of the sender's share of what the receiver's user may queue).

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
sender's user counted), a user is *below its share* as long as its own messages there, the new one counted, are 1/n of
the packets and 1/n of the bytes that may wait, or less. For its messages the queue is never full, and its publishers
are not held: ``block`` acts as ``queue``. A publisher that is held is let go as soon as its user is below its share.
So the queue of one receiver may hold the messages of one full queue, half of one for a second user, a third for a third
user, and so on. What the receiver's user may queue in all bounds this too. While the messages of only one user wait,
nothing of this applies.

A receiver whose soft mode is ``discard`` or ``error`` never has a full queue to speak of: its soft mode
decides there as well. Where a publisher may not be held (by a stranger, by itself, or because it is a link
to another hub) ``block`` acts as ``queue`` in the soft place and as ``discard`` in the hard one. What is
kept for a held publisher may stand over the bound: it is at most the one batch that was read already. Over
what the receiver's user may have in all it never stands: there it is lost (cause ``quota``).

Answers to control messages, and notices, stand in the same line but are never lost: a client that lets
too many of them pile up is disconnected instead. A notice of losses comes where the gap is, before the
message that is kept next, once half of the room is free and while none waits: so there is one for each
gap, and their number is no matter of how much was lost.

**Order.** ``queue`` sends the oldest first, ``stack`` the newest, ``random`` the largest, which frees memory
fastest. Under the last two, answers go before messages. A change of order takes effect at once, unless
orders change so often that re-sorting would cost more than the messages themselves; then it waits.

**Batches** count as their messages do: as many packets, and as many bytes as those would be. One is kept whole where
all of it has room and the order is ``queue``; else its messages are offered one by one, and one that waits already is
taken apart when the order changes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from enum import Enum

from ..limits import Limits
from ..wire.batches import QueuedBatch
from ..wire.control import Lost
from ..wire.modes import Hard, Order, Soft
from .losses import Cause, Losses
from .packet_row import PacketRow, SentPacket
from .quotas import Account, Room

__all__ = ["Action", "Outbox", "decide"]


class Action(Enum):
    """What the table says."""

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
    """What waits for one receiver, charged to ``account``, the receiver's user. ``losses`` counts what was lost."""

    __slots__ = (
        "_account",
        "_answers",
        "_batches_waiting",
        "_by_user",
        "_extra",
        "_heap",
        "_items",
        "_limits",
        "_number",
        "_number_back",
        "_taken",
        "_urgent",
        "_work",
        "bytes",
        "hard",
        "losses",
        "order",
        "peak",
        "soft",
        "tells",
    )

    def __init__(self, limits: Limits, account: Account) -> None:
        self._limits = limits
        self._account = account
        self._by_user = Room(limits.queued_packets, limits.queued_bytes)
        self._items = PacketRow()
        # In place of _items while the order is "random": largest first, oldest first among equals.
        self._heap: list[tuple[int, int, SentPacket]] | None = None
        self._urgent: deque[SentPacket] = deque()  # answers, while the order is not "queue"
        self._answers = 0
        self._batches_waiting = 0  # batches among what waits and what was taken
        self._extra = 0  # how many more messages there are in those that wait than packets
        self._taken: list[SentPacket] = []
        self._number = self._number_back = 0
        self._work = 0
        self.soft: Soft = "queue"
        self.hard: Hard = "discard"
        self.order: Order = "queue"
        self.tells = False
        """Whether losses are told, by a notice in the line."""
        self.bytes = 0
        self.peak = 0
        self.losses = Losses()

    def __len__(self) -> int:
        return len(self._items) + len(self._urgent) + (len(self._heap) if self._heap is not None else 0) + self._extra

    # -- in -----------------------------------------------------------------------------------------

    def refuses(self, sender: int, may_hold: bool, size: int) -> Cause | None:
        """Why each message of user ``sender`` of ``size`` bytes or more would be lost now; ``None`` if one may be kept.

        For who would have to copy messages to offer them: it may count them as lost instead.
        """
        if decide(False, self.soft, self.hard, may_hold) is Action.LOSE:
            return "discard"
        if self.soft == "error" or decide(True, self.soft, self.hard, may_hold) is not Action.LOSE:
            return None
        if not (self._fits(1, size) or self.is_below_share(sender, 1, size)):
            return "overflow"
        return None if self._account.has_room(sender, size) else "quota"

    def offer(self, packets: Sequence[bytes], sender: int, may_hold: bool, now: float) -> Action:
        """Messages of user ``sender`` that could not be sent at once: keep or lose each, as the modes say.

        The gravest that any of them met: :attr:`Action.DISCONNECT`, after which the rest is lost too, then
        :attr:`Action.HOLD`, for one that was kept, then :attr:`Action.LOSE`. ``now`` is the time in seconds
        since the epoch.
        """
        size = sum(map(len, packets))
        is_below = self.is_below_share(sender, len(packets), size)
        action = decide(False, self.soft, self.hard, may_hold and not is_below)
        if (
            action in _KEPT
            and (is_below or self._fits(len(packets), size))
            and self._account.take_room(sender, len(packets), size)
        ):
            self._by_user.force_room(sender, len(packets), size)
            self._tell()
            if self._heap is None:
                self._items.extend(packets, sender)
                self.bytes += size
                self._work += len(packets)
            else:
                for packet in packets:
                    self._push((packet, sender))
            self.peak = max(self.peak, len(self))
            return action
        worst = Action.KEEP
        for position, packet in enumerate(packets):
            action = self._offer_one(packet, sender, may_hold, now)
            if action is Action.DISCONNECT:
                self.losses.add("discard", len(packets) - position - 1, now)
                return action
            if action is Action.HOLD or worst is Action.KEEP:
                worst = action
        return worst

    def offer_batch(self, batch: QueuedBatch, sender: int, may_hold: bool, now: float) -> Action | None:
        """A batch that could not be sent at once, as :meth:`offer`; ``None``: offer its messages instead."""
        is_below = self.is_below_share(sender, batch.messages, batch.charge)
        action = decide(False, self.soft, self.hard, may_hold and not is_below)
        if action not in _KEPT:
            self.losses.add("discard", batch.messages, now)
            return action
        if self.order != "queue" or self._heap is not None:
            return None
        if not (is_below or self._fits(batch.messages, batch.charge)):
            return None
        if not self._account.take_room(sender, batch.messages, batch.charge):
            return None
        self._by_user.force_room(sender, batch.messages, batch.charge)
        self._tell()
        self._items.append((batch, sender))
        self.bytes += batch.charge
        self._work += batch.messages
        self._batches_waiting += 1
        self._extra += batch.messages - 1
        self.peak = max(self.peak, len(self))
        return action

    def _offer_one(self, packet: bytes, sender: int, may_hold: bool, now: float) -> Action:
        cause: Cause = "discard"
        charged = False
        size = len(packet)
        is_below = self.is_below_share(sender, 1, size)
        action = decide(False, self.soft, self.hard, may_hold and not is_below)
        if action in _KEPT:
            if not (is_below or self._fits(1, size)):
                cause = "overflow"
            elif self._account.take_room(sender, 1, size):
                charged = True
            else:
                cause = "quota"
            if not charged:
                action = decide(True, self.soft, self.hard, may_hold)
        if action in _KEPT:
            if not charged:
                if not self._account.has_any_room(size):
                    self.losses.add("quota", 1, now)
                    return action if len(self) else Action.LOSE  # nothing would ever let the publisher go
                self._account.force_room(sender, 1, size)
            self._by_user.force_room(sender, 1, size)
            self._tell()
            self._push((packet, sender))
            self.peak = max(self.peak, len(self))
        else:
            self.losses.add(cause, 1, now)
        return action

    def _fits(self, packets: int, size: int) -> bool:
        """Whether so many packets more, of so many bytes together, find the queue not full."""
        return len(self) + packets <= self._limits.queued_packets and self.bytes + size <= self._limits.queued_bytes

    def is_below_share(self, sender: int, packets: int = 1, size: int = 1) -> bool:
        """Whether user ``sender`` is below its share of this queue with so much more, among several users."""
        return self._by_user.is_below_share(sender, packets, size)

    def _tell(self) -> None:
        """Put a notice of what was lost into the line, ahead of what is about to be kept."""
        if self.tells and self.losses.has_report and not self._answers and self.is_half_empty():
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
        """Queue an answer or a notice; ``False`` when so many wait that the client is to be let go."""
        self._tell()
        self._answers += 1
        self.bytes += len(packet)
        in_line = self.order == "queue" and self._heap is None
        (self._items if in_line else self._urgent).append((packet, None))
        self.peak = max(self.peak, len(self))
        return self._answers <= self._limits.queued_answers

    @property
    def messages(self) -> int:
        """How many messages wait, answers left out."""
        return len(self) - self._answers

    @property
    def answers(self) -> int:
        """How many answers wait."""
        return self._answers

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
            taken += self._items.take(count - len(taken), newest=self.order != "queue")
        packets = [packet for packet, _ in taken]
        self._taken = taken
        self._account_for(taken, packets, -1)
        return packets

    def open_batches(self) -> None:
        """Take the batches that wait apart, into packets that count as much."""
        opened = PacketRow()
        for packet, sender in self._items:
            opened.extend(packet.packets() if isinstance(packet, QueuedBatch) else [packet], sender)
        self._items = opened
        self._batches_waiting = self._extra = 0

    def settle(self, sent: int) -> int:
        """Only the first ``sent`` of what :meth:`take` gave have gone: put the rest back where it was.

        How many of those that have gone were messages.
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
        """How many messages there were in items that have gone for good."""
        if not self._batches_waiting:
            return sum(sender is not None for _, sender in gone)
        count = sum(self._size([packet])[0] for packet, sender in gone if sender is not None)
        self._batches_waiting -= sum(isinstance(packet, QueuedBatch) for packet, _ in gone)
        return count

    def _size(self, packets: Sequence[bytes]) -> tuple[int, int]:
        """As how many packets, and of how many bytes, these count."""
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
            # Nearly always there is one.
            mine = packets if len(senders) == 1 else [packet for packet, other in items if other == sender]
            if sender is None:
                self._answers += sign * len(mine)
            else:
                charged = self._size(mine)
                for room in rooms:
                    (room.force_room if sign > 0 else room.give_room)(sender, *charged)

    def clear(self, cause: Cause, now: float) -> None:
        """Lose everything that waits."""
        items = [*self._items, *self._urgent, *(entry[2] for entry in self._heap or ())]
        self._items.clear()
        self._urgent.clear()
        self._heap = None
        self._account_for(items, [packet for packet, _ in items], -1)
        self.losses.add(cause, self._count(items), now)

    def is_half_empty(self) -> bool:
        """Whether half of the room is free: what a publisher that is held for a full queue waits for."""
        return len(self) * 2 <= self._limits.queued_packets and self.bytes * 2 <= self._limits.queued_bytes

    def _arrange(self) -> None:
        """Bring what waits into the structure that its order needs.

        That costs as much as there are messages, and so is done only when as many came since the last
        time: a client that changes its mind with every packet cannot make it dear.
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
            # By age, which is what both other orders go by.
            for _, _, item in sorted(self._heap, key=lambda entry: entry[1]):
                self._items.append(item)
            self._heap = None
