"""Kinds of a hub's events: how the log ranks each, and its text. Man pages are made of them without msgspec."""

from __future__ import annotations

import logging
from typing import Final

TEXTS: Final = {
    "serves": (logging.DEBUG, "serves"),
    "stops": (logging.DEBUG, "stops"),
    "took over": (logging.DEBUG, "serves in place of another process"),
    "taken over": (logging.INFO, "another process serves from now on"),
    "joined": (logging.INFO, "a link has joined"),
    "ended": (logging.INFO, "a link has ended"),
    "lags": (logging.WARNING, "a link does not answer"),
    "answers": (logging.WARNING, "a link answers again"),
    "loses": (logging.WARNING, "messages are being lost"),
    "lost": (logging.WARNING, "{count:,} messages were lost in {seconds:.0f} s"),
    "refused": (logging.WARNING, "disconnected (repeats are summed up)"),
    "refusals": (logging.WARNING, "{count:,} were disconnected in {seconds:.0f} s"),
    "dropped": (logging.WARNING, "dropped what a link sent (repeats are only counted)"),
    "more": (logging.WARNING, "{count:,} more events of {users} were left out"),
}
"""Each kind of event with its level in the log, and its text."""

KINDS: Final = tuple(TEXTS)
"""The kinds of events."""
