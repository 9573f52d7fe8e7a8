"""What the programs share: how they end and how they complain."""

from __future__ import annotations

import signal
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ..wire.text import escape

__all__ = [
    "EXIT_FAILURE",
    "EXIT_SUCCESS",
    "EXIT_USAGE",
    "STOPPING",
    "advise",
    "complain",
    "explain",
    "on_stop",
    "yield_to_ctrl_c",
    "yield_to_signals",
]

EXIT_SUCCESS = 0
EXIT_FAILURE = 1
"""Something outside went wrong: no hub, refused, connection lost, address in use."""
EXIT_USAGE = 2
"""The arguments are wrong: what argparse uses."""
STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals at which what serves until it is told to stop, stops."""


def on_stop(
    stop: Callable[[], object],
    install: Callable[[int, Callable[..., object]], object] = signal.signal,
) -> None:
    """Have ``stop`` be called at the signals that stop this process.

    What was ignored when we were started stays so: a hangup for nohup(1), and Ctrl-C where a shell has put us into the
    background. ``install`` is ``gevent.signal_handler`` for what runs in gevent's event loop.
    """
    for number in STOPPING:
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            install(number, lambda *_: stop())


def yield_to_ctrl_c() -> None:
    """Let Ctrl-C end this process as it ends any other tool: at once, without a word.

    One that was ignored when we were started, as a shell does for its background jobs, stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def yield_to_signals() -> None:
    """Let Ctrl-C and a closed pipe end this process at once, without a word."""
    yield_to_ctrl_c()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def explain(error: BaseException, address: str | None = None) -> str:
    """What went wrong in one line, which names the address when one is given."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
        if error.filename is not None:
            address = str(error.filename)  # a file of its own, which then is what to name
    if address is not None and address not in text:
        text = f"{address}: {text}"
    return "".join(character if character.isprintable() else escape(character) for character in text)


def advise(error: BaseException, arguments: Namespace) -> str:
    """The option of a command that helps against an error, as what follows it; else nothing."""
    # By name: Spark hands on no more than the text of what went wrong in a worker.
    damaged = "CorruptJournalError" in f"{type(error).__name__}: {error}"
    return "; --skip-corrupt goes on after it" if damaged and vars(arguments).get("skip_corrupt") is False else ""


def complain(program: str, text: str) -> int:
    """Say ``text`` on standard error; the exit status that goes with it."""
    with suppress(OSError):  # nobody may be there to read it
        print(f"{program}: {text}", file=sys.stderr, flush=True)
    return EXIT_FAILURE
