"""Exit statuses, signals, errors and status lines on standard error, for all programs."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from contextlib import contextmanager, suppress
from functools import partial

from ..wire.text import escape

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Sequence
    from typing import Final, NoReturn

EXIT_SUCCESS = 0
EXIT_FAILURE = 1
"""An error outside the program: no hub, refused, connection lost, address in use."""
EXIT_USAGE = 2
"""The arguments are wrong, or a file that they name. argparse uses this status, too."""
CONFIG_PLACE = "/etc/sbus.toml"
"""Where the hub of the machine has its configuration file."""
EXTRAS: Final = {
    "duckdb": "query",
    "jinja2": "report",
    "numpy": "seal",
    "pandas": "query",
    "prometheus_client": "metrics",
    "pyarrow": "seal",
    "pyspark": "spark",
}
"""The extra of sbuslib that installs a package which a command may miss."""
_LOOK_SECONDS = 0.5
"""Seconds after which a signal is seen that came just before the main thread began to wait: it does not end a wait."""
STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a program that serves."""
_HELD: Final = (signal.SIGHUP, signal.SIGUSR1)
"""Signals at which some programs do something and go on, and which end a program that is not ready for them."""


def hold_signals() -> None:
    """Let signals at which some programs go on wait: the first thing that a program does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release_signals() -> None:
    """Let them come: they are handled from now on, or are to end this program."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def finish(program: str, arguments: Namespace, failure: BaseException | None = None) -> int:
    """Run a parsed command and return the exit status. Errors become one line on standard error here, nowhere else.

    With a ``failure`` the error came before, and nothing is run. An unforeseen error ends the program with a traceback
    and the name of the command. Held signals come now, unless the command has ``holds_signals``, and releases them when
    it handles them.
    """
    from ..errors import JournalError, SbusError, ServiceError, UsageError

    if not vars(arguments).get("holds_signals"):
        release_signals()
    set_verbosity(program, verbose=arguments.verbose, quiet=arguments.quiet)
    warnings.showwarning = partial(_show_warning, program)
    if (stdout := sys.stdout) is not None and hasattr(stdout, "reconfigure"):
        stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
    try:
        if failure is not None:
            raise failure
        return arguments.run(arguments) or EXIT_SUCCESS
    except KeyboardInterrupt:
        end_by(signal.SIGINT)
    except UsageError as error:
        complain(program, explain(error))
        return EXIT_USAGE
    except (SbusError, OSError) as error:
        address = None if isinstance(error, (JournalError, ServiceError)) else vars(arguments).get("address")
        return complain(program, explain(error, address) + advise(error, arguments))
    except Exception as error:
        if isinstance(error, ImportError) and (extra := EXTRAS.get((error.name or "").partition(".")[0])):
            return complain(program, f"{error.name} is missing: pip install 'sbuslib[{extra}]'")
        if type(error).__module__ == "sqlite3":
            return complain(program, f"{arguments.store}: {error}")
        import traceback

        traceback.print_exc()
        command = vars(arguments).get("command") or program
        return complain(program, f"{command} ended by an unforeseen error: {type(error).__name__}: {error}")


def _show_warning(program: str, warning: Warning | str, *_: object) -> None:
    complain(program, str(warning))


def end_by(number: int) -> NoReturn:
    """End this process by a signal, so that its parent sees that as the cause."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    raise AssertionError("the signal was blocked")


def on_stop(
    stop: Callable[[], object],
    install: Callable[[int, Callable[..., object]], object] = signal.signal,
    but: Sequence[int] = (),
) -> None:
    """Have ``stop`` called at the signals that stop this process, ``but`` for some.

    A signal that was ignored when the process started stays ignored: a hangup under nohup(1), and Ctrl-C in a
    background job of a shell. ``install`` is ``gevent.signal_handler`` for programs that run gevent's event loop.
    """
    for number in (one for one in STOPPING if one not in but):
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            install(number, lambda *_: stop())


def yield_to_ctrl_c() -> None:
    """Let Ctrl-C end this process at once, without a message.

    Where Ctrl-C was ignored when the process started, as in a background job of a shell, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def yield_to_signals() -> None:
    """Let Ctrl-C and a closed pipe end this process at once, without a message.

    Only for a program that writes to nothing but its standard output and to hubs. The kernel signals a closed pipe for
    a socket of another library, and for the standard input of a command, as well: it would end the program.
    """
    yield_to_ctrl_c()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def begin_to_show() -> None:
    """Prepare a command that writes to standard output. Raises :exc:`OSError` where that is closed."""
    yield_to_signals()
    if sys.stdout is None:
        raise OSError("standard output is closed")


