"""Supervision of a service's greenlets: an error that none of them handles ends the service.

gevent prints the error and goes on without the greenlet, so the service would stay up and do nothing. Here it is logged
with its traceback, it ends the service, and a caller that waits for the service gets it as
:exc:`~sbuslib.errors.ServiceError`: ``serve_forever``, the end of a ``with``, or the command, which exits with 1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event

from ..errors import ServiceError

logger = logging.getLogger("sbuslib")


class Supervisor:
    """Starts the greenlets of one service; the first error that leaves one of them is kept in ``error``.

    :param name: of the service, in the log and in the error.
    :param stop: ends the service. It is called once, in a greenlet of its own, after the first error.
    """

    def __init__(self, name: str, stop: Callable[[], object]) -> None:
        self.name = name
        self.error: ServiceError | None = None  # the first that ended the service
        self.failed = Event()
        """Set once the service has been ended because of an error."""
        self._stop = stop

    def spawn(self, work: Callable[..., object], *arguments: Any) -> gevent.Greenlet[..., Any]:
        return gevent.spawn(self.run, work, *arguments)

    def run(self, work: Callable[..., object], *arguments: Any) -> None:
        """Run ``work`` in this greenlet, which other code has started, for example gevent's server."""
        try:
            work(*arguments)
        except (gevent.GreenletExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a gevent.Timeout is no Exception
            self._fail(error)

    def check(self) -> None:
        """Raise :exc:`~sbuslib.errors.ServiceError` when the service was ended by an error."""
        if self.error is not None:
            raise self.error

    def _fail(self, cause: BaseException) -> None:
        error = ServiceError(f"{self.name} ended by an unforeseen error: {type(cause).__name__}: {cause}")
        error.__cause__ = cause
        logger.critical("%s", error, exc_info=cause)
        if self.error is None:
            self.error = error
            gevent.spawn(self._end)  # not from here: stopping kills the greenlets, this one among them

    def _end(self) -> None:
        try:
            self._stop()
        finally:
            self.failed.set()
