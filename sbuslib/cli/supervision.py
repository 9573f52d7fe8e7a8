"""Tells systemd that a service is ready, and that its event loop still runs.

Source: sd_notify(3) and sd_watchdog_enabled(3), of which these few lines are all that the programs need.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from ..kernel.sockets import send_datagram

__all__ = ["tell", "watchdog"]


def tell(state: bytes) -> None:
    """Tell the supervisor of this process, if there is one: ``READY=1``, ``WATCHDOG=1``, ``STOPPING=1``."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith(("/", "@")):
        with suppress(OSError):  # a supervisor that is gone is no error
            send_datagram(address, state)


def watchdog(loop: Any) -> Any:
    """Tell the supervisor twice in each interval that ``loop`` runs. Returns the timer; ``None`` without a watchdog."""
    interval = os.environ.get("WATCHDOG_USEC", "")
    if (
        not (interval.isascii() and interval.isdigit() and len(interval) <= 18)  # microseconds of 30,000 years
        or not int(interval)
        or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid())
    ):
        return None
    seconds = int(interval) / 2_000_000
    timer = loop.timer(seconds, seconds)
    timer.start(tell, b"WATCHDOG=1")
    return timer
