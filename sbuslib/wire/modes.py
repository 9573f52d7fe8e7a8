"""The modes of flood control that a receiver may choose, by the names that they have in control messages."""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = ["HARD", "ORDER", "SOFT", "Hard", "Order", "Soft"]

Soft: TypeAlias = Literal["queue", "discard", "block", "error"]
Hard: TypeAlias = Literal["discard", "block", "error"]
Order: TypeAlias = Literal["queue", "stack", "random"]

SOFT: tuple[Soft, ...] = ("queue", "discard", "block", "error")
"""What happens to a message that the kernel does not take, while the queue has room."""
HARD: tuple[Hard, ...] = ("discard", "block", "error")
"""What happens to it when the queue is full."""
ORDER: tuple[Order, ...] = ("queue", "stack", "random")
"""Which message leaves the queue next: the oldest, the newest, the largest."""
