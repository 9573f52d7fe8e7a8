"""Heartbeats of a bus's bridges, on request."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

from ..federation.membership import MEMBERS_MOST, Heartbeat, decode_heartbeat
from ..wire.packets import Message

_SECONDS: Final = 0.3
"""Time limit for answers."""


def bridges_heard(receive: Callable[..., Message]) -> list[tuple[Heartbeat, bytes | None]]:
    """Collect the heartbeat of each bridge, and its sender, after ``ASK`` was published under ``CONTROL``."""
    heard: dict[str, tuple[Heartbeat, bytes | None]] = {}
    until = monotonic() + _SECONDS
    while (remaining := until - monotonic()) > 0 and len(heard) < MEMBERS_MOST:
        try:
            message = receive(timeout=remaining)
        except TimeoutError:
            break
        if (heartbeat := decode_heartbeat(message.payload)) is not None and heartbeat.text:
            heard[heartbeat.gateway] = heartbeat, message.sender
    return list(heard.values())
