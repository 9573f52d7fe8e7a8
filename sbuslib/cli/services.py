"""``sbus retain`` and ``sbus queue``: services that other programs of the bus use. They never load each other."""

from __future__ import annotations

import os
from argparse import Namespace

from .arguments import Parser, add_address
from .console import on_stop, progress, tell
from .values import count, seconds, size

__all__ = ["add_queue", "add_retain"]


def add_retain(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Keep the newest message of each key that matches, until Ctrl-C or SIGTERM, and tell it to sbus get and to "
        "programs that subscribe with last=True. An empty message makes a key forgotten. Secrets are never kept.\n\n"
        "When it starts, it takes over what another such service of the same patterns has. Beyond --max-keys and "
        "--max-bytes, the keys whose message is oldest are forgotten."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus retain room/ &\n"
        "  sbus pub room/1/temp 21.5\n"
        "  sbus get 'room/*/temp'\n"
        "  sbus retain --store /var/lib/sbus/last.db config/ 'room/*/temp'"
    )
    add_address(parser)
    parser.add_argument("patterns", metavar="PATTERN", nargs="+", help="pattern of routing keys; '': everything")
    parser.add_argument("--store", metavar="FILE", help="keep them in this file as well, over restarts")
    parser.hide("--store", "-f", "--file")
    parser.add_argument("--max-keys", type=count, default=100_000, metavar="N", help="keep no more keys (100000)")
    parser.hide("--max-keys", "--keys")
    parser.add_argument("--max-bytes", type=size, default=2**26, metavar="SIZE", help="keep no more (64MB)")
    parser.hide("--max-bytes", "--size")
    parser.set_defaults(run=_retain)


def _retain(arguments: Namespace) -> None:
    import sqlite3

    import gevent

    from ..errors import StateError
    from ..services.retain import Retain

    address, arguments.address = arguments.address, None  # errors tell of files, too, and name the hub themselves
    try:
        with progress(lambda: "looking for a hub, and for others that keep these patterns"):
            service = Retain(
                address,
                *map(os.fsencode, arguments.patterns),
                file=arguments.store,
                keys=arguments.max_keys,
                size=arguments.max_bytes,
            )
        on_stop(service.stop, gevent.signal_handler)
        tell(f"{len(service.kept.values):,} keys are kept of {service.client.address} (Ctrl-C ends it)")
        service.run()
    except sqlite3.Error as error:
        raise StateError(f"{arguments.store}: {error}") from None


def add_queue(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Share jobs out among workers until Ctrl-C or SIGTERM. What is published under a pattern is a job. Each job is "
        "given to the worker with most room, and given again when that worker dies, gives it back or does not "
        "acknowledge it in time.\n\n"
        "Jobs are kept in a file, and those that were accepted outlive a crash. The command ends with status 1 when "
        "the disk is full. Only processes of this user, of root, and of users that are trusted may work."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus queue mail mail/                       whatever is published under mail/\n"
        "  sbus queue --memory thumbs 'photo/*/new'    quick, and gone when it ends\n"
        "  sbus queue --ordered orders order/          one job of each key at a time"
    )
    parser.add_argument("name", metavar="NAME", help="what workers call the queue: one segment of a key")
    parser.add_argument("patterns", metavar="PATTERN", nargs="+", help="what is a job")
    add_address(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--store", metavar="FILE", help="where jobs are kept (NAME.queue in ~/.local/state/sbus)")
    parser.hide("--store", "-f", "--file")
    where.add_argument("--memory", action="store_true", help="keep no job when this ends")
    parser.add_argument("--max-jobs", type=count, default=100_000, metavar="N", help="refuse more jobs (100000)")
    parser.hide("--max-jobs", "--jobs")
    parser.add_argument(
        "--max-bytes", type=size, default=2**28, metavar="SIZE", help="refuse more bytes of jobs (256MB)"
    )
    parser.hide("--max-bytes", "--bytes")
    parser.add_argument(
        "--limit", type=seconds, default=60.0, metavar="TIME", help="give a job again after this time (60)"
    )
    parser.add_argument("--attempts", type=count, default=5, metavar="N", help="give a job so often at most (5)")
    parser.add_argument(
        "--dead", metavar="KEY", help="publish jobs given that often under this key and their own (queue/NAME/dead)"
    )
    parser.add_argument("--ordered", action="store_true", help="give the jobs of each key in order, one at a time")
    parser.add_argument(
        "--trusted", action="append", default=[], metavar="USER", help="its processes may work, too; may be repeated"
    )
    parser.hide("--trusted", "--trust")
    parser.set_defaults(run=_queue)


def _queue(arguments: Namespace) -> None:
    import sqlite3
    from contextlib import nullcontext

    from ..errors import StateError
    from ..kernel.users import resolve_user
    from ..services.queue import QueueService
    from ..services.queue_rules import Jobs
    from ..services.queue_store import Store

    jobs = Jobs(arguments.max_jobs, arguments.max_bytes, arguments.limit, arguments.attempts, ordered=arguments.ordered)
    address, arguments.address = arguments.address, None  # errors tell of files, too, and name the hub themselves
    try:
        with nullcontext() if arguments.memory else Store(arguments.store or _default_store(arguments.name)) as store:
            with progress(lambda: "waiting for a hub"):
                service = QueueService(
                    address,
                    os.fsencode(arguments.name),
                    map(os.fsencode, arguments.patterns),
                    jobs,
                    store,
                    dead=os.fsencode(arguments.dead) if arguments.dead else None,
                    trusted=map(resolve_user, arguments.trusted),
                )
            on_stop(service.stop)
            tell(f"{len(jobs.jobs):,} jobs wait in {arguments.name} on {service.client.address} (Ctrl-C ends it)")
            service.run()
    except sqlite3.Error as error:
        raise StateError(f"jobs cannot be kept: {error}") from None
    left = f"{len(jobs.jobs):,} {'lost with --memory' if arguments.memory else 'kept'}"
    tell(f"{service.accepted:,} jobs accepted, {service.refused:,} refused, {service.done:,} done, {left}")


def _default_store(name: str) -> str:
    """``NAME.queue`` in the folder for state: that of the systemd unit, or of the user."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = os.environ.get("STATE_DIRECTORY") or os.path.join(state, "sbus")
    os.makedirs(folder, 0o700, exist_ok=True)
    return os.path.join(folder, f"{name.replace('/', '_')}.queue")
