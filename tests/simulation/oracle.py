"""The oracle: it knows all that happens, and says of each message, presence and watch what has to be true.

**At each delivery:** the message was published so, under the name of its publisher, to a pattern that matches; this
receiver has not got it before; nor a later one of the same publisher under the same key; and a secret is its own.

**In the end:** what was published while all hubs were up and quiet has come to everybody who held a matching pattern.

What holds at rest is in :mod:`.rest`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from sbuslib.matcher import matches
from sbuslib.wire.packets import Message

from .clock import START, Clock

if TYPE_CHECKING:
    from .actors import ClientActor, HubActor

PROPAGATION: Final = 5.0
"""Seconds within which a subscription is in force in a whole tree in which nothing else happens."""

RECOVERY: Final = 60.0
"""Seconds after the last fault of a hub within which its tree is as if there had been none."""


@dataclass(slots=True, eq=False)
class Sent:
    """A message, and when it was published."""

    number: int
    key: bytes
    publisher: ClientActor
    began: float
    ended: float | None = None  # the kernel has it; None: perhaps not

    @property
    def payload(self) -> bytes:
        return b"%d" % self.number


@dataclass(slots=True, eq=False)
class Holder:
    """A client that subscribes to a pattern, and what it has got."""

    client: ClientActor
    pattern: bytes
    here: float | None = None  # since when it is in force at its hub
    everywhere: float | None = None  # and since when in the whole tree
    until: float | None = None  # when it was given back, or its client ended
    got: set[int] = field(default_factory=set)
    last: dict[tuple[str, bytes], int] = field(default_factory=dict)  # the last number by publisher and key


class Oracle:
    """All that has happened in a world, and what was wrong."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.events: list[str] = []
        """What happened, a line each."""
        self.problems: list[str] = []
        """What may not be."""
        self.deliveries = 0
        self.sent: dict[int, Sent] = {}
        self.holders: list[Holder] = []
        self._numbers = count(1)
        self._unrest: list[tuple[float, float]] = []  # when hubs were away, or had just come back
        self._away: dict[str, float] = {}  # hubs that are away, and since when

    def say(self, text: str) -> None:
        self.events.append(f"{self.clock.now - START:9.4f} {text}")

    def check(self, holds: bool, text: str) -> None:
        if not holds:
            self.problems.append(text)
            self.say(f"WRONG: {text}")

    # -- faults -------------------------------------------------------------------------------------

    def go_away(self, name: str) -> None:
        """A hub is killed, or stopped."""
        self._away.setdefault(name, self.clock.now)

    def come_back(self, name: str) -> None:
        """A hub goes on, or has begun."""
        now = self.clock.now
        self._unrest.append((self._away.pop(name, now), now + RECOVERY))

    def is_calm(self, begin: float, end: float) -> bool:
        """Whether all hubs were up and quiet."""
        return all(since > end for since in self._away.values()) and all(
            end < since or begin > until for since, until in self._unrest
        )

    # -- subscriptions ------------------------------------------------------------------------------

    def begin_to_hold(self, client: ClientActor, pattern: bytes) -> Holder:
        holder = Holder(client, pattern)
        self.holders.append(holder)
        return holder

    def hold(self, holder: Holder) -> None:
        holder.here = self.clock.now
        holder.everywhere = self.clock.now + PROPAGATION

    def know_everywhere(self, holders: list[Holder]) -> None:
        """A barrier said that these are in force in the whole tree."""
        for holder in holders:
            if holder.everywhere is not None:
                holder.everywhere = min(self.clock.now, holder.everywhere)

    def hold_no_more(self, holder: Holder) -> None:
        if holder.until is None:
            holder.until = self.clock.now

    def end_of(self, client: ClientActor) -> None:
        for holder in self.holders:
            if holder.client is client:
                self.hold_no_more(holder)

    # -- messages -----------------------------------------------------------------------------------

    def begin_to_send(self, publisher: ClientActor, key: bytes) -> Sent:
        sent = Sent(next(self._numbers), key, publisher, self.clock.now)
        self.sent[sent.number] = sent
        return sent

    def send(self, sent: Sent) -> None:
        sent.ended = self.clock.now

    def deliver(self, holder: Holder, message: Message) -> None:
        """A subscription was given a message."""
        self.deliveries += 1
        what = f"{message.payload!r} under {message.key!r} to {holder.client.name} for {holder.pattern!r}"
        self.say(f"{holder.client.name}: got {message.payload.decode()} under {message.key.decode()}")
        sent = self.sent.get(int(message.payload))
        if sent is None or sent.key != message.key:
            self.check(False, f"nobody published {what}")
            return
        self.check(matches(holder.pattern, message.key), f"no match: {what}")

        self._check_sender(sent, message.sender, what)
        self.check(sent.number not in holder.got, f"twice: {what}")
        holder.got.add(sent.number)
        of_one = (sent.publisher.name, sent.key)
        self.check(holder.last.get(of_one, 0) <= sent.number, f"after {holder.last.get(of_one)} came {what}")
        holder.last[of_one] = sent.number

        if message.key.startswith(b"!/"):
            self.check(message.key.split(b"/")[-2] == b"%d" % holder.client.process.pid, f"a secret of another: {what}")

    def _check_sender(self, sent: Sent, sender: bytes | None, what: str) -> None:
        """The sender is the publisher's process, below those of the hubs on its way down, or of some of the last."""
        self.check(sender is not None, f"no sender: {what}")
        parts = (sender or b"").removeprefix(b"!/cred/").split(b"/!/cred/")
        publisher = sent.publisher
        process = publisher.process
        self.check(parts[-1] == b"%d/%d/%d" % (process.uid, process.uid, process.pid), f"sender {sender!r}: {what}")
        for part, hub in zip(reversed(parts[:-1]), reversed(publisher.hub.path()[1:]), strict=False):
            self.check(part in _triples(hub), f"sender {sender!r} is not below {hub.name}: {what}")

    # -- in the end ---------------------------------------------------------------------------------

    def check_missing(self) -> None:
        """Nothing is missing of what was published while all was quiet."""
        for sent in self.sent.values():
            if sent.ended is None or not self.is_calm(sent.began, sent.ended + PROPAGATION):
                continue
            for holder in self.holders:
                if self._is_due(sent, holder) and sent.number not in holder.got:
                    what = f"{sent.number} under {sent.key!r} from {sent.publisher.name} to {holder.client.name}"
                    self.check(False, f"missing, though all was quiet: {what} for {holder.pattern!r}")

    def _is_due(self, sent: Sent, holder: Holder) -> bool:
        assert sent.ended is not None
        is_local = sent.publisher.hub is holder.client.hub
        since = holder.here if is_local else holder.everywhere
        if since is None or since > sent.began or not matches(holder.pattern, sent.key):
            return False
        return holder.until is None or holder.until > sent.ended + PROPAGATION


def _triples(hub: HubActor) -> set[bytes]:
    return {b"%d/%d/%d" % (hub.uid, hub.uid, pid) for pid in hub.pids}
