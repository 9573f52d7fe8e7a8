"""Modes of flood control that a receiver may choose, by their names in control messages."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..errors import UsageError

Soft: TypeAlias = Literal["queue", "discard", "block", "error"]
Hard: TypeAlias = Literal["discard", "block", "error"]
Order: TypeAlias = Literal["queue", "stack", "random"]

SOFT: tuple[Soft, ...] = ("queue", "discard", "block", "error")
"""Actions for a message that the kernel does not take, while the queue has room."""
HARD: tuple[Hard, ...] = ("discard", "block", "error")
"""Actions for it when the queue is full."""
ORDER: tuple[Order, ...] = ("queue", "stack", "random")
"""Orders in which messages leave the queue: the oldest, the newest, or the largest first."""


def mode_keys(soft: str | None, hard: str | None, order: str | None) -> list[bytes]:
    """Make the control messages that choose these modes of flood control; ``None`` chooses nothing.

    Raises :exc:`~sbuslib.errors.UsageError` for an unknown mode.
    """
    from . import control  # which needs msgspec; parsers of arguments, which need these names, are made without it

    choices: list[tuple[str, str | None, tuple[str, ...], bytes]] = [
        ("soft", soft, SOFT, control.SOFT),
        ("hard", hard, HARD, control.HARD),
        ("order", order, ORDER, control.ORDER),
    ]
    for name, choice, known, _ in choices:
        if choice is not None and choice not in known:
            raise UsageError(f"{name} is one of {', '.join(known)}, not {choice!r}")
    return [key + choice.encode() for _, choice, _, key in choices if choice is not None]
