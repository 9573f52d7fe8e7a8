"""Last values: the rule of the seam on a tree of model hubs, and what a client does with answers of no service.

In the model each message is a number of its own, so that the test can tell two messages of the same content apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from itertools import product
from random import Random
from types import coroutine
from typing import Any

import msgspec
import pytest
from clients.recipes.stepping import Stepping
from hypothesis import given, settings
from hypothesis import strategies as st

from sbuslib.clients.recipes.last import CaughtUp, KeptPage, fetch, question_key, subscribe
from sbuslib.clients.recipes.mailbox import Mailbox
from sbuslib.clients.runtime import run
from sbuslib.errors import PeerError
from sbuslib.keys.covering import covers
from sbuslib.matcher import matches
from sbuslib.wire.packets import Message


class Tree:
    """Hubs in a tree, joined by links that keep order. Every hub and client takes one thing at a time, at any time.

    Questions and answers of clients may overtake messages: a hub may have put those into a fan-out queue. Messages may
    overtake subscriptions and syncs, but no answer to a sync does.
    """

    def __init__(self, above: list[int], random: Random) -> None:
        """``above[n]`` is the parent hub n+1; hub 0 is the root."""
        self.random = random
        self.neighbours: list[list[int]] = [[] for _ in range(len(above) + 1)]
        for below, one in enumerate(above, 1):
            self.neighbours[below].append(one)
            self.neighbours[one].append(below)
        self.links: dict[tuple[Any, Any, int], deque[Any]] = {}
        self.wants: dict[int, set[Any]] = {hub: set() for hub in range(len(above) + 1)}  # links and clients, by hub
        self.clients: dict[str, tuple[int, Callable[[Any], None]]] = {}
        self.asked: dict[tuple[int, Any], list[Any]] = {}  # who waits for a sync, and for how many answers

    def join(self, name: str, hub: int, take: Callable[[Any], None]) -> None:
        self.clients[name] = (hub, take)

    def say(self, name: str, what: Any) -> None:
        self.send(name, self.clients[name][0], what)

    def send(self, source: Any, to: Any, what: Any) -> None:
        lane = 0 if what[0] in ("question", "answer") else 1 if what[0] in ("subscribe", "sync") else 2
        self.links.setdefault((source, to, lane), deque()).append(what)

    def step(self) -> bool:
        """Deliver one thing, of any link; whether there was one."""
        waiting = [link for link, things in self.links.items() if things]
        if not waiting:
            return False
        chosen = self.random.choice(waiting)
        source, to, _ = chosen
        what = self.links[chosen].popleft()
        if isinstance(to, str):
            self.clients[to][1](what)
        else:
            self.take(to, source, what)
        return True

    def take(self, hub: int, source: Any, what: Any) -> None:
        """What a hub does with what comes from a client or a neighbour."""
        kind = what[0]
        others = [one for one in self.neighbours[hub] if one != source]
        if kind == "subscribe":
            self.wants[hub].add(source)
            for one in others:
                self.send(hub, one, what)
        elif kind == "sync":  # asked of all hubs beyond; answered when all have
            self.ask(hub, source, what[1], others)
        elif kind == "synced":
            waits = self.asked[hub, what[1]]
            waits[1] -= 1
            if not waits[1]:
                self.send(hub, waits[0], what)
        elif kind == "message":
            for one in self.wants[hub] - {source}:
                self.send(hub, one, what)
        else:  # a question or an answer, for one client by name
            _, name, *_ = what
            home = self.clients[name][0]
            self.send(hub, name if home == hub else self.way(hub, home), what)

    def ask(self, hub: int, source: Any, token: Any, others: list[int]) -> None:
        if not others:
            self.send(hub, source, ("synced", token))
            return
        self.asked[hub, token] = [source, len(others)]
        for one in others:
            self.send(hub, one, ("sync", token))

    def way(self, hub: int, home: int, before: int = -1) -> int:
        """The neighbour on the way to another hub."""
        for one in self.neighbours[hub]:
            if one != before and (one == home or self.leads(one, home, hub)):
                return one
        raise AssertionError

    def leads(self, hub: int, home: int, before: int) -> bool:
        return any(one == home or self.leads(one, home, hub) for one in self.neighbours[hub] if one != before)


class Asker(Stepping):
    """The client that subscribes: what it has of the rule is real, what carries it out is the model."""

    def __init__(self, tree: Tree, name: str, hub: int, service: str) -> None:
        self.tree = tree
        self.name = name
        self.service = service
        self.mailbox = Mailbox(b"")
        self.live = False
        self.token = self.kept = 0
        tree.join(name, hub, self.take_in)
        self.steps = subscribe(self, self.mailbox, self.ask, b"/", None)
        self.go(None)

    @property
    def inbox(self) -> list[Message]:
        return list(self.mailbox.messages)

    async def ask(self, key: bytes, payload: bytes, until: float | None) -> bytes:
        self.tree.say(self.name, ("question", self.service, self.name))
        return await self.answer()

    @coroutine
    def answer(self) -> Generator[Any, bytes, bytes]:
        return (yield ("answer",))

    def go(self, result: Any) -> None:
        try:
            step = self.steps.send(result)
            while step[0] == "open":
                self.tree.say(self.name, ("subscribe",))
                step = self.steps.send(None)
            if step[0] == "sync":
                self.token += 1
                self.tree.say(self.name, ("sync", (self.name, self.token)))
        except StopIteration:
            self.live = True
            came = sum(not isinstance(message, CaughtUp) for message in self.mailbox.messages)
            self.kept = came - self.came

    came = 0  # messages since the last time that it began

    def take_in(self, what: Any) -> None:
        if what[0] == "message":
            self.came += 1
            self.mailbox.put(Message(b"%d" % what[1], b"%d" % what[2]))
        elif what[0] == "answer":
            self.go(what[2])
        else:
            if self.token == 1:
                self.came = 0
            self.go(None)


class Service:
    """A service that keeps every message. It answers after a sync."""

    def __init__(self, tree: Tree, name: str, hub: int) -> None:
        self.tree = tree
        self.name = name
        self.kept: dict[bytes, bytes] = {}
        self.askers: dict[Any, str] = {}
        tree.join(name, hub, self.take_in)
        tree.say(name, ("subscribe",))

    def take_in(self, what: Any) -> None:
        if what[0] == "message":
            self.kept[b"%d" % what[1]] = b"%d" % what[2]
        elif what[0] == "question":
            token = (self.name, len(self.askers))
            self.askers[token] = what[2]
            self.tree.say(self.name, ("sync", token))
        elif what[0] == "synced":
            page = KeptPage(False, sorted(self.kept.items()))
            self.tree.say(self.name, ("answer", self.askers[what[1]], msgspec.msgpack.encode(page)))


@settings(max_examples=300)
@given(
    above=st.lists(st.integers(0, 3), max_size=4),
    homes=st.lists(st.integers(0, 9), min_size=6, max_size=6),
    seed=st.integers(),
    count=st.integers(0, 60),
)
def test_none_is_missed_and_none_comes_twice(above: list[int], homes: list[int], seed: int, count: int) -> None:
    """Publishers publish the numbers 0, 1, 2 and so on, each after it has seen any of the others' or none."""
    random = Random(seed)
    tree = Tree([min(one, below) for below, one in enumerate(above)], random)
    hubs = len(above) + 1
    Service(tree, "service", homes[0] % hubs)
    while tree.step():  # the service is there before anybody publishes
        pass
    seen: dict[str, list[int]] = {f"publisher {number}": [] for number in range(3)}
    for number, name in enumerate(seen):
        tree.join(name, homes[number + 1] % hubs, lambda what, name=name: seen[name].append(what[2]))  # type: ignore[misc]
        tree.say(name, ("subscribe",))
    while tree.step():
        pass
    key_of: list[int] = []
    author: list[str] = []
    knows: list[set[int]] = []  # of each message: those that its publisher had seen or published
    begin, asker = random.randint(0, count), None
    for number in range(count + 1):
        if number == begin:
            asker = Asker(tree, "asker", homes[4] % hubs, "service")
        for _ in range(random.choice([0, 1, 2, 4, 16])):
            tree.step()
        if number < count:
            name = random.choice(list(seen))
            known = set(seen[name])
            knows.append(known.union(*(knows[one] for one in known)))
            seen[name].append(number)
            author.append(name)
            key_of.append(random.randint(0, 2))
            tree.say(name, ("message", key_of[number], number))
    while tree.step():
        pass
    assert asker is not None
    assert asker.live
    got = [int(message.payload) for message in asker.inbox if not isinstance(message, CaughtUp)]
    assert len(set(got)) == len(got), "one came twice"
    marker = next(at for at, message in enumerate(asker.inbox) if isinstance(message, CaughtUp))
    for key in range(3):
        of_key = [number for number in got if key_of[number] == key]
        published = {number for number, one in enumerate(key_of) if one == key}
        # Nobody published anything under the key that knew of the last one that came: there is no newer one.
        newest = {one for one in published if not any(one in knows[other] for other in published)}
        assert bool(of_key) == bool(published)
        assert not of_key or of_key[-1] in newest, "an older value stands"
        before_marker = [one for one in of_key if one in got[:marker]]
        for missed in published.difference(got):
            assert any(one not in knows[missed] for one in before_marker), "nothing stands for one that was missed"
        assert all(one not in knows[before] for at, one in enumerate(of_key) for before in of_key[:at]), "out of order"
    for name in seen:  # of what each published after the first that came live, none is missing, and all is in order
        live = [number for number in got[asker.kept :] if author[number] == name]
        assert not live or live == [number for number, one in enumerate(author) if one == name and number >= live[0]]


