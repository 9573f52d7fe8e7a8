"""What happens in a world: a seed and a list of steps, one a line. Any list of steps makes a world.

A step whose actor is not there, or is not in a state for it, does nothing. So steps can be left out of a failing plan
one after another.

=================================  ===================================================================================
step                               meaning
=================================  ===================================================================================
hub NAME UID [PARENT] [LIMIT=N...] a hub begins, as this user, below its parent
kill NAME, stop NAME, goon NAME    ``kill -9``, ``SIGSTOP``, ``SIGCONT`` of a hub or a client
restart NAME                       a hub that was killed begins again
replace NAME                       another process takes a hub over that has no parent
leave NAME                         a client closes, and its process ends
drop CLIENT                        its connection ends, and it makes another
join CLIENT UID HUB                a client connects
subscribe, unsubscribe             CLIENT PATTERN
publish CLIENT KEY COUNT           so many messages
listen CLIENT                      it subscribes to its own secret key
whisper CLIENT OTHER               it publishes under the other's secret key
appear, vanish                     CLIENT KEY: its presence begins, or ends
watch, unwatch                     CLIENT PATTERN: of presences
ask, unask                         CLIENT PATTERN: a watch of interest
serve, unserve                     CLIENT KEY: it answers requests
request CLIENT KEY                 it asks
sync CLIENT                        it waits for the tree
wait SECONDS                       time passes
=================================  ===================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

KEYS: Final = ("a/1", "a/2", "b/1", "c")
SERVED: Final = ("s/x", "s/y")
PATTERNS: Final = (*KEYS, "a/*", "a/", "b/", "*/1")

HUB_USERS: Final = (0, 0, 0, 2201, 2203)
"""Users of hubs that have a parent. Their relays are served as ``announce``, ``prune`` and ``plain``."""
CLIENT_USERS: Final = (0, 2201, 2202)

SMALL: Final = (
    "cached_keys=2", "cached_receivers=3", "batch=2", "turn_deliveries=2", "turn_time=0.00001", "fanout=2",
    "pruned_keys=1", "queued_packets=2", "fanout_packets=40", "logged_violations=1",
)  # fmt: skip
"""Limits that are so small that they are met."""

PAUSES: Final = (0.0, 0.0, 0.001, 0.05, 0.5, 2.0)

UNDOING: Final = {
    "unsubscribe": "subscribe", "vanish": "appear", "unwatch": "watch", "unask": "ask", "unserve": "serve"
}  # fmt: skip
"""Verbs that end what another verb began."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A seed, from which the order of events is drawn, and the steps."""

    seed: int
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((f"seed {self.seed}", *self.steps))


def read_plan(path: Path) -> Plan:
    """Read a plan that was kept: lines that begin with ``#`` say what it was."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return Plan(int(lines[0].removeprefix("seed ")), tuple(lines[1:]))


def draw_plan(seed: int, length: int = 120) -> Plan:
    """Draw the plan of a seed."""
    return Plan(seed, tuple(_Drawing(Random(f"{seed} plan")).steps(length)))


class _Drawing:
    """Draws steps that mostly make sense, since it knows roughly what was there before."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.hubs = [f"h{number}" for number in range(chance.choice((1, 2, 3, 3, 4, 5)))]
        self.clients: list[str] = []  # that have joined
        self.held: dict[tuple[str, str], list[str]] = {}  # what each client did that can be undone
        self.absent: set[str] = set()  # hubs that were killed
        self.stopped: list[str] = []  # hubs and clients
        self.has_faults = chance.random() < 0.7
        self.is_tight = chance.random() < 0.3  # whether limits are small
        self.joined = 0  # clients, ever

    def steps(self, length: int) -> Iterable[str]:
        for number, hub in enumerate(self.hubs):
            words = ["hub", hub, "0"]
            if number:
                words[2:] = [str(self.chance.choice(HUB_USERS)), self.chance.choice(self.hubs[:number])]
            if self.is_tight:
                words += self.chance.sample(SMALL, 4)
            yield " ".join(words)
        yield "wait 8"

        for _ in range(length):
            yield from self._draw()
            if pause := self.chance.choice(PAUSES):
                yield f"wait {pause:g}"

    def _draw(self) -> Iterable[str]:
        if len(self.clients) < 2 or self.chance.random() < 0.1:
            yield self._join()
            return
        if self.has_faults and self.chance.random() < 0.03:
            hub = self.chance.choice(self.hubs)
            yield from (f"kill {hub}", f"wait {self.chance.choice((0.1, 1.0))}", f"restart {hub}")
            return
        client = self.chance.choice(self.clients)
        verbs = {
            self._turn("subscribe", "unsubscribe", PATTERNS): 15,
            self._turn("appear", "vanish", KEYS): 12,
            self._turn("watch", "unwatch", PATTERNS): 10,
            self._turn("ask", "unask", PATTERNS): 10,
            f"publish {client} {self.chance.choice(KEYS)} {self.chance.choice((1, 2, 5, 5, 60))}": 20,
            self._turn("serve", "unserve", SERVED): 4,
            f"request {client} {self.chance.choice(SERVED)}": 5,
            f"listen {client}": 3,
            f"whisper {client} {self.chance.choice(self.clients)}": 4,
            f"sync {client}": 4,
            f"leave {client}": 2,
            f"kill {client}": 3,
        }
        if self.has_faults:
            verbs |= self._faults()
        step = self.chance.choices(list(verbs), list(verbs.values()))[0]
        self._note(step)
        yield step

    def _join(self) -> str:
        self.joined += 1
        self.clients.append(f"c{self.joined}")
        return f"join c{self.joined} {self.chance.choice(CLIENT_USERS)} {self.chance.choice(self.hubs)}"

    def _turn(self, begin: str, end: str, among: tuple[str, ...]) -> str:
        """Begin something, or end it where it was begun."""
        client, what = self.chance.choice(self.clients), self.chance.choice(among)
        verb = end if what in self.held.get((client, begin), []) else begin
        return f"{verb} {client} {what}"

    def _faults(self) -> dict[str, int]:
        faults = {f"stop {self.chance.choice(self.hubs + self.clients)}": 4, f"kill {self.chance.choice(self.hubs)}": 4}
        faults[f"drop {self.chance.choice(self.clients)}"] = 3
        faults[f"replace {self.hubs[0]}"] = 3
        if self.absent:
            faults[f"restart {self.chance.choice(sorted(self.absent))}"] = 20
        if self.stopped:
            faults[f"goon {self.chance.choice(self.stopped)}"] = 12
        return faults

    def _note(self, step: str) -> None:
        verb, actor, *rest = step.split()
        if verb in UNDOING.values():
            self.held.setdefault((actor, verb), []).append(rest[0])
        elif verb in UNDOING:
            self.held[actor, UNDOING[verb]].remove(rest[0])
        elif verb in ("kill", "leave") and actor in self.clients:
            self.clients.remove(actor)
        elif verb == "kill":
            self.absent.add(actor)
        elif verb == "restart":
            self.absent.discard(actor)
        elif verb == "stop":
            self.stopped.append(actor)
        elif verb == "goon":
            self.stopped.remove(actor)
