"""``sbus broker``: a hub, and beside it the services of all queues and of last values, as one command.

Each service is a process of its own. A service in the hub's process would share its interpreter: while one stores jobs,
the other would wait.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from .arguments import Parser, add, add_address
from .console import show_status
from .daemon import add_hub_arguments, serve_hub
from .services import add_queue_rules

if TYPE_CHECKING:
    from argparse import Namespace

    from ..hub import Hub
    from .config import HubSettings

LOOK: Final = 0.25
"""Seconds between two looks at the services."""
AGAIN: Final = 5.0
"""Seconds between two starts of one service, at least."""
BEGIN: Final = 60.0
"""Seconds that the command waits for its services, before it is ready without them."""
END: Final = 10.0
"""Seconds that a service has to end, before it is killed."""

logger = logging.getLogger("sbuslib")


def add_broker(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Serve a bus in the foreground until Ctrl-C, as sbus hub does, and services beside it: all queues, as "
        "sbus queue '*' does, and with --keep last values, as sbus retain does. Each service is a process of its "
        "own, which is started again when it ends, and ends with this command.\n\n"
        "Jobs are kept in jobs.queue of the folder --store, last values in last.db. Users whom the hub "
        "trusts are trusted with the queues, too."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus broker                                       for this user and root\n"
        "  sbus broker --keep config/ --keep 'room/*/temp'\n"
        "  sbus broker -o -u www-data --trusted www-data     for the applications of another user\n"
        "  sbus broker --memory -a /tmp/bus                  nothing is kept when it ends"
    )

    add_address(parser)
    where = parser.add_mutually_exclusive_group()
    add(where, "--store FILE", "the folder where jobs and last values are kept (~/.local/state/sbus)")
    add(where, "--memory", "keep no job and no last value when this ends")
    add_queue_rules(parser)
    add(parser, "--keep PATTERN", "keep the last values of these keys; may be repeated", action="append", default=[])
    add_hub_arguments(parser, may_take_over=False)


def run_broker(arguments: Namespace) -> int:
    from ..kernel.defaults import state_folder
    from ..kernel.regular_files import make_folder
    from ..kernel.users import resolve_users
    from ..keys.own_keys import QUEUE
    from .hub import own_address

    # 1. Checks that can fail, before anything starts.
    resolve_users("--producer", [user for user in arguments.users if user != "*"])
    if not arguments.memory:
        arguments.store = arguments.store or state_folder()
        make_folder(arguments.store)

    # 2. The hub, and its services once it listens. All are ready when the command prints that it listens.
    hubs: list[Hub] = []
    services = Services()

    def begin(address: str) -> None:
        (hub,) = hubs
        services.start(commands(arguments, hub.address))
        services.wait_for(hub, [QUEUE, *arguments.keep])
        show_status(f"listening at {address} (Ctrl-C ends it)")

    def note(hub: Hub, settings: HubSettings) -> None:
        arguments.trusted = [*settings.trusted]  # with those of the configuration file
        hubs.append(hub)

    try:
        return serve_hub("sbus", arguments, on_ready=begin, on_hub=note, default=own_address(arguments))
    finally:
        services.stop()


def commands(arguments: Namespace, address: str) -> list[list[str]]:
    """Return the command lines of the services."""
    # 1. The queues.
    queue = ["queue", "-q", "-a", address, "--limit", f"{arguments.limit}", "--attempts", f"{arguments.attempts}"]
    for user in arguments.trusted:
        queue += ["--trusted", f"{user}"]
    for user in arguments.users:
        queue += ["--producer", user]
    if arguments.sync is not None:
        queue += ["--sync", f"{arguments.sync}"]
    queue += ["--memory"] if arguments.memory else ["--store", os.path.join(arguments.store, "jobs.queue")]
    found = [[*queue, "*"]]

    # 2. Last values, where some are to be kept.
    if arguments.keep:
        kept = [] if arguments.memory else ["--store", os.path.join(arguments.store, "last.db")]
        found.append(["retain", "-q", "-a", address, *kept, "--", *map(os.fsdecode, arguments.keep)])
    return found


class Services:
    """Commands that run beside the hub of this process, started again when they end."""

    def __init__(self) -> None:
        self._commands: list[list[str]] = []  # of the services
        self._running: list[subprocess.Popen[bytes]] = []  # its processes, in the same order
        self._started: list[float] = []  # when each was started last
        self._end: Callable[[], object] = lambda: None  # ends the greenlet that watches them

    def start(self, lines: list[list[str]]) -> None:
        """Start them, and watch them from now on, in a greenlet."""
        import gevent

        self._commands = lines
        self._running = [_start(line) for line in lines]
        self._started = [monotonic()] * len(lines)
        self._end = partial(gevent.spawn(self._watch).kill, block=False)

    def wait_for(self, hub: Hub, names: list[bytes]) -> None:
        """Wait until the queues and the patterns of last values have a service. Not for one that has ended."""
        import gevent

        from ..clients.recipes.last import question_key
        from ..clients.recipes.queue import queue_key

        until = monotonic() + BEGIN
        with hub.client() as client:
            separator = client.hub.separator
            first, *patterns = names
            keys = [queue_key(first, separator, b"submit"), *(question_key(one, separator) for one in patterns)]
            while not all(map(client.hub.is_wanted, keys)):
                if monotonic() > until or hub.closed or any(one.poll() is not None for one in self._running):
                    return
                gevent.sleep(0.02)

    def _watch(self) -> None:
        import gevent

        while True:
            gevent.sleep(LOOK)
            now = monotonic()
            for number, process in enumerate(self._running):
                if process.poll() is not None and now >= self._started[number] + AGAIN:
                    what = " ".join(self._commands[number][:1])
                    logger.warning("sbus %s has ended with status %s, and is started again", what, process.returncode)
                    self._running[number], self._started[number] = _start(self._commands[number]), now

    def stop(self) -> None:
        """End them, and wait until they have ended. Accepted jobs are stored by then."""
        self._end()
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(line: list[str]) -> subprocess.Popen[bytes]:
    """Start a command of ``sbus``. Ctrl-C of a terminal is not for it: it ends when this process ends it, or dies."""
    # -P: nothing is loaded from the working directory.
    command = [sys.executable, "-P", "-m", "sbuslib.cli.broker", str(os.getpid()), *line]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)


def _run_service(parent: int, line: list[str]) -> int:
    """Run a service, in its own process."""
    from ..kernel.forks import end_with_parent
    from .main import main

    end_with_parent(parent)
    return main(line)


if __name__ == "__main__":
    sys.exit(_run_service(int(sys.argv[1]), sys.argv[2:]))
