"""The :class:`~.lead.Lead` for asyncio, in a module of its own so that other clients do not load asyncio."""

from __future__ import annotations

import asyncio

__all__ = ["TaskLead"]


class TaskLead:
    """The lead among the tasks of one asyncio event loop."""

    def __init__(self) -> None:
        self.taken = False
        self._changed = asyncio.Event()
        self._followers = 0  # tasks that wait for the lead

    async def wait(self) -> None:
        """Wait until the lead is given back."""
        self._followers += 1
        try:
            await self._changed.wait()
        finally:
            self._followers -= 1

    def give_back(self) -> None:
        """Let another task read, and all others look whether they have what they wait for."""
        self.taken = False
        if self._followers:
            self.wake()

    def wake(self) -> None:
        """Let all tasks that wait look again."""
        self._changed.set()
        self._changed = asyncio.Event()
