"""Turns of greenlets: one that always has work lets the others have theirs."""

from __future__ import annotations

from typing import Any

import gevent


def let_others_run() -> None:
    """Go on in the next round of the event loop, after all sockets that are ready in this one.

    ``gevent.sleep(0)`` would only be one of the event loop's callbacks, of which gevent runs fifty before it looks at
    sockets again: a greenlet that calls it between two pieces of work has fifty pieces for each one of the others. A
    timer ends after that look, and one of the lowest priority after the sockets that were found ready.
    """
    hub: Any = gevent.get_hub()
    with hub.loop.timer(0.0, priority=hub.loop.MINPRI) as timer:
        hub.wait(timer)
