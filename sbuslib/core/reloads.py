"""``hub/reload``: a trusted client asks the hub to take up changed settings, and is told what came of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import gevent

from ..errors import SbusError
from ..wire import control
from .callbacks import log
from .review import Review

__all__ = ["Reloads"]

_MOST: Final = 1_024
"""Clients that may wait for an answer, as many as answers may wait for one client."""


class Reloads:
    """The clients that wait for an answer. They ask in callbacks of the event loop; a greenlet does what they ask."""

    def __init__(self, review: Review) -> None:
        self.function: Callable[[], str] | None = None
        """What takes the settings up. It returns what to tell, and raises errors of the library."""
        self._review = review
        self._waiting: list[Callable[[bytes], None]] = []  # what answers the clients that asked

    def ask(self, answer: Callable[[bytes], None]) -> None:
        """A client asks. Those that ask while a reload is under way get the answer of the next one, together."""
        if len(self._waiting) >= _MOST:
            answer(control.encode_reloaded(False, "too many clients wait for this"))
            return
        self._waiting.append(answer)
        if len(self._waiting) == 1:
            gevent.spawn(self._run)

    def end(self) -> None:
        """Another process takes the hub over, which has read its configuration already."""
        answers, self._waiting = self._waiting, []
        for answer in answers:
            answer(control.encode_reloaded(False, "another process takes the hub over"))

    def _run(self) -> None:
        while self._waiting:
            asked = len(self._waiting)
            packet = control.encode_reloaded(*self._reload())
            answers, self._waiting[:asked] = self._waiting[:asked], []
            for answer in answers:
                answer(packet)

    def _reload(self) -> tuple[bool, str]:
        """Whether the settings were taken up, and what there is to say."""
        if self.function is None:
            return False, "this hub has no configuration file"
        try:
            text = self.function()
        except (SbusError, OSError) as error:
            return False, str(error)
        except Exception as error:
            log(logging.ERROR, "a reload failed", exc_info=True)
            return False, f"{type(error).__name__}: {error}"
        self._review.done.wait()
        return True, text
