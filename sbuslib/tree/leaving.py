"""How a hub leaves the one above it for another, so that nothing is lost that is on its way."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

import gevent

from .handshake import Conversation
from .uplink import Up

__all__ = ["SETTLE_PAUSE", "leave"]

SETTLE_PAUSE: Final = 0.01
"""Seconds between two looks whether what is on its way has arrived."""


def leave(talk: Conversation, up: Up, patience: float) -> None:
    """Have the hub above end the link, once it has acknowledged all that was sent to it. For a greenlet.

    Messages are kept from now on, and what the hub above has sent is received.

    :param patience: seconds that the hub above has for each step. What it has not acknowledged by then is uncertain.
    """
    _wait(talk, patience, lambda: not up.waiting)  # what waits would reach the next hub later than it might this one
    talk.hold()
    _wait(talk, patience, lambda: up.acknowledged == up.forwarded)
    talk.say_goodbye()
    _wait(talk, patience, lambda: False)


def _wait(talk: Conversation, patience: float, condition: Callable[[], bool]) -> None:
    """Wait until something holds, the link has ended, or time is over."""
    latest = monotonic() + patience
    while not talk.ended and not condition() and monotonic() < latest:
        gevent.sleep(SETTLE_PAUSE)
