"""Sealer of a recorder's ended segments: a process of its own, at low priority, one at a time.

The process is ``sbus journal seal``. Segments that it does not finish stay as they are: readers can read unsealed
segments, and the next process seals them.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import suppress
from importlib.util import find_spec

logger = logging.getLogger("sbuslib")


class Sealer:
    """Starts the process where pyarrow is installed. Only the thread of the writer uses it."""

    def __init__(self, directory: str, *, is_wanted: bool = True) -> None:
        self._directory = directory
        #: The process, while there is one. It is our child, so its id is not used again before we wait for it.
        self._process: int | None = None
        #: Whether a segment has ended since the process was started, which may not have seen it.
        self._again = False
        can_start = bool(sys.executable) and not hasattr(sys, "frozen")
        #: Whether a process is to seal, and can: there is an interpreter to start, and pyarrow.
        self._is_possible = is_wanted and can_start and find_spec("pyarrow") is not None

    def start(self) -> None:
        """Seal ended segments, now or once the running process has ended."""
        self.look()
        self._again = self._process is not None
        if self._process is None and self._is_possible:
            command = [sys.executable, "-P", "-m", "sbuslib", "journal", "seal", "-q", self._directory]
            path = os.pathsep.join(filter(None, sys.path))
            actions = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)]
            environment = {**os.environ, "PYTHONPATH": path}
            try:
                self._process = os.posix_spawn(sys.executable, command, environment, file_actions=actions)
            except OSError as error:  # the machine has no room for a process just now
                logger.warning("%s: cannot be sealed now: %s", self._directory, error)

    def look(self) -> None:
        """Check whether the process has ended, and start the next one if a segment has ended meanwhile."""
        if self._process is None:
            return
        status = 0
        with suppress(ChildProcessError):  # the embedding program waits for all of its children
            ended, status = os.waitpid(self._process, os.WNOHANG)
            if not ended:
                return
        self._process = None
        if status:
            logger.warning("%s: sealing ended with status %d", self._directory, os.waitstatus_to_exitcode(status))
        elif self._again:
            self.start()

    def stop(self) -> None:
        """End the process. The next recorder, or ``sbus journal seal``, seals the rest."""
        if self._process is not None:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._process, signal.SIGTERM)
                os.waitpid(self._process, 0)
            self._process = None
