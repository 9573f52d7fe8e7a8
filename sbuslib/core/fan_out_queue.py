"""What stands in the line of a user, and how it gets out of it.

Who is put there, and why, is told in :mod:`.fan_out`. What is put there may be of four kinds: packets, batches,
losses and answers. Each goes to each of its receivers, and all of it in the order in which it came; a turn that has
lasted long enough ends between two receivers, and the next goes on there.

What stands in a line is bounded in messages and bytes, which are charged to their sender's user; in answers; and in the
names of receivers, of which a thousand may stand for one message. What is lost is counted in as few places as there are
audiences, or, where those are too many, for each receiver.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from time import monotonic, time
from typing import TYPE_CHECKING

from ..wire.batches import Bundle
from .parties import Batch, Sender

if TYPE_CHECKING:
    from ..hub import Hub
    from ..secrets import Credentials
    from .connection import Connection
    from .outgoing import Delivery
    from .quotas import Account

__all__ = ["Audience", "Line"]

_TURN = 0.002
"""Seconds of handing on after which others have their turn: how long a fan-out may keep them waiting."""


class _Copies:
    """Packets that were copied out of the hub's area. Implements :class:`~sbuslib.core.parties.Place`."""

    __slots__ = ("_hub", "_packets")

    def __init__(self, hub: Hub, packets: list[bytes]) -> None:
        self._hub = hub
        self._packets = packets

    def packet(self, slot: int, length: int) -> bytes:
        return self._packets[slot]

    def packets(self, slots: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        return [self._packets[slot] for slot in slots]

    def send(self, sock: socket.SocketType, slots: Sequence[int], lengths: Sequence[int]) -> int:
        if len(slots) == len(self._packets):
            return self._hub.fanouts.gather.send_to_many(sock, self._packets)
        return self._hub.gather.send(sock, self.packets(slots, lengths))

    def send_wrapped(
        self, sock: socket.SocketType, wrapper: bytes, slots: Sequence[int], lengths: Sequence[int]
    ) -> int:
        return self._hub.gather.send(sock, [wrapper + packet for packet in self.packets(slots, lengths)])


def _named(who: Audience | Delivery) -> Sequence[Delivery]:
    """The receivers that it is about."""
    return who.receivers if isinstance(who, Audience) else (who,)


class _Entry(ABC):
    """What goes to each of some receivers."""

    count = 0
    """Messages that have room in the line on behalf of ``sender``."""
    size = 0
    """Bytes of those."""
    sender: Sender | None = None

    def __init__(self, who: Audience | Delivery | None) -> None:
        self.who = who
        """``None``: whoever it names itself."""
        self.receivers: Collection[Delivery] = () if who is None else _named(who)
        self.left: Iterator[Delivery] | None = None
        """Who did not have it yet, once somebody did."""

    def begin(self) -> Iterator[Delivery]:
        """Who did not have it yet. Nothing is added to it any more."""
        if self.left is None:
            self.left = iter(self.receivers)
        return self.left

    @abstractmethod
    def hand_to(self, receiver: Delivery) -> None:
        """Give a receiver what it is about."""


class _Packets(_Entry):
    """Packets of one sender."""

    def __init__(self, hub: Hub, who: Audience | Delivery, sender: Sender) -> None:
        super().__init__(who)
        self._hub = hub
        self.sender: Sender = sender
        self._packets: list[bytes] = []
        self._batch: Batch | None = None

    def extend(self, packets: Sequence[bytes], size: int) -> None:
        self._packets += packets
        self.count += len(packets)
        self.size += size

    def hand_to(self, receiver: Delivery) -> None:
        if self._batch is None:
            self._batch = Batch(_Copies(self._hub, self._packets), list(map(len, self._packets)))
        receiver.deliver(self.sender, self._batch, range(self.count))


class _Together(_Entry):
    """Messages of one sender that came together."""

    def __init__(self, who: Audience | Delivery, sender: Sender, bundle: Bundle) -> None:
        super().__init__(who)
        self.sender: Sender = sender
        self._bundle = bundle
        self.count, self.size = bundle.count, bundle.expanded

    def hand_to(self, receiver: Delivery) -> None:
        receiver.deliver_bundle(self.sender, self._bundle)


class _Lost(_Entry):
    """Messages for which there was no room."""

    def __init__(self, who: Audience | Delivery) -> None:
        super().__init__(who)
        self.missing = 0
        self._since = time()

    def hand_to(self, receiver: Delivery) -> None:
        receiver.miss("quota", self.missing, self._since)

    def missing_of(self, receiver: Delivery) -> int:
        """How many were lost for one of them."""
        return self.missing


class _LostByReceiver(_Entry):
    """The same for so many groups that it is counted for each receiver."""

    def __init__(self) -> None:
        super().__init__(None)
        self.missing: Counter[Delivery] = Counter()
        self.receivers = self.missing
        self._since = time()

    def hand_to(self, receiver: Delivery) -> None:
        receiver.miss("quota", self.missing[receiver], self._since)

    def missing_of(self, receiver: Delivery) -> int:
        """How many were lost for one of them."""
        return self.missing[receiver]


class _Answer(_Entry):
    """An answer, or a notice."""

    def __init__(self, receiver: Delivery, packet: bytes) -> None:
        super().__init__(receiver)
        self._packet = packet

    def hand_to(self, receiver: Delivery) -> None:
        receiver.answer_from_line(self._packet)


class Line:
    """What waits to be handed to clients of one user. Implements :class:`~sbuslib.tree.unsent.Behind`."""

    in_order = True
    hands_on = True

    def __init__(self, hub: Hub, account: Account) -> None:
        self._hub = hub
        self._account = account
        self._entries: deque[_Entry] = deque()
        self._lost: dict[Audience | Delivery, _Lost] = {}
        self._lost_beside: _LostByReceiver | None = None
        self._audiences: Counter[Audience] = Counter()  # how often each stands here
        self._named = 0  # receivers in all of these
        self._answers = 0
        self._freed = 0
        self._postponed = False
        self.queued = 0
        self.delivered = 0

    # -- in -----------------------------------------------------------------------------------------

    def takes(self, sender: Sender) -> bool:
        """Whether what ``sender`` publishes has to stand in line: that of the user's own clients has not."""
        return sender.credentials.uid != self._account.uid

    def add(self, who: Audience | Delivery, sender: Sender, batch: Batch, slots: Sequence[int]) -> None:
        """Put copies of the packets in ``slots`` in line."""
        size = batch.size(slots)
        if self._take_room(who, sender, len(slots), size):
            self._add(who, sender, batch.packets(slots), size)

    def add_packet(self, who: Audience | Delivery, sender: Sender, packet: bytes) -> None:
        """Put a packet in line."""
        if self._take_room(who, sender, 1, len(packet)):
            self._add(who, sender, (packet,), len(packet))

    def _add(self, who: Audience | Delivery, sender: Sender, packets: Sequence[bytes], size: int) -> None:
        last = self._entries[-1] if self._entries else None
        if (
            not isinstance(last, _Packets)
            or last.left is not None
            or last.who is not who
            or last.sender is not sender
            or last.count + len(packets) > self._hub.limits.batch
        ):
            last = _Packets(self._hub, who, sender)
            self._put(last)
        last.extend(packets, size)

    def add_bundle(self, who: Audience | Delivery, sender: Sender, bundle: Bundle) -> None:
        """Put messages that came together in line."""
        if self._take_room(who, sender, bundle.count, bundle.expanded):
            self._put(_Together(who, sender, bundle.copy()))

    def add_answer(self, receiver: Delivery, packet: bytes) -> bool:
        """Put an answer in line; ``False`` when so many stand there that it is not, and who asked is to be let go.

        Those of clients that left meanwhile count as well: else who comes and goes would have no end of them.
        """
        if self._answers >= self._hub.limits.fanout_packets:
            return False
        self._answers += 1
        self._put(_Answer(receiver, packet))
        return True

    def _take_room(self, who: Audience | Delivery, sender: Sender, count: int, size: int) -> bool:
        """Charge what is about to be put in line; where there is no room it is lost."""
        may_stand = self._may_stand(who)
        if may_stand and self._account.line.take_room(sender.credentials.uid, count, size):
            self.queued += count
            return True
        # All that is lost until the line has come there is counted in one place: those who flood it make it no longer.
        lost = self._lost.get(who)
        if lost is None and may_stand and len(self._lost) < self._hub.limits.fanout_groups:
            lost = self._lost[who] = _Lost(who)
            self._put(lost)
        if lost is not None:
            lost.missing += count
            return False
        beside = self._lost_beside
        if beside is None:
            beside = self._lost_beside = _LostByReceiver()
            self._put(beside)
        for receiver in _named(who):
            beside.missing[receiver] += count
        return False

    def _may_stand(self, who: Audience | Delivery) -> bool:
        """Whether an audience stands here already, or there is room for its names."""
        if not isinstance(who, Audience) or who in self._audiences:
            return True
        return not self._named or self._named + len(who.receivers) <= self._hub.limits.cached_receivers

    def _put(self, entry: _Entry) -> None:
        if not self._entries:
            self._account.standing = self
            self._hub.fanouts.standing.add(self)
            self._hub.tree.backlog.note(self, True)
        self._entries.append(entry)
        if isinstance(entry.who, Audience):
            if entry.who not in self._audiences:
                self._named += len(entry.receivers)
            self._audiences[entry.who] += 1
        self._postpone()

    # -- out ----------------------------------------------------------------------------------------

    def _postpone(self) -> None:
        if not self._postponed:
            self._postponed = True
            self._hub.scheduler.postpone(self._account, self._go_on)

    def _go_on(self) -> None:
        self._postponed = False
        if not self._entries:
            return
        self._work_off()
        self._hub.carry_out()

    def _work_off(self) -> None:
        """Hand on what stands in line, for the length of a turn."""
        limits = self._hub.limits
        most, spent = 1, 0
        until = monotonic() + _TURN
        self._account.standing = None  # what is handed on now does not go to the end of the line again
        while self._entries and spent < limits.turn_deliveries:
            entry = self._entries[0]
            most = max(most, len(entry.receivers))
            if entry.left is None:
                self._close(entry)
            for receiver in entry.begin():
                if receiver.closed and entry.count:
                    receiver.miss("outage", entry.count, time())
                else:
                    entry.hand_to(receiver)
                spent += 1 if receiver.takes_batches else entry.count or 1
                if spent >= limits.turn_deliveries or monotonic() > until:
                    spent = limits.turn_deliveries
                    break
            else:
                self._release(self._entries.popleft())
        if self._entries:
            self._account.standing = self
            self._postpone()
        else:
            self._end()
        self._hub.scheduler.serves(most)

    def _close(self, entry: _Entry) -> None:
        """Nothing more is to be counted in an entry."""
        if isinstance(entry, _Lost):
            assert entry.who is not None
            del self._lost[entry.who]
        elif entry is self._lost_beside:
            self._lost_beside = None

    def _release(self, entry: _Entry) -> None:
        if isinstance(entry.who, Audience):
            self._audiences[entry.who] -= 1
            if not self._audiences[entry.who]:
                del self._audiences[entry.who]
                self._named -= len(entry.receivers)
        if isinstance(entry, _Answer):
            self._answers -= 1
        if entry.sender is not None:
            self._account.line.give_room(entry.sender.credentials.uid, entry.count, entry.size)
            self._freed += entry.size
            self.queued -= entry.count
            self.delivered += entry.count
            self._hub.tree.backlog.check()

    def _end(self) -> None:
        """Nothing stands in line any more."""
        hub = self._hub
        hub.fanouts.standing.discard(self)
        hub.tree.backlog.note(self, False)
        hub.quotas.tidy(self._account)
        hub.flushed(self._freed)
        self._freed = 0

    def clear(self) -> None:
        """Lose what stands in line: the hub stops."""
        self._account.standing = None
        now = time()
        # Added up for each audience, then for each receiver: there may be as many messages as receivers, who are many.
        by_audience: Counter[Audience | Delivery] = Counter()
        outage: Counter[Delivery] = Counter()
        quota: Counter[Delivery] = Counter()
        while self._entries:
            entry = self._entries.popleft()
            if entry.left is None:
                self._close(entry)
            if isinstance(entry, _Lost | _LostByReceiver):
                for receiver in entry.begin():
                    quota[receiver] += entry.missing_of(receiver)
            elif entry.left is None and entry.who is not None:
                by_audience[entry.who] += entry.count
            else:
                for receiver in entry.begin():
                    outage[receiver] += entry.count
            self._release(entry)
        for who, count in by_audience.items():
            for receiver in _named(who):
                outage[receiver] += count
        for receiver, count in quota.items():
            receiver.miss("quota", count, now)
        for receiver, count in outage.items():
            receiver.miss("outage", count, now)
        self._end()


class Audience:
    """Many clients of one user, as one receiver. Implements :class:`~sbuslib.core.parties.Receiver`."""

    takes_batches = True
    refuses = False

    def __init__(self, line: Line, receivers: tuple[Connection, ...]) -> None:
        self._line = line
        self.receivers = receivers

    @property
    def credentials(self) -> Credentials:
        """Of one of them."""
        return self.receivers[0].credentials

    def deliver(self, sender: Sender, batch: Batch, slots: Sequence[int]) -> None:
        """Put copies of the packets in ``slots`` in line."""
        self._line.add(self, sender, batch, slots)

    def deliver_packet(self, sender: Sender, packet: bytes) -> None:
        """Put one packet in line."""
        self._line.add_packet(self, sender, packet)

    def deliver_bundle(self, sender: Sender, bundle: Bundle) -> None:
        """Put messages that came together in line."""
        self._line.add_bundle(self, sender, bundle)
