"""The states of the link to the hub above, as one table: what each event does in each state.

Pure: no input or output. ``docs/relay.md`` draws the table. What is not in it has no effect.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, TypeAlias

__all__ = ["EVENTS", "STATES", "STEPS", "Action", "Event", "State", "step"]

State: TypeAlias = Literal[
    "stopped", "starting", "greeting", "asking", "placing", "joined", "open", "leaving", "away", "apart"
]

STATES: Final[dict[State, str]] = {
    "stopped": "the relay is not started",
    "starting": "no hub was tried yet",
    "greeting": "until the hub above has said who this one is",
    "asking": "until it has said how it serves this one",
    "placing": "until its path to the root is settled",
    "joined": "until it has said all that it wants",
    "open": "messages go up",
    "leaving": "until it has acknowledged all that was sent to it",
    "away": "no hub above",
    "apart": "joining would make a loop, or too deep a tree",
}
"""What each state means."""

Event: TypeAlias = Literal[
    "start",
    "connect",
    "known",
    "served",
    "plain",
    "placed",
    "complete",
    "leave",
    "end",
    "loop",
    "missed",
    "gone",
    "stop",
]

EVENTS: Final[dict[Event, str]] = {
    "start": "the relay starts",
    "connect": "a hub has taken the connection",
    "known": "it has said who this one is, and knows relays",
    "served": "it has said how it serves this one, or serves it as any client",
    "plain": "it has said who this one is, and knows no extensions",
    "placed": "its path to the root is settled",
    "complete": "it has said all that it wants",
    "leave": "this hub is to join another, or the hub above asks it to leave",
    "end": "the link has ended",
    "loop": "the hub above is below this one, or too deep",
    "missed": "no address could be joined for now",
    "gone": "nobody listens at the address any more",
    "stop": "the relay stops",
}
"""What each event means."""


class Action(Enum):
    """What is done at a step."""

    NOTHING = "nothing"
    BEGIN = "begin to keep messages"
    GREET = "greet"
    ASK = "ask to be served as a relay"
    PLACE = "take a place, and ask for its path"
    JOIN = "join"
    OPEN = "send what was kept"
    HOLD = "keep what comes, and have the rest acknowledged"
    CLOSE = "close the connection"
    SETTLE = "answer those who wait"
    END = "be a root again"


STEPS: Final[dict[tuple[State, Event], tuple[Action, State]]] = {
    ("stopped", "start"): (Action.BEGIN, "starting"),
    ("starting", "connect"): (Action.GREET, "greeting"),
    ("starting", "missed"): (Action.SETTLE, "away"),
    ("starting", "stop"): (Action.END, "stopped"),
    ("greeting", "known"): (Action.ASK, "asking"),
    ("greeting", "served"): (Action.PLACE, "placing"),
    ("greeting", "plain"): (Action.JOIN, "joined"),
    ("greeting", "leave"): (Action.CLOSE, "away"),
    ("greeting", "end"): (Action.CLOSE, "away"),
    ("greeting", "loop"): (Action.CLOSE, "apart"),
    ("asking", "served"): (Action.PLACE, "placing"),
    ("asking", "leave"): (Action.CLOSE, "away"),
    ("asking", "end"): (Action.CLOSE, "away"),
    ("asking", "loop"): (Action.CLOSE, "apart"),
    ("placing", "placed"): (Action.JOIN, "joined"),
    ("placing", "leave"): (Action.CLOSE, "away"),
    ("placing", "end"): (Action.CLOSE, "away"),
    ("placing", "loop"): (Action.CLOSE, "apart"),
    ("joined", "complete"): (Action.OPEN, "open"),
    ("joined", "leave"): (Action.HOLD, "leaving"),
    ("joined", "end"): (Action.CLOSE, "away"),
    ("joined", "loop"): (Action.CLOSE, "apart"),
    ("open", "leave"): (Action.HOLD, "leaving"),
    ("open", "end"): (Action.CLOSE, "away"),
    ("open", "loop"): (Action.CLOSE, "apart"),
    ("leaving", "end"): (Action.CLOSE, "away"),
    ("leaving", "loop"): (Action.CLOSE, "apart"),
    ("away", "connect"): (Action.GREET, "greeting"),
    ("away", "missed"): (Action.SETTLE, "away"),
    ("away", "stop"): (Action.END, "stopped"),
    ("apart", "connect"): (Action.GREET, "greeting"),
    ("apart", "missed"): (Action.SETTLE, "apart"),
    ("apart", "gone"): (Action.NOTHING, "away"),
    ("apart", "stop"): (Action.END, "stopped"),
}
"""(state, event): (action, state)."""


def step(state: State, event: Event) -> tuple[Action, State]:
    """What an event does in a state, and which state follows."""
    return STEPS.get((state, event), (Action.NOTHING, state))
