"""The oracle: it knows all that happens, and says of each message, presence and watch what has to be true.

**At each delivery:** the message was published so, under the name of its publisher, to a pattern that matches; this
receiver has not got it before; nor a later one of the same publisher under the same key; and a secret is its own.

**In the end:** what was published has come to everybody who held a matching pattern, if all hubs on its way were up and
quiet. Else, receivers to whom it has not come were told that something was lost since it was published, unless they
lost their connection, or the publisher's hub was killed before it had read it. Where no hub was ever away, nobody was
told of any loss.

**Presences:** each comes before it goes, and goes before it comes again. None is said to be unreachable while its
process, and all hubs on the way, were there, but for less than five seconds.

What holds at rest is in :mod:`.rest`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from sbuslib.clients.recipes.request import Request
from sbuslib.clients.watching import PresenceEvent
from sbuslib.matcher import matches
from sbuslib.wire.control import Away, Kicked, Lost, NewCredentials, Notice
from sbuslib.wire.packets import Message

from .clock import START, Clock
from .outages import RECOVERY, Outages

if TYPE_CHECKING:
    from .actors import ClientActor, HubActor

OPEN: Final = ("is unreachable, though all are there",)
"""Parts of texts of faults that are known, and not mended yet: only plans that were kept for them fail."""

PROPAGATION: Final = 5.0
"""Seconds within which a subscription is in force in a whole tree in which nothing else happens."""

READING: Final = 1.0
"""Seconds within which a hub that is there has read what its clients sent."""

UNREACHABLE: Final = 5.0
"""Seconds for which a link may be away before presences behind it are said to be unreachable."""

REJOINING: Final = 3.0
"""Seconds that a link takes to come back, after both of its hubs have, at most."""


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
    everywhere: float | None = None  # since when a barrier said that it is in the whole tree
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
        self._questions: dict[bytes, bool] = {}  # whether somebody waits for the reply
        self._answered: set[tuple[str, bytes]] = set()  # by whom, and which
        self.outages = Outages()
        self.hubs: dict[str, HubActor] = {}  # by name
        self.clients: dict[bytes, ClientActor] = {}
        """All that ever were, by the description of themselves under which they are present."""
        self._told: defaultdict[str, list[float]] = defaultdict(list)  # when clients were told of losses

    def say(self, text: str) -> None:
        self.events.append(f"{self.clock.now - START:9.4f} {text}")

    def check(self, holds: bool, text: str) -> None:
        if not holds:
            self.problems.append(text)
            self.say(f"WRONG: {text}")

    # -- faults -------------------------------------------------------------------------------------

    def go_away(self, hub: HubActor, is_kill: bool) -> None:
        """A hub is killed, or stopped."""
        self.outages.begin(hub.name, self.clock.now, is_kill)

    def come_back(self, hub: HubActor) -> None:
        """A hub goes on, or has begun."""
        self.hubs[hub.name] = hub
        self.outages.end(hub.name, self.clock.now)

    def begin_take_over(self, hub: HubActor) -> None:
        """Another process takes a hub over: its clients notice nothing, but links join again."""
        self.outages.begin(links_of(hub.name), self.clock.now, is_kill=False)

    def end_take_over(self, hub: HubActor) -> None:
        self.outages.end(links_of(hub.name), self.clock.now)

    def drop(self, client: ClientActor) -> None:
        """The connection of a client ends; it makes another."""
        self.outages.begin(connection_of(client), self.clock.now, is_kill=True)
        self.outages.end(connection_of(client), self.clock.now)

    def tell(self, client: ClientActor, notice: Notice) -> None:
        """A client gets a notice of its hub."""
        self.say(f"{client.name}: told {notice}")
        self.check(not isinstance(notice, Kicked), f"{client.name} has done nothing wrong, and is told {notice}")
        if isinstance(notice, (Lost, Away)):
            self._told[client.name].append(self.clock.now)
        elif isinstance(notice, NewCredentials):
            self._end_secrets(client, notice.credentials)

    def _end_secrets(self, client: ClientActor, credentials: bytes) -> None:
        """A client has other credentials from now on: it holds no secrets under those before."""
        for holder in self.holders:
            is_secret = holder.client is client and holder.pattern.startswith(b"!/")
            if is_secret and not holder.pattern.startswith(credentials + b"/"):
                self.hold_no_more(holder)

    # -- subscriptions ------------------------------------------------------------------------------

    def begin_to_hold(self, client: ClientActor, pattern: bytes) -> Holder:
        holder = Holder(client, pattern)
        self.holders.append(holder)
        return holder

    def hold(self, holder: Holder) -> None:
        holder.here = self.clock.now

    def know_everywhere(self, holders: list[Holder]) -> None:
        """A barrier said that these are in force in the whole tree."""
        for holder in holders:
            if holder.everywhere is None:
                holder.everywhere = self.clock.now

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
        is_secret = message.key.startswith(b"!/")  # under other credentials than before, after a change of them
        self.check(is_secret or matches(holder.pattern, message.key), f"no match: {what}")

        self._check_sender(sent, message.sender, what)
        self.check(sent.number not in holder.got, f"twice: {what}")
        holder.got.add(sent.number)
        of_one = (sent.publisher.name, sent.key)
        self.check(holder.last.get(of_one, 0) <= sent.number, f"after {holder.last.get(of_one)} came {what}")
        holder.last[of_one] = sent.number

        if is_secret:
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

    # -- presences ----------------------------------------------------------------------------------

    def see(self, watcher: ClientActor, event: PresenceEvent, seen: dict[object, bool]) -> None:
        """A watch of presences has an event. ``seen`` is who was there, as far as it has said so."""
        other = self.clients[event.member.info]
        who = event.member.key, event.member.sender
        self.say(f"{watcher.name}: {other.name} {'came' if event.came else event.cause} under {event.member.key!r}")
        self.check(seen.get(who) is not event.came, f"to {watcher.name}, {who} comes or goes twice: {event}")
        seen[who] = event.came

        if event.cause == "unreachable" and not other.is_gone:
            now, way = self.clock.now, [hub.name for hub in way_between(watcher.hub, other.hub)]
            was_long = self.outages.any_longer(way, UNREACHABLE - REJOINING, now - 4 * UNREACHABLE, now)
            self.check(was_long, f"to {watcher.name}, {other.name} is unreachable, though all are there")

    def hear(self, watcher: ClientActor, pattern: bytes, last: object, state: bool | None) -> None:
        """A watch of interest has an event."""
        self.say(f"{watcher.name}: {pattern.decode()} is wanted: {state}")
        self.check(state is not last, f"to {watcher.name}, {pattern!r} becomes {state} twice")

    # -- requests -----------------------------------------------------------------------------------

    def ask(self) -> bytes:
        """A client asks: the question."""
        question = b"?%d" % next(self._numbers)
        self._questions[question] = True
        return question

    def end_question(self, question: bytes) -> None:
        self._questions[question] = False

    def answer(self, server: ClientActor, request: Request) -> bytes:
        """A server answers: the reply. It is asked each question once."""
        self.say(f"{server.name}: asked {request.payload.decode()}")
        self.check(request.payload in self._questions, f"nobody asked {server.name} {request.payload!r}")
        asked = server.name, request.payload
        self.check(asked not in self._answered, f"{server.name} is asked twice: {request.payload!r}")
        self._answered.add(asked)
        return b"re: " + request.payload

    # -- in the end ---------------------------------------------------------------------------------

    def check_missing(self) -> None:
        """What is missing was lost as it may be."""
        for sent in self.sent.values():
            if sent.ended is None:
                continue
            for holder in self.holders:
                if sent.number not in holder.got and matches(holder.pattern, sent.key):
                    self._check_missing(sent, holder)

    def _check_missing(self, sent: Sent, holder: Holder) -> None:
        # 1. Whether it is due to this receiver.
        assert sent.ended is not None
        way = [hub.name for hub in way_between(sent.publisher.hub, holder.client.hub)]
        connections = [connection_of(sent.publisher), connection_of(holder.client)]
        links = [links_of(hub) for hub in way] if len(way) > 1 else []
        since = holder.here if len(way) == 1 else self._everywhere(holder)
        if since is None or since > sent.began:
            return
        if holder.until is not None and holder.until <= sent.ended + PROPAGATION:
            return
        what = f"{sent.number} under {sent.key!r} from {sent.publisher.name} to {holder.client.name}"
        what += f" for {holder.pattern!r}, published at {sent.began - START:.4f}"

        # 2. All hubs on its way were there, and had room.
        has_room = not any(self.hubs[name].loses for name in way)
        if has_room and self.outages.is_calm([*way, *links, *connections], sent.began, sent.ended + PROPAGATION):
            self.check(False, f"missing, though all was quiet: {what}")
            return

        # 3. The first hub had it, and the last one had this receiver.
        began, ended = sent.began - READING, sent.ended + READING
        is_read = not self.outages.is_away(way[0], began, ended)
        is_connected = not (
            self.outages.was_killed(way[-1], sent.began - RECOVERY)
            or any(self.outages.was_killed(one, sent.began - RECOVERY) for one in connections)
        )
        if is_read and is_connected and holder.client.was_never_stopped:
            was_told = any(at >= sent.began for at in self._told[holder.client.name])
            self.check(was_told, f"missing, and nobody said so: {what}")

    def _everywhere(self, holder: Holder) -> float | None:
        """Since when a subscription is certainly in force in the whole tree."""
        if holder.here is None or holder.everywhere is not None:
            return holder.everywhere
        known, hubs = holder.here + PROPAGATION, [*self.hubs, *map(links_of, self.hubs)]
        return known if self.outages.is_calm(hubs, holder.here, known) else None

    def check_told(self) -> None:
        """Without an outage, nothing is lost for want of a hub, and nobody is told of it."""
        if self.outages.none_but_beginnings and not any(hub.loses for hub in self.hubs.values()):
            told = [name for name, times in self._told.items() if times]
            self.check(not told, f"no hub was away, and {told} were told that something is lost")


def links_of(hub: str) -> str:
    """The name under which outages of a hub's links are noted."""
    return f"links of {hub}"


def connection_of(client: ClientActor) -> str:
    """The name under which outages of a client's connection are noted."""
    return f"connection of {client.name}"


def way_between(one: HubActor, other: HubActor) -> list[HubActor]:
    """The hubs from one to another, both included."""
    up, down = one.path(), other.path()
    common = sum(above is below for above, below in zip(up, down, strict=False))
    return [*reversed(up[common - 1 :]), *down[common:]]


def _triples(hub: HubActor) -> set[bytes]:
    return {b"%d/%d/%d" % (hub.uid, hub.uid, pid) for pid in hub.pids}
