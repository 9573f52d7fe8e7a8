"""What waits for a service: each user's in order, and users in turns."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from sbuslib.shares import Turns

USERS = st.sampled_from([None, 0, 1_000, 1_001])


def test_one_that_asks_much_delays_itself() -> None:
    waiting = Turns[str](100, 10_000)
    assert sum(waiting.put(1, f"greedy {number}", 10) for number in range(1_000)) == 100
    assert waiting.put(2, "modest", 10)
    assert [waiting.take(), waiting.take(), waiting.take()] == ["greedy 0", "modest", "greedy 1"]


def test_bytes_are_shared_out_too() -> None:
    waiting = Turns[str](100, 100)
    assert [waiting.put(1, "large", 60) for _ in range(2)] == [True, False]
    assert waiting.put(2, "other", 40)
    assert not waiting.put(2, "too large for anybody", 101)


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
