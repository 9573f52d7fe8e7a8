"""``sbus queue``: the service of a shared queue. It blocks, and never loads gevent."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from .arguments import ADDRESSES, add_address
from .console import EXIT_SUCCESS, complain, explain, on_stop, progress, tell
from .values import count, seconds, size

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
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
        "  sbus queue --ordered orders order/          one job of each key at a time\n"
        "\n" + ADDRESSES
    )
    parser.add_argument("name", metavar="NAME", help="what workers call the queue: one segment of a key")
    parser.add_argument("patterns", metavar="PATTERN", nargs="+", help="what is a job")
    add_address(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-f", "--file", metavar="FILE", help="where jobs are kept (NAME.queue in ~/.local/state/sbus)")
    where.add_argument("--memory", action="store_true", help="keep no job when this ends")
    parser.add_argument("--jobs", type=count, default=100_000, metavar="N", help="refuse more jobs than this (100000)")
    parser.add_argument("--bytes", type=size, default=2**28, metavar="SIZE", help="refuse more bytes of jobs (256M)")
    parser.add_argument(
        "--limit", type=seconds, default=60.0, metavar="TIME", help="give a job again after this time (60)"
    )
    parser.add_argument("--attempts", type=count, default=5, metavar="N", help="give a job so often at most (5)")
    parser.add_argument(
        "--dead", metavar="KEY", help="publish jobs given that often under this key and their own (queue/NAME/dead)"
    )
    parser.add_argument("--ordered", action="store_true", help="give the jobs of each key in order, one at a time")
    parser.add_argument(
        "--trust", action="append", default=[], metavar="USER", help="its processes may work, too; may be repeated"
    )
    parser.set_defaults(run=_queue)


def _queue(arguments: Namespace) -> int:
    import sqlite3
    from contextlib import nullcontext

    from ..errors import SbusError
    from ..kernel.users import resolve_user
    from ..services.queue import QueueService
    from ..services.queue_rules import Jobs
    from ..services.queue_store import Store

    jobs = Jobs(arguments.jobs, arguments.bytes, arguments.limit, arguments.attempts, ordered=arguments.ordered)
    try:
        with nullcontext() if arguments.memory else Store(arguments.file or _default_file(arguments.name)) as store:
            with progress(lambda: "waiting for a hub"):
                service = QueueService(
                    arguments.address,
                    os.fsencode(arguments.name),
                    map(os.fsencode, arguments.patterns),
                    jobs,
                    store,
                    dead=os.fsencode(arguments.dead) if arguments.dead else None,
                    trusted=map(resolve_user, arguments.trust),
                )
            on_stop(service.stop)
            tell(f"{len(jobs.jobs):,} jobs wait in {arguments.name} on {service.client.address} (Ctrl-C ends it)")
            service.run()
    except sqlite3.Error as error:
        return complain("sbus", f"jobs cannot be kept: {error}")
    except (SbusError, OSError) as error:
        return complain("sbus", explain(error, arguments.address))
    left = f"{len(jobs.jobs):,} {'lost with --memory' if arguments.memory else 'kept'}"
    tell(f"{service.accepted:,} jobs accepted, {service.refused:,} refused, {service.done:,} done, {left}")
    return EXIT_SUCCESS


def _default_file(name: str) -> str:
    """``NAME.queue`` in the folder for state: that of the systemd unit, or of the user."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = os.environ.get("STATE_DIRECTORY") or os.path.join(state, "sbus")
    os.makedirs(folder, 0o700, exist_ok=True)
    return os.path.join(folder, f"{name.replace('/', '_')}.queue")
