"""The states of a client's connection: what leads from one to the next.

====================  ==========  ======  =====  ==========  ========
state                 dialed      in use  lost   given up    closed
====================  ==========  ======  =====  ==========  ========
connecting                        up      down   over        closed
up                                        down   over        closed
down                  connecting          down   over        closed
over                                      over   over        closed
closed                closed      closed  closed closed      closed
====================  ==========  ======  =====  ==========  ========

Whoever has the lead dials, and finds that the connection is in use, is lost, or is given up: no other one is looked
for. Any caller may close the client, at any time; then what the one with the lead still finds changes nothing.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class State(Enum):
    """Where a connection stands."""

    CONNECTING = auto()
    """The first one is made; or another one is, and brought to the session's state."""
    UP = auto()
    """The hub knows the session's state."""
    DOWN = auto()
    """There is none; who waits for the client makes another one."""
    OVER = auto()
    """There is none, and there will be none."""
    CLOSED = auto()
    """The client was closed."""


class Change(Enum):
    """Event of a connection."""

    DIALED = auto()
    IN_USE = auto()
    LOST = auto()
    GIVEN_UP = auto()
    CLOSED = auto()


_ENDS: Final = {Change.GIVEN_UP: State.OVER, Change.CLOSED: State.CLOSED}

NEXT: Final[dict[State, dict[Change, State]]] = {
    State.CONNECTING: {Change.IN_USE: State.UP, Change.LOST: State.DOWN, **_ENDS},
    State.UP: {Change.LOST: State.DOWN, **_ENDS},
    State.DOWN: {Change.DIALED: State.CONNECTING, Change.LOST: State.DOWN, **_ENDS},
    State.OVER: {Change.LOST: State.OVER, **_ENDS},
    State.CLOSED: dict.fromkeys(Change, State.CLOSED),
}
"""The next state, by state and change. No other change can happen in a state."""