def test_a_question_reaches_the_services_that_keep_the_whole_pattern() -> None:
    every = [bytes(one) for length in range(5) for one in product(b"a*/", repeat=length)]
    for kept, asked in product(every, repeat=2):
        assert matches(question_key(kept, b"/"), question_key(asked, b"/")) == covers(kept, asked, b"/")


def answers(*pages: bytes) -> Callable[[bytes, bytes, float | None], Coroutine[Any, Any, bytes]]:
    """A service that answers so, whatever it is asked."""
    left = list(pages)

    async def ask(key: bytes, payload: bytes, until: float | None) -> bytes:
        return left.pop(0)

    return ask


def fetched(*pages: bytes) -> dict[bytes, bytes]:
    return run(fetch(answers(*pages), [b"a/*"], b"/", None))


def page(more: bool, *pairs: tuple[bytes, bytes]) -> bytes:
    return msgspec.msgpack.encode(KeptPage(more, list(pairs)))


def test_values_come_page_by_page() -> None:
    assert fetched(page(True, (b"a/1", b"x"), (b"a/2", b"y")), page(False, (b"a/3", b"z"))) == {
        b"a/1": b"x",
        b"a/2": b"y",
        b"a/3": b"z",
    }
    assert fetched(page(True)) == {}
    assert question_key(b"a/*", b"/") == b"sbus/last/a/*"


