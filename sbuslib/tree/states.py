"""State machine of the link to the parent, as one table.

Pure: no input or output. ``docs/relay.md`` draws the table. An event that is not in it has no effect.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, TypeAlias

State: TypeAlias = Literal[
    "stopped",
    "starting",
    "greeting",
    "asking",
    "placing",
    "heard",
    "joined",
    "settling",
    "resuming",
    "open",
    "emptying",
    "leaving",
    "left",
    "away",
    "apart",
]

STATES: Final[dict[State, str]] = {
    "stopped": "the relay is not started",
    "starting": "no hub was tried yet",
    "greeting": "until the parent has said who this one is",
    "asking": "until it has said how it serves this one",
    "placing": "until its path to the root is settled",
    "heard": "likewise; it has said all that it wants",
    "joined": "until it has said all that it wants",
    "settling": "until what it no longer wants is taken back",
    "resuming": "what was kept goes up",
    "open": "messages go up",
    "emptying": "what waits goes up before this hub leaves",
    "leaving": "until it has acknowledged all that was sent",
    "left": "until it ends the link",
    "away": "no parent",
    "apart": "joining would make a loop, or too deep a tree",
}
"""Meaning of each state."""

Event: TypeAlias = Literal[
    "start",
    "connect",
    "known",
    "served",
    "client",
    "plain",
    "placed",
    "complete",
    "settled",
    "empty",
    "leave",
    "acknowledged",
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
    "served": "it serves this one as a relay",
    "client": "it serves this one as any client",
    "plain": "it has said who this one is, and knows no extensions",
    "placed": "its path to the root is settled",
    "complete": "it has said all that it wants",
    "settled": "what it no longer wants is taken back",
    "empty": "nothing waits for it any more",
    "leave": "this hub is to join another, or the parent asks it to leave",
    "acknowledged": "it has acknowledged messages and losses",
    "end": "the link has ended",
    "loop": "the parent is below this one, or too deep",
    "missed": "no address could be joined for now",
    "gone": "nobody listens at the address any more",
    "stop": "the relay stops",
}
"""Meaning of each event."""


class LinkAction(Enum):
    """Action of a step."""

    NOTHING = "nothing"
    BEGIN = "begin to keep messages"
    GREET = "greet"
    ASK = "ask to be served as a relay"
    PLACE = "take a place, and ask for its path"
    JOIN = "join"
    JOIN_HEARD = "join, take back what is unwanted"
    TAKE_BACK = "take back what is unwanted"
    OPEN = "send what was kept"
    EMPTY = "send what waits"
    HOLD = "keep what comes"
    FINISH = "send nothing more"
    CLOSE = "close the connection"
    SETTLE = "answer those who wait"
    END = "be a root again"


STEPS: Final[dict[tuple[State, Event], tuple[LinkAction, State]]] = {
    ("stopped", "start"): (LinkAction.BEGIN, "starting"),
    ("starting", "connect"): (LinkAction.GREET, "greeting"),
    ("starting", "missed"): (LinkAction.SETTLE, "away"),
    ("starting", "stop"): (LinkAction.END, "stopped"),
    ("greeting", "known"): (LinkAction.ASK, "asking"),
    ("greeting", "client"): (LinkAction.PLACE, "heard"),
    ("greeting", "plain"): (LinkAction.JOIN_HEARD, "settling"),
    ("greeting", "leave"): (LinkAction.CLOSE, "away"),
    ("greeting", "end"): (LinkAction.CLOSE, "away"),
    ("greeting", "loop"): (LinkAction.CLOSE, "apart"),
    ("asking", "served"): (LinkAction.PLACE, "placing"),
    ("asking", "client"): (LinkAction.PLACE, "heard"),
    ("asking", "leave"): (LinkAction.CLOSE, "away"),
    ("asking", "end"): (LinkAction.CLOSE, "away"),
    ("asking", "loop"): (LinkAction.CLOSE, "apart"),
    ("placing", "placed"): (LinkAction.JOIN, "joined"),
    ("placing", "complete"): (LinkAction.NOTHING, "heard"),
    ("placing", "leave"): (LinkAction.CLOSE, "away"),
    ("placing", "end"): (LinkAction.CLOSE, "away"),
    ("placing", "loop"): (LinkAction.CLOSE, "apart"),
    ("heard", "placed"): (LinkAction.JOIN_HEARD, "settling"),
    ("heard", "leave"): (LinkAction.CLOSE, "away"),
    ("heard", "end"): (LinkAction.CLOSE, "away"),
    ("heard", "loop"): (LinkAction.CLOSE, "apart"),
    ("joined", "complete"): (LinkAction.TAKE_BACK, "settling"),
    ("joined", "leave"): (LinkAction.HOLD, "leaving"),
    ("joined", "end"): (LinkAction.CLOSE, "away"),
    ("joined", "loop"): (LinkAction.CLOSE, "apart"),
    ("settling", "settled"): (LinkAction.OPEN, "resuming"),
    ("settling", "leave"): (LinkAction.HOLD, "leaving"),
    ("settling", "end"): (LinkAction.CLOSE, "away"),
    ("settling", "loop"): (LinkAction.CLOSE, "apart"),
    ("resuming", "empty"): (LinkAction.NOTHING, "open"),
    ("resuming", "leave"): (LinkAction.EMPTY, "emptying"),
    ("resuming", "end"): (LinkAction.CLOSE, "away"),
    ("resuming", "loop"): (LinkAction.CLOSE, "apart"),
    ("open", "leave"): (LinkAction.EMPTY, "emptying"),
    ("open", "end"): (LinkAction.CLOSE, "away"),
    ("open", "loop"): (LinkAction.CLOSE, "apart"),
    ("emptying", "empty"): (LinkAction.HOLD, "leaving"),
    ("emptying", "end"): (LinkAction.CLOSE, "away"),
    ("emptying", "loop"): (LinkAction.CLOSE, "apart"),
    ("leaving", "acknowledged"): (LinkAction.FINISH, "left"),
    ("leaving", "end"): (LinkAction.CLOSE, "away"),
    ("leaving", "loop"): (LinkAction.CLOSE, "apart"),
    ("left", "end"): (LinkAction.CLOSE, "away"),
    ("left", "loop"): (LinkAction.CLOSE, "apart"),
    ("away", "connect"): (LinkAction.GREET, "greeting"),
    ("away", "missed"): (LinkAction.SETTLE, "away"),
    ("away", "stop"): (LinkAction.END, "stopped"),
    ("apart", "connect"): (LinkAction.GREET, "greeting"),
    ("apart", "missed"): (LinkAction.SETTLE, "apart"),
    ("apart", "gone"): (LinkAction.NOTHING, "away"),
    ("apart", "stop"): (LinkAction.END, "stopped"),
}
"""(state, event): (action, state)."""


def step(state: State, event: Event) -> tuple[LinkAction, State]:
    """Return the action for an event in a state, and the next state."""
    return STEPS.get((state, event), (LinkAction.NOTHING, state))
