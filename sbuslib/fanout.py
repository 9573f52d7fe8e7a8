"""Fan-out to many clients of one other user, as work of that user.

Whoever publishes pays for the delivery to each receiver, so a user with a thousand connections that all want one key
would stop whoever publishes under it. So where a message goes to many clients of one user, and somebody else published
it, the publisher leaves it in one place, the *line* of that user, which costs it the same however many they are. From
there it is handed to each of them in turns of that user, as if the user had published it: turns that the
:mod:`~sbuslib.crowd` shares out, and in which each client counts where others are busy.

What finds no room in a line is lost (cause ``quota``), which is counted for each receiver when the line comes to it;
so is what stands there for who leaves meanwhile, or when the hub stops (cause ``outage``).
How far a receiver may fall behind is a matter of its own queue and not of the line. Order stays: as long as anything
stands in the line of a user, what else its clients are to be sent on behalf of others, answers included, goes to the
end of it.

There are no lines for users who may hold publishers back, which are trusted not to, and nothing is put into one where
clients of one user only are connected: they could hurt nobody else.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from time import monotonic, time
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from .batches import Bundle
from .connection import Connection
from .parties import Batch, Routes, Run, Sender
from .seqpacket import Gather

if TYPE_CHECKING:
    from .delivery import Delivery
    from .hub import Hub
    from .quota import Account
    from .secrets import Credentials

__all__ = ["Fanouts", "Line"]

_REMEMBERED: Final = 1_024
"""Groups of receivers of which it is remembered who stands in which line: those of as many keys, or more. And groups
for each of which a line counts what is lost in one place."""


class _Copies:
    """Packets that were copied out of the hub's area. Implements :class:`~sbuslib.parties.Place`."""

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
    """What waits to be handed to clients of one user. Implements :class:`~sbuslib.backlog.Behind`."""

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
        if lost is None and may_stand and len(self._lost) < _REMEMBERED:
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
            self._hub.crowd.postpone(self._account, self._go_on)

    def _go_on(self) -> None:
        self._postponed = False
        if not self._entries:
            return
        crowd = self._hub.crowd
        if crowd.may_go(self._account):
            crowd.went(self._account, self._work_off())
            self._hub.carry_out()
        else:
            self._postpone()

    def _work_off(self) -> int:
        """Hand on what stands in line, for the length of a turn; to how many receivers one message of it went."""
        limits = self._hub.limits
        most, spent = 1, 0
        until = monotonic() + limits.crowd_turn
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
        return most

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
    """Many clients of one user, as one receiver. Implements :class:`~sbuslib.parties.Receiver`."""

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


class Fanouts:
    """The lines of one hub, and who stands in which."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._lines: WeakValueDictionary[Account, Line] = WeakValueDictionary()
        # By the identity of a group of receivers, which is kept here so that it stays one: those of each user of whom
        # there are many, and whom one of these users is near, or (None) anybody else.
        self._groups: dict[int, tuple[Routes, dict[int, Audience], dict[int | None, Routes]]] = {}
        self._remembered = 0  # receivers in all of these
        self.gather = Gather()
        """For packets that go to many, and for nothing else: it keeps them laid out meanwhile."""
        self.standing: set[Line] = set()
        """The lines in which something stands."""

    def near(self, receivers: Routes, sender: Sender) -> Routes:
        """To whom a message of ``sender`` is handed at once: in place of many clients of one user stands their line."""
        if len(receivers) < self._hub.limits.fanout or not (self._hub.crowd.several or self.standing):
            return receivers
        group = self._groups.get(id(receivers))
        if group is None:
            self._remembered += len(receivers)
            if len(self._groups) >= _REMEMBERED or self._remembered > self._hub.limits.cached_receivers:
                self.forget()
                self._remembered = len(receivers)
            group = self._groups[id(receivers)] = receivers, self._audiences(receivers), {}
        _, audiences, near = group
        uid: int | None = sender.credentials.uid
        if uid not in audiences:
            uid = None
        found = near.get(uid)
        if found is None:
            found = near[uid] = self._near(uid, receivers, audiences)
        return found

    def near_runs(self, runs: list[Run], sender: Sender) -> tuple[list[Run], bool]:
        """The same for each run of packets, and whether there are lines: then each run has to go before the next."""
        least = self._hub.limits.fanout
        for _, _, receivers in runs:
            if len(receivers) >= least:
                break
        else:
            return runs, False
        found = [(start, end, self.near(receivers, sender)) for start, end, receivers in runs]
        return found, any(run[2] is not other[2] for run, other in zip(runs, found, strict=True))

    def _audiences(self, receivers: Routes) -> dict[int, Audience]:
        alike: dict[Account, list[Connection]] = {}
        for receiver in receivers:
            # What comes down a link is the matter of the hub below. Who has left is still among them for a moment.
            if isinstance(receiver, Connection) and receiver.link is None and not receiver.closed:
                alike.setdefault(receiver.account, []).append(receiver)
        return {
            account.uid: Audience(self._line(account), tuple(some))
            for account, some in alike.items()
            if len(some) >= self._hub.limits.fanout and not self._hub.is_trusted(account.uid)
        }

    @staticmethod
    def _near(uid: int | None, receivers: Routes, audiences: dict[int, Audience]) -> Routes:
        others = [audience for other, audience in audiences.items() if other != uid]
        if not others:
            return receivers
        far = {receiver for audience in others for receiver in audience.receivers}
        return (*(receiver for receiver in receivers if receiver not in far), *others)

    def _line(self, account: Account) -> Line:
        line = self._lines.get(account)
        if line is None:
            line = self._lines[account] = Line(self._hub, account)
        return line

    def forget(self) -> None:
        """Somebody left, and must not be remembered."""
        self._groups.clear()
        self._remembered = 0

    def clear(self) -> None:
        """The hub stops."""
        self.forget()
        for line in list(self.standing):
            line.clear()