@pytest.mark.parametrize(
    "pages",
    [
        [b""],
        [b"\xc1"],
        [b"\x91" * 100_000],
        [msgspec.msgpack.encode([False, [["a/1", "text"]], 1, 2])],
        [page(False, (b"b/1", b""))],
        [page(False, (b"!/cred/1/2/3/x", b""))],
        [page(False, (b"a/2", b""), (b"a/1", b""))],
        [page(True, (b"a/1", b"")), page(False, (b"a/1", b""))],
    ],
)
def test_what_is_no_answer_of_a_service_is_refused(pages: list[bytes]) -> None:
    with pytest.raises(PeerError):
        fetched(*pages)


def test_a_service_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbuslib.clients.recipes.last.MOST_BYTES", 1_000)
    with pytest.raises(PeerError):
        fetched(*[page(True, (b"a/%06d" % number, bytes(90))) for number in range(12)])


@pytest.mark.parametrize("trouble", ["reconnected", "full"])
@pytest.mark.parametrize("times", [1, 2, 99])
def test_a_client_begins_anew_when_it_missed_something_and_gives_up_in_the_end(trouble: str, times: int) -> None:
    mailbox, port = Mailbox(b"a/*", messages=2), Stepping()
    steps = subscribe(port, mailbox, answers(*[page(False)] * 9), b"/", None)
    done: list[str] = []

    def carry_out() -> None:
        nonlocal times
        step = steps.send(None)
        while True:
            done.append(step[0])
            if step == ("sync", "tree") and times:
                times -= 1
                if trouble == "reconnected":
                    port.epoch += 1
                else:
                    for _ in range(3):
                        mailbox.put(Message(b"a/1", b""))
            step = steps.send(None)

    with pytest.raises(TimeoutError if times > 2 else StopIteration):
        carry_out()
    assert any(isinstance(message, CaughtUp) for message in mailbox.messages) == (times == 0)
    assert (done[-1] == "close") == (times > 0)
