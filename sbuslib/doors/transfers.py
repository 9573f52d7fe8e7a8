"""A file that is handed out: what each of its receivers says, and what is known of it then. No input or output.

======================================  ===========  =========
a receiver                              before       after
======================================  ===========  =========
asks with the token                     any          copying
says ``yet``, or is silent for a while  copying      copying
says ``got``: its copy is whole         copying      done
says ``bad``, and why                   copying      failed
ends its connection                     copying      failed
is silent for too long                  copying      failed
======================================  ===========  =========

Anything else changes nothing. Only a failure at a receiver of our own user may end a transfer early: a stranger that
came first cannot keep a file from those who come after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from ..wire.offers import ASK, COPYING, HAVE

__all__ = ["Received", "Sent", "Transfer"]

MOST_FAILED: Final = 256
"""Receivers that failed and of which the reason is kept."""
LONGEST_REASON: Final = 200
"""Characters of a reason that a receiver gives."""


class Sent(msgspec.Struct, frozen=True):
    """How many ``receivers`` have a file, and why each of the others ``failed``."""

    receivers: int
    failed: tuple[str, ...] = ()


class Received(msgspec.Struct, frozen=True):
    """A file that came whole. ``file`` is its path, or the open file where no folder was given."""

    key: bytes
    name: str
    size: int
    file: Any
    sender: bytes | None = None


class Transfer:
    """A file, from when it is offered until its sender takes it back.

    The thread of the door calls :meth:`hear` and :meth:`leave` under the lock of the door, and neither of them once the
    door has given the file back. The sender calls the rest.
    """

    def __init__(self, fd: int, changed: Callable[[], object]) -> None:
        self.fd = fd
        self.copying: dict[int, float] = {}
        """When each receiver that copies was heard last, by the number of its connection."""
        self.done = 0
        """Receivers that have it."""
        self.failed: list[str] = []
        """Why others have not."""
        self.refused = 0
        """How many of those are of our own user."""
        self._changed = changed  # tells the sender to look

    def hear(self, number: int, word: bytes, why: str, is_ours: bool, now: float) -> None:
        """A receiver asks, or says how it goes on."""
        if word == ASK or (word == COPYING and number in self.copying):
            self.copying[number] = now
        elif word == HAVE and self.copying.pop(number, None) is not None:
            self.done += 1
        else:
            self._fail(number, why, is_ours)
        self._changed()

    def leave(self, number: int, is_ours: bool) -> None:
        """The connection of this number ended."""
        self._fail(number, "a receiver left", is_ours)
        self._changed()

    def give_up(self, before: float, why: str) -> None:
        """Give up receivers that were heard last before a time."""
        for number, heard in list(self.copying.items()):
            if heard < before:
                self._fail(number, why, True)

    def _fail(self, number: int, why: str, is_ours: bool) -> None:
        if self.copying.pop(number, None) is None:
            return
        self.refused += is_ours
        if len(self.failed) < MOST_FAILED:
            self.failed.append(why[:LONGEST_REASON])