def wait_for_ctrl_c(wait: Callable[[], object]) -> None:
    """Call ``wait`` in a thread until it ends, or a signal comes that stops this process. Passes on its errors.

    A signal handler must not raise: ``wait`` may hold a lock of a client then, and the client could never be closed.
    """
    import threading
    from queue import Empty, SimpleQueue

    ended: SimpleQueue[BaseException | None] = SimpleQueue()  # its put() is safe in a signal handler

    def run() -> None:
        try:
            wait()
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)

    on_stop(lambda: ended.put(None))
    threading.Thread(target=run, name="wait", daemon=True).start()
    while True:
        with suppress(Empty):
            error = ended.get(timeout=_LOOK_SECONDS)
            break
    if error is not None:
        raise error


def explain(error: BaseException, address: str | None = None) -> str:
    """Describe an error in one line, which names the address when one is given."""
    from ..errors import NoHubError, UsageError
    from ..kernel.advice import advise_address
    from ..kernel.defaults import default_addresses

    text = str(error)
    if isinstance(error, NoHubError) and not error.is_advised:
        with suppress(UsageError):  # the default is another user's, and was not tried
            text += f"; {advise_address(address)}" if (address or default_addresses()[0]) in text else ""
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
        if error.filename is not None:
            address = str(error.filename)  # the error names its own file
    if address is not None and address not in text:
        text = f"{address}: {text}"
    return "".join(character if character.isprintable() else escape(character) for character in text)


def advise(error: BaseException, arguments: Namespace) -> str:
    """Return text that follows an error and names the option that helps; empty if none does."""
    import shlex

    from ..reasons import Reason

    # By name: of an error in a worker, Spark passes on only the text.
    text, given = f"{type(error).__name__}: {error}", vars(arguments)
    if "CorruptJournalError" in text and given.get("on_corrupt") == "error":
        return "; --skip-corrupt goes on after it"
    refused: dict[str, str] = {Reason.PUBLISHING_REFUSED: "publish", Reason.SUBSCRIPTION_REFUSED: "subscribe"}
    if verb := refused.get(getattr(error, "reason", None) or ""):
        key = shlex.quote(os.fsdecode(given.get("key") or "KEY"))
        return (
            f"; sbus hub explain {os.geteuid()} {verb} {key} shows the rule, with --config FILE unless its hub reads "
            f"{CONFIG_PLACE}"
        )
    return ""


def complain(program: str, text: str) -> int:
    """Print ``text`` on standard error. Returns the exit status of a failure."""
    with suppress(OSError):  # standard error may be closed
        print(f"{program}: {text}", file=sys.stderr, flush=True)
    return EXIT_FAILURE


_verbosity = {"quiet": False}


def set_verbosity(program: str, *, verbose: bool = False, quiet: bool = False) -> None:
    """Choose what goes to standard error besides errors: with ``verbose`` the log too, with ``quiet`` nothing."""
    _verbosity["quiet"] = quiet
    if verbose:
        import logging

        logging.basicConfig(format=f"{program}: %(message)s")
        logging.getLogger("sbuslib").setLevel(logging.DEBUG)


def shows_status() -> bool:
    """Whether status lines go to standard error: unless the user chose ``--quiet``."""
    return not _verbosity["quiet"]


def show_status(text: str) -> None:
    """Print a status line on standard error, unless the user chose ``--quiet``."""
    if not _verbosity["quiet"]:
        complain("sbus", text)


@contextmanager
def progress(text: Callable[[], str]) -> Iterator[None]:
    """Show ``text()`` as a status line after 3 seconds, and then every 10, until the block ends."""
    import threading

    ended = threading.Event()

    def run() -> None:
        pause = 3.0
        while not ended.wait(pause):
            show_status(f"{text()} ...")
            pause = 10.0

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
