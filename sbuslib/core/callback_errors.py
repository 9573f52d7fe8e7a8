"""Error handling in callbacks of gevent's event loop: no error of the application's code leaves one."""

from __future__ import annotations

import logging

import gevent

logger = logging.getLogger("sbuslib")


def report_to_event_loop(error: BaseException) -> None:
    """Have gevent's event loop handle an error, once the callback at hand has returned.

    gevent stops the watcher whose callback raises, after which a hub would never again read from that client, or accept
    any. So no error may leave a callback. The event loop prints this one, or, for KeyboardInterrupt and SystemExit,
    raises it in the main greenlet, as it does with errors that do leave one.
    """
    loop = gevent.get_hub()
    loop.loop.run_callback(loop.handle_error, "sbuslib", type(error), error, error.__traceback__)


def log(level: int, text: str, *arguments: object, exc_info: bool = False, event: object = None) -> None:
    """Log from a callback of the event loop: what the application's logging handlers raise does not get out.

    Handlers find ``event`` in the record, as ``sbus_event``.
    """
    try:
        logger.log(level, text, *arguments, exc_info=exc_info, extra={"sbus_event": event})
    except BaseException as error:
        report_to_event_loop(error)
