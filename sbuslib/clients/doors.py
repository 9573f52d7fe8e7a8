"""The doors of one client: its own, and the connections to those of others. See :mod:`sbuslib.doors`."""

from __future__ import annotations

from threading import Lock

from ..doors.asking import Asker, Sleep, WaitReadable
from ..doors.door import Door
from ..limits import ClientLimits

__all__ = ["Doors"]


class Doors:
    """What one client has of doors.

    :param folder: where its own is made, and where those are that are not in the abstract namespace.
    """

    def __init__(self, wait_readable: WaitReadable, sleep: Sleep, folder: str | None, limits: ClientLimits) -> None:
        self.asker = Asker(wait_readable, sleep, folder)
        """Asks at the doors of others."""
        self._folder = folder
        self._limits = limits
        self._lock = Lock()  # over the next
        self._own: Door | None = None  # made by the first offer

    @property
    def own(self) -> Door:
        """The client's own. Raises :exc:`OSError`."""
        with self._lock:
            if self._own is None:
                self._own = Door(self._folder, self._limits)
            return self._own

    def close(self) -> None:
        """Hand out nothing any more, and ask for nothing."""
        self.asker.close()
        if self._own is not None:
            self._own.close()
