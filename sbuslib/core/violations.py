"""Misbehaviour, told once and counted after: what keeps a hostile client from filling the log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable

import gevent

__all__ = ["Breaches", "log", "tell_event_loop"]


def tell_event_loop(error: BaseException) -> None:
    """Have gevent's event loop handle an error, once the callback at hand has returned.

    gevent stops the watcher whose callback raises, after which a hub would never again read from that client, or accept
    any. So no error may leave a callback. The event loop prints this one, or, for KeyboardInterrupt and SystemExit,
    raises it in the main greenlet, as it does with errors that do leave one.
    """
    loop = gevent.get_hub()
    loop.loop.run_callback(loop.handle_error, "sbuslib", type(error), error, error.__traceback__)


def log(logger: logging.Logger, level: int, text: str, *arguments: object, exc_info: bool = False) -> None:
    """Log from a callback of the event loop: what the application's logging handlers raise does not get out."""
    try:
        logger.log(level, text, *arguments, exc_info=exc_info)
    except BaseException as error:
        tell_event_loop(error)


class Breaches:
    """Counts breaches by reason, and says which of them to log: the first of each reason and culprit."""

    def __init__(self, remembered: int) -> None:
        self.counts: Counter[str] = Counter()
        self._remembered = remembered
        self._told: set[tuple[str, Hashable]] = set()

    def note(self, reason: str, who: Hashable) -> bool:
        """Count one breach of ``who``, such as the id of a user; ``True`` when it is to be logged."""
        self.counts[reason] += 1
        if (reason, who) in self._told or len(self._told) >= self._remembered:
            return False
        self._told.add((reason, who))
        return True
