"""State of one file transfer, per receiver. No input or output.

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

Anything else changes nothing. Only a failure at a receiver of our own user may end a transfer early: so a stranger that
comes first cannot keep a file from later receivers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import msgspec

from ...errors import PeerError
from ...limits import check_count
from ...wire.offers import ASK, COPYING, HAVE

MOST_FAILED: Final = 256
"""Failed receivers whose reason is kept."""
LONGEST_REASON: Final = 200
"""Characters of a reason that a receiver gives."""


class Sent(msgspec.Struct, frozen=True):
    """How many ``receivers`` have a file, and why each of the others ``failed``."""

    receivers: int
    failed: tuple[str, ...] = ()


class ReceivedFile(msgspec.Struct, frozen=True):
    """A file that came whole. ``file`` is its path, or the open file where no folder was given."""

    key: bytes
    name: str
    size: int
    file: Any
    sender: bytes | None = None


class Transfer:
    """A file, from when it is offered until its sender takes it back. Times are in seconds, of any clock.

    The thread of a descriptor store calls :meth:`hear` and :meth:`leave` under the lock of the descriptor store, and
    neither of them once the descriptor store has given the file back. The sender calls the rest.

    :param receivers: how many are to get it.
    :param timeout: seconds for which they may be silent, or not come.
    :param now: when it begins.
    :param fd: the file, in a descriptor store.
    :param changed: wakes the sender after a change.
    """

    def __init__(
        self, receivers: int, timeout: float, now: float, fd: int = -1, changed: Callable[[], object] = lambda: None
    ) -> None:
        check_count(receivers, "receivers")

        self.fd = fd
        self.copying: dict[Hashable, float] = {}
        """Time of the last report of each receiver that copies, by its name or the number of its connection."""
        self.done = 0
        """Receivers that have it."""
        self.failed: list[str] = []
        """Reasons of failed receivers."""
        self.refused = 0
        """How many of those are of our own user."""
        self._receivers = receivers
        self._timeout = timeout
        self._begun = now
        self._changed = changed

    # -- the descriptor store's side ----------------------------------------------------------------------------

    def hear(self, who: Hashable, word: bytes, why: str, is_ours: bool, now: float) -> None:
        """Act on a receiver's request or report."""
        if word == ASK or (word == COPYING and who in self.copying):
            self.copying[who] = now
        elif word == HAVE and self.copying.pop(who, None) is not None:
            self.done += 1
        else:
            self._fail(who, why, is_ours)
        self._changed()

    def leave(self, who: Hashable, is_ours: bool) -> None:
        """Note that the connection of this number ended."""
        self._fail(who, "a receiver left", is_ours)
        self._changed()

    def _fail(self, who: Hashable, why: str, is_ours: bool) -> None:
        if self.copying.pop(who, None) is None:
            return
        self.refused += is_ours
        if len(self.failed) < MOST_FAILED:
            self.failed.append(why[:LONGEST_REASON])

    # -- the sender's side --------------------------------------------------------------------------

    def is_over(self, now: float) -> bool:
        """Give up silent receivers. Returns whether enough have the file, or all that came failed. Raises
        :exc:`TimeoutError`.
        """
        for who, heard in list(self.copying.items()):
            if now - heard > self._timeout:
                self._fail(who, f"a receiver did not go on for {self._timeout:g} s", True)

        if self.done >= self._receivers:
            return True
        if self.copying:
            return False
        if self.done + self.refused >= self._receivers:
            return True
        if now - self._begun > self._timeout:
            why = "".join(f"; {why}" for why in sorted(set(self.failed)))
            few = f"{self.done} of {self._receivers} receivers took the file within {self._timeout:g} s"
            raise TimeoutError(few + why)
        return False

    def result(self, what: str) -> Sent:
        """Return the result. Raises :exc:`~sbuslib.errors.PeerError` if nobody has it."""
        if not self.done:
            raise PeerError(f"nobody has {what}: {', '.join(sorted(set(self.failed)))}")
        return Sent(self.done, tuple(self.failed))
