"""The table of the states of the link to the parent, cell by cell."""

from __future__ import annotations

from itertools import product

import pytest

from sbuslib.tree.states import EVENTS, STATES, STEPS, Event, LinkAction, State, step

JOINING: tuple[State, ...] = ("greeting", "asking", "placing", "heard")
JOINED: tuple[State, ...] = ("joined", "settling", "resuming", "open", "emptying", "leaving", "left")
CONNECTED = JOINING + JOINED
UNCONNECTED: tuple[State, ...] = ("starting", "away", "apart")

CELLS: dict[tuple[State, Event], tuple[LinkAction, State]] = {
    ("stopped", "start"): (LinkAction.BEGIN, "starting"),
    ("greeting", "known"): (LinkAction.ASK, "asking"),
    ("greeting", "client"): (LinkAction.PLACE, "heard"),
    ("greeting", "plain"): (LinkAction.JOIN_HEARD, "settling"),
    ("asking", "served"): (LinkAction.PLACE, "placing"),
    ("asking", "client"): (LinkAction.PLACE, "heard"),
    ("placing", "complete"): (LinkAction.NOTHING, "heard"),
    ("placing", "placed"): (LinkAction.JOIN, "joined"),
    ("heard", "placed"): (LinkAction.JOIN_HEARD, "settling"),
    ("joined", "complete"): (LinkAction.TAKE_BACK, "settling"),
    ("settling", "settled"): (LinkAction.OPEN, "resuming"),
    ("resuming", "empty"): (LinkAction.NOTHING, "open"),
    ("emptying", "empty"): (LinkAction.HOLD, "leaving"),
    ("leaving", "acknowledged"): (LinkAction.FINISH, "left"),
    **{(state, "leave"): (LinkAction.CLOSE, "away") for state in JOINING},
    **{(state, "leave"): (LinkAction.HOLD, "leaving") for state in ("joined", "settling")},
    **{(state, "leave"): (LinkAction.EMPTY, "emptying") for state in ("resuming", "open")},
    **{(state, "end"): (LinkAction.CLOSE, "away") for state in CONNECTED},
    **{(state, "loop"): (LinkAction.CLOSE, "apart") for state in CONNECTED},
    **{(state, "connect"): (LinkAction.GREET, "greeting") for state in UNCONNECTED},
    **{(state, "stop"): (LinkAction.END, "stopped") for state in UNCONNECTED},
    **{(state, "missed"): (LinkAction.SETTLE, "away") for state in ("starting", "away")},
    ("apart", "missed"): (LinkAction.SETTLE, "apart"),
    ("apart", "gone"): (LinkAction.NOTHING, "away"),
}


@pytest.mark.parametrize(("state", "event"), list(product(STATES, EVENTS)))
def test_each_cell_of_the_table(state: State, event: Event) -> None:
    assert step(state, event) == CELLS.get((state, event), (LinkAction.NOTHING, state))


def test_each_state_can_be_reached_and_left() -> None:
    reached: set[State] = {"stopped"}
    while more := {state for (before, _), (_, state) in STEPS.items() if before in reached} - reached:
        reached |= more
    assert reached == set(STATES)
    for state in set(STATES) - {"stopped"}:
        assert step(step(state, "end")[1], "stop") == (LinkAction.END, "stopped")


def test_each_event_and_each_action_is_in_the_table() -> None:
    assert {event for _, event in STEPS} == set(EVENTS)
    assert {action for action, _ in STEPS.values()} == set(LinkAction)
