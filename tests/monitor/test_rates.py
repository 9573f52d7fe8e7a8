"""Rates of a hub, and shares of bytes and messages."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st
from support import HubThread

from sbuslib.blocking import Client
from sbuslib.monitor.rates import KeyRates, Look, watch
from sbuslib.shares import Turns
from sbuslib.wire.packets import Message

# -- Rates from two looks at a hub, and of messages by key


def test_a_hub_is_looked_at_again_and_again(address: str) -> None:
    with HubThread(address), Client(address) as client:
        client.subscribe(b"room/")
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            client.publish_many([(b"room/1", b"payload")] * 100)
            client.sync()

        wanted = iter([True, True, False])
        looks = watch(lambda: Client(address), sleep, lambda: next(wanted))
        first, second, third = next(looks), next(looks), next(looks)
        looks.close()
    assert isinstance(first, Look)
    assert isinstance(second, Look)
    assert isinstance(third, Look)
    assert (first.hub["published_rate"], first.hub["delivered_rate"]) == (0, 0)  # there was no look before
    assert second.hub["published_rate"] == second.hub["delivered_rate"] > 0
    assert second.users[0]["published_rate"] == second.hub["published_rate"]
    assert third.clients is None  # nobody wanted them any more
    assert second.clients is not None
    rates = {row["who"]: row["published_rate"] for row in second.clients if row["patterns"]}
    assert [*rates.values()] == [second.hub["published_rate"]]
    assert pauses[0] >= 1


def message(key: bytes, size: int = 10) -> Message:
    return Message(key, b"x" * size)


def test_rate_bytes_and_intervals_of_a_key() -> None:
    rates = KeyRates(100.0, 10)
    for now in (100.0, 100.5, 102.0):
        rates.take([message(b"key")], now)
    (row,) = rates.end(104.0)
    assert (row["key"], row["messages"], row["rate"], row["bytes"]) == (b"key", 3, 0.75, 7.5)
    assert (row["mean"], row["deviation"], row["longest"]) == (1.0, 0.5, 1.5)
    (row,) = rates.end(106.0)
    assert (row["rate"], row["mean"]) == (0, None)  # a key that is silent stays in the table
    rates.take([message(b"key")], 107.0)
    assert rates.end(108.0)[0]["mean"] == 5.0  # an interval counts where it ends


def test_keys_beyond_the_bound_are_counted_together() -> None:
    rates = KeyRates(0.0, 2)
    rates.take([message(b"a"), *[message(b"b")] * 2, message(b"c"), message(b"d")], 0.5)
    rows = rates.end(1.0)
    assert [(row["key"], row["messages"]) for row in rows] == [(b"b", 2), (b"a", 1), (None, 2)]
    rates.take([message(b"e")] * 5, 1.5)
    assert [(row["key"], row["messages"]) for row in rates.end(2.0)] == [(b"a", 0), (b"b", 0), (None, 5)]


def test_only_the_fastest_keys_are_shown() -> None:
    rates = KeyRates(0.0)
    rates.take([message(b"slow"), *[message(b"fast")] * 3, message(b"slower", 1)], 0.5)
    fast, others = rates.end(1.0, 1)
    assert (fast["key"], fast["messages"]) == (b"fast", 3)
    assert (others["key"], others["messages"], others["bytes"], others["mean"]) == (None, 2, 11, None)


# -- What waits for a service: each user's in order, and users in turns

USERS = st.sampled_from([None, 0, 1_000, 1_001])


def test_one_that_asks_much_delays_itself() -> None:
    waiting = Turns[str](100, 10_000)
    assert sum(waiting.put(1, f"greedy {number}", 10) for number in range(1_000)) == 100
    assert waiting.put(2, "modest", 10)
    assert not waiting.put(3, "too large for anybody", 10_001)
    assert [waiting.take(), waiting.take(), waiting.take()] == ["greedy 0", "modest", "greedy 1"]


@given(st.lists(st.one_of(st.none(), st.tuples(USERS, st.integers(0, 30)))))
def test_nothing_that_was_taken_in_is_lost_or_overtakes_its_user(steps: list[tuple[int | None, int] | None]) -> None:
    waiting = Turns[tuple[int | None, int]](8, 100)
    model: dict[int | None, deque[tuple[int | None, int]]] = {}
    turn: list[int | None] = []
    for number, step in enumerate(steps):
        if step is None:
            item = waiting.take()
            if item is None:
                assert not turn
                continue
            assert item[0] == turn.pop(0)
            assert item == model[item[0]].popleft()
            if model[item[0]]:
                turn.append(item[0])
        else:
            user, size = step
            if waiting.put(user, (user, number), size):
                model.setdefault(user, deque()).append((user, number))
                if user not in turn:
                    turn.append(user)
    assert len(waiting) == sum(map(len, model.values()))
