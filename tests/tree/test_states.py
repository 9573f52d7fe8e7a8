"""The table of the states of the link to the hub above, cell by cell."""

from __future__ import annotations

from itertools import product

import pytest

from sbuslib.tree.states import EVENTS, STATES, STEPS, Action, Event, State, step

CONNECTED: tuple[State, ...] = ("greeting", "asking", "placing", "joined", "open", "leaving")
UNCONNECTED: tuple[State, ...] = ("starting", "away", "apart")

CELLS: dict[tuple[State, Event], tuple[Action, State]] = {
    ("stopped", "start"): (Action.BEGIN, "starting"),
    ("greeting", "known"): (Action.ASK, "asking"),
    ("greeting", "served"): (Action.PLACE, "placing"),
    ("greeting", "plain"): (Action.JOIN, "joined"),
    ("asking", "served"): (Action.PLACE, "placing"),
    ("placing", "placed"): (Action.JOIN, "joined"),
    ("joined", "complete"): (Action.OPEN, "open"),
    **{(state, "leave"): (Action.HOLD, "leaving") for state in ("joined", "open")},
    **{(state, "leave"): (Action.CLOSE, "away") for state in ("greeting", "asking", "placing")},
    **{(state, "end"): (Action.CLOSE, "away") for state in CONNECTED},
    **{(state, "loop"): (Action.CLOSE, "apart") for state in CONNECTED},
    **{(state, "connect"): (Action.GREET, "greeting") for state in UNCONNECTED},
    **{(state, "stop"): (Action.END, "stopped") for state in UNCONNECTED},
    **{(state, "missed"): (Action.SETTLE, "away") for state in ("starting", "away")},
    ("apart", "missed"): (Action.SETTLE, "apart"),
    ("apart", "gone"): (Action.NOTHING, "away"),
}


@pytest.mark.parametrize(("state", "event"), list(product(STATES, EVENTS)))
def test_each_cell_of_the_table(state: State, event: Event) -> None:
    assert step(state, event) == CELLS.get((state, event), (Action.NOTHING, state))


def test_each_state_can_be_reached_and_left() -> None:
    reached: set[State] = {"stopped"}
    while more := {state for (before, _), (_, state) in STEPS.items() if before in reached} - reached:
        reached |= more
    assert reached == set(STATES)
    for state in set(STATES) - {"stopped"}:
        assert step(step(state, "end")[1], "stop") == (Action.END, "stopped")


def test_each_event_and_each_action_is_in_the_table() -> None:
    assert {event for _, event in STEPS} == set(EVENTS)
    assert {action for action, _ in STEPS.values()} == set(Action)
