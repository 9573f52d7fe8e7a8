"""Random trees of processes whose hubs are killed, stopped, started again, taken over and joined, while messages pass.

Each publisher is a user of its own, and about half of the subscribers ask for senders: what they receive was sent by
the process that had that connection. No message ever comes under the credential of another.

Each tree is compared with one flat hub, to which the same is published and subscribed. What a subscriber receives of a
publisher is in order, and nothing comes twice. What the flat hub would have delivered and does not come was lost: the
publisher was told so, and the subscriber as well; or the publisher's own hub was killed before it had passed the
message on. Nothing is kept on the way down: to the parents, a hub that is away is like a client that is away. So
this is not asked where a hub was away on the way down, or where the hub was away from which the way only leads down. A
hub is away if it was killed, if the parent was taken over, and if a parent was started again while it was
stopped: perhaps nobody else could tell that one to wait for it.

``SBUS_TREE_RUNS`` says how many runs there are, ``SBUS_TREE_SEED`` the number of the first.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack, closing
from random import Random
from time import monotonic

import pytest
from programs import Programs, Publisher, Subscriber, wait_until

from sbuslib.matcher import matches
from sbuslib.wire.control import UP_CAUSES

RUNS = int(os.environ.get("SBUS_TREE_RUNS", "4"))
SEED = int(os.environ.get("SBUS_TREE_SEED", "1"))
DEPTH = 4
STOPPED = 1.5
"""Seconds for which a hub is to be stopped at most. It may take longer on a busy machine."""
KEYS = [b"a", b"b", b"a/b", b"a/b/c", b"b/c"]
PATTERNS = [b"", b"a", b"a/", b"*", b"*/b", b"b/*", b"a/*/c", b"*/*"]
LAST = b"last"
USER = 20_001
"""The user of the first publisher, and so on. Who is not root has them all be itself."""


class Run:
    """One tree, and what happens to it."""

    def __init__(self, programs: Programs, seed: int, stack: ExitStack) -> None:
        self.programs = programs
        self.random = Random(seed)
        self.load = Random(seed)  # of its own: how much is published depends on the machine, and events do not
        self.stack = stack
        self.away: set[str] = set()
        self.stopped: dict[str, tuple[float, float]] = {}  # since when, and until when
        self.started: dict[str, float] = {}  # again, and when
        self.replaced: dict[str, set[int]] = {}  # the processes that a hub was before it was taken over
        self.publishers: dict[str, Publisher] = {}
        self.subscribers: dict[str, list[Subscriber]] = {}
        self.published: dict[str, list[bytes]] = {}
        self.late: list[Subscriber] = []
        self.established: list[tuple[str, Subscriber]] = []
        self.happened: list[str] = []
        self.pause = threading.Event()
        self.began = monotonic()

    # -- the tree -----------------------------------------------------------------------------------

    def path(self, name: str) -> list[str]:
        """A hub, and all above it."""
        path: list[str] = []
        one: str | None = name
        while one is not None:
            path.append(one)
            one = self.programs.above[one]
        return path

    def plant(self) -> None:
        for n in range(self.random.randint(2, 6)):
            self.programs.start(str(n), self.choose_parent(), "-o")
        for name in self.programs.above:
            self.programs.wait_until_joined(name)
            self.populate(name)
        for name, some in self.subscribers.items():
            for subscriber in some:
                wait_until(lambda: subscriber.client.sync("tree") == "tree", "the tree knows it")  # noqa: B023
                self.established.append((name, subscriber))

    def choose_parent(self) -> str | None:
        fit = [name for name in self.programs.above if len(self.path(name)) < DEPTH]
        return self.random.choice(fit) if fit else None

    def populate(self, name: str) -> None:
        """A publisher and perhaps a subscriber on a hub."""
        self.add_publisher(name)
        if self.random.random() < 0.7:
            wanted = self.random.sample(PATTERNS, self.random.randint(1, 3))
            senders = self.load.random() < 0.5
            subscriber = Subscriber(self.programs.address(name), LAST, *wanted, senders=senders)
            self.subscribers[name].append(self.stack.enter_context(closing(subscriber)))

    def add_publisher(self, name: str) -> None:
        uid = USER + len(self.publishers) if not os.getuid() else None
        self.publishers[name] = self.stack.enter_context(closing(Publisher(self.programs.address(name), name, uid)))
        self.published[name], self.subscribers[name] = [], []

    def listen_late(self) -> None:
        """A subscriber that asks for senders, while messages are under way. It need not have any one of them."""
        whole = [name for name in self.running() if self.is_whole(name)]
        if whole and not self.stopped:
            name = self.load.choice(whole)
            subscriber = Subscriber(self.programs.address(name), b"", senders=True)
            self.late.append(self.stack.enter_context(closing(subscriber)))

    # -- what happens -------------------------------------------------------------------------------

    def live(self) -> None:
        acts = [self.kill, self.kill, self.start_again, self.start_again, self.stop, self.join, self.take_over]
        for _ in range(self.random.randint(4, 10)):
            self.random.choice(acts)()
            self.listen_late()
            self.publish_for(self.random.uniform(0.02, 0.4))

    def note(self, what: str, name: str) -> None:
        self.happened.append(f"{monotonic() - self.began:.2f} {what} {name}")

    def running(self) -> list[str]:
        return [name for name in self.programs.pids if name not in self.stopped]

    def kill(self) -> None:
        if len(self.programs.pids) > 1:
            name = self.random.choice(list(self.programs.pids))
            self.note("kill", name)
            self.stopped.pop(name, None)
            self.programs.kill(name)
            self.away.add(name)

    def start_again(self) -> None:
        away = [name for name in self.programs.above if name not in self.programs.pids]
        if away:
            name = self.random.choice(away)
            self.note("start", name)
            self.programs.start_again(name)
            self.started[name] = monotonic()
            self.replaced.pop(name, None)

    def take_over(self) -> None:
        roots = [name for name in self.running() if self.programs.above[name] is None]
        if roots and not self.stopped:
            name = self.random.choice(roots)
            self.note("take over", name)
            self.replaced.setdefault(name, set()).add(self.programs.pids[name])
            self.programs.take_over(name)
            self.away.update(below for below, above in self.programs.above.items() if above == name)

    def stop(self) -> None:
        if self.running():
            name = self.random.choice(self.running())
            self.note("stop", name)
            self.programs.send(name, signal.SIGSTOP)
            now = monotonic()
            self.stopped[name] = now, now + self.random.uniform(0.0, STOPPED)

    def join(self) -> None:
        above = self.choose_parent()
        name = str(len(self.programs.above))
        if above is not None and above in self.running():
            self.note(f"join {above} with", name)
            self.programs.start(name, above, "-o")
            self.add_publisher(name)

    def go_on(self, at: float) -> None:
        for name in [name for name, (_, until) in self.stopped.items() if until <= at]:
            since, _ = self.stopped.pop(name)
            self.programs.send(name, signal.SIGCONT)
            if any(since < self.started.get(above, 0.0) for above in self.path(name)[1:]):
                self.away.add(name)

    def is_whole(self, name: str) -> bool:
        """Whether a hub has its subscribers back. Before, one flat hub would not deliver to them either."""
        pids = {self.programs.pids.get(name), *self.replaced.get(name, ())}
        return name in self.running() and all(subscriber.known_by in pids for subscriber in self.subscribers[name])

    def publish_for(self, seconds: float) -> None:
        end = monotonic() + seconds
        while monotonic() < end:
            self.go_on(monotonic())
            for name, publisher in self.publishers.items():
                publisher.read()
                if self.is_whole(name):
                    self.publish(name, self.load.choice(KEYS), self.load.randint(1, 8))
            self.pause.wait(0.002)

    def publish(self, name: str, key: bytes, count: int) -> int:
        publisher = self.publishers[name]
        before = publisher.published
        publisher.publish(count, key)
        self.published[name] += [key] * (publisher.published - before)
        return publisher.published - before

    # -- at rest ------------------------------------------------------------------------------------

    def rest(self) -> None:
        self.go_on(float("inf"))
        for name in self.programs.above:
            if name not in self.programs.pids:
                self.programs.start_again(name)
        for name in self.programs.above:
            self.programs.wait_until_joined(name)
        for name, some in self.subscribers.items():
            wait_until(lambda: self.is_whole(name), f"subscribers of {name} are back")  # noqa: B023
            for subscriber in some:
                wait_until(lambda: subscriber.client.sync("tree") == "tree", "the tree is at rest")  # noqa: B023
        for name, publisher in self.publishers.items():
            publisher.read()
            wait_until(lambda: self.publish(name, LAST, 1), "the last is published")  # noqa: B023

    def heard(self, subscriber: Subscriber) -> int:
        """How many messages on their way up a subscriber was told that it may lack."""
        return sum(subscriber.client.lost.get(cause, 0) for cause in UP_CAUSES)

    def check(self) -> tuple[int, int]:
        """Compare with a flat hub. Returns how many messages are missing, and of how many the publishers know."""
        missing = 0
        for name, publisher in self.publishers.items():
            for where, some in self.subscribers.items():
                for subscriber in some:
                    last = publisher.published - 1
                    wait_until(lambda: subscriber.has(publisher, last), f"{where} has the last of {name}")  # noqa: B023
                    subscriber.check_order(publisher)
            publisher.wait_until_passed()
            for subscriber in [*self.late, *(one for some in self.subscribers.values() for one in some)]:
                if subscriber.asks_senders:
                    subscriber.check_senders(publisher)
        known = sum(publisher.told + publisher.uncertain for publisher in self.publishers.values())
        for where, subscriber in self.established:
            for key in subscriber.keys:
                assert any(matches(pattern, key) for pattern in subscriber.patterns), key
            for name, publisher in self.publishers.items():
                if where != name and self.away & (set(self.path(where)) - set(self.path(name)[1:])):
                    continue
                wanted = {key for key in [*KEYS, LAST] if any(matches(one, key) for one in subscriber.patterns)}
                due = sum(key in wanted for key in self.published[name])
                lacks = due - len(subscriber.numbers[name])
                missing += lacks
                told = f"{name} knows of {publisher.told} + {publisher.uncertain}"
                assert lacks <= publisher.told + publisher.uncertain, f"{where} lacks {lacks} of {due}, {told}"
                if where not in self.away:  # a client that was disconnected knows that notices may be missing, too
                    certain = lacks - publisher.uncertain
                    wait_until(lambda: self.heard(subscriber) >= certain, f"{where} hears of {certain}")  # noqa: B023
                if not self.away:
                    assert not lacks, f"{where} lacks {lacks} of {due} of {name}, and no hub was away"
        return missing, known


@pytest.mark.parametrize("seed", range(SEED, SEED + RUNS))
def test_a_tree_in_unrest_delivers_what_a_flat_hub_would_but_for_what_is_told(programs: Programs, seed: int) -> None:
    os.chmod(programs.folder, 0o755)
    with ExitStack() as stack:
        run = Run(programs, seed, stack)
        try:
            run.plant()
            run.live()
            run.rest()
            missing, known = run.check()
        except BaseException:
            print(f"seed {seed}: {programs.above} {'; '.join(run.happened)}")
            raise
        print(f"seed {seed}: {len(run.happened)} events, {missing} missing, {known} told or uncertain")
