"""``sbus journal record``: everything that a bus carries, into a journal. It blocks, and never loads gevent."""

from __future__ import annotations

import os
from argparse import Namespace

from .arguments import Parser, add_address
from .console import on_stop, progress, tell
from .values import seconds, size

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from typing import Any

    from ..journal.follower import Follower

__all__ = ["add_journal_record", "add_retention"]


def add_journal_record(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Record what a bus carries into a journal, a directory, until Ctrl-C or SIGTERM: everything, or what matches "
        "a pattern. Secrets are never recorded.\n\n"
        "Messages that are lost on the way are in the journal as a gap, with their number and a cause. The command "
        "ends with status 1 when the disk is full.\n\n"
        "With --last, it is a black box: it keeps so much time in memory, and records that when a message matches "
        "--on, or on SIGUSR1."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus journal record /var/lib/sbus/journal\n"
        "  sbus journal record --max-bytes 10GB --max-age 30d /var/lib/sbus/journal\n"
        "  sbus journal record -p room/ -p log/ rooms          these keys only\n"
        "  sbus journal record --last 60s --on alarm/ crash    the minute before each alarm"
    )
    parser.add_argument("directory", metavar="DIR", help="the journal's directory, made where there is none")
    add_address(parser)
    parser.add_argument(
        "-p", "--pattern", action="append", metavar="PATTERN", help="record what matches; may be repeated"
    )
    parser.add_argument(
        "--durability",
        choices=("block", "interval", "none"),
        default="block",
        help="sync after each block of messages (the default), once a second, or never",
    )
    add_retention(parser)
    parser.add_argument("--no-seal", action="store_true", help="leave sealing to sbus journal seal")
    parser.add_argument(
        "--no-hold", action="store_true", help="lose messages rather than have the hub hold publishers back"
    )
    parser.add_argument(
        "--tell-durable", action="store_true", help="publish how much is durable, under journal/durable"
    )
    parser.add_argument("--last", type=seconds, metavar="TIME", help="keep only this time, in memory: 60s, 5m")
    parser.add_argument(
        "--on", action="append", metavar="PATTERN", help="with --last: record when a message matches; may be repeated"
    )
    parser.add_argument(
        "--max-memory", type=size, default=64 << 20, metavar="SIZE", help="with --last: keep no more bytes (64MB)"
    )
    parser.hide("--max-memory", "--memory")
    parser.set_defaults(run=_record)


def add_retention(parser: Parser) -> None:
    """Add the options that say how much is kept on the disk."""
    parser.add_argument("--max-bytes", type=size, metavar="SIZE", help="delete the oldest files beyond this: 10GB")
    parser.hide("--max-bytes", "--keep-bytes")
    parser.add_argument("--max-age", type=seconds, metavar="TIME", help="delete files that are older: 12h, 30d")
    parser.hide("--max-age", "--keep-seconds")


def _record(arguments: Namespace) -> None:
    from ..errors import UsageError

    if arguments.on and arguments.last is None:
        raise UsageError("--on is for --last")
    with progress(lambda: "waiting for a hub"):
        follower = _follower(arguments)
    on_stop(follower.stop)
    kept = "" if arguments.last is None else f" the last {arguments.last:g} s of"
    tell(f"recording{kept} {follower.client.address} into {arguments.directory} (Ctrl-C ends it)")
    follower.run()
    what = "recorded" if arguments.last is None else "received"
    tell(f"{follower.received:,} messages {what}, row {follower.durable_sequence:,} is the last")


def _follower(arguments: Namespace) -> Follower:
    import signal

    from ..journal.black_box import BlackBox
    from ..journal.follower import Follower

    options: Any = {
        "patterns": tuple(map(os.fsencode, arguments.pattern or [""])),
        "hold": not arguments.no_hold,
        "durability": arguments.durability,
        "publish_durable": arguments.tell_durable,
        "keep_bytes": arguments.max_bytes,
        "keep_seconds": arguments.max_age,
        "seal": not arguments.no_seal,
    }
    if arguments.last is None:
        return Follower(arguments.address, arguments.directory, **options)
    box = BlackBox(
        arguments.address,
        arguments.directory,
        seconds=arguments.last,
        on=tuple(map(os.fsencode, arguments.on or [])),
        most_bytes=arguments.max_memory,
        on_written=lambda count: tell(f"{count:,} messages recorded"),
        **options,
    )
    signal.signal(signal.SIGUSR1, lambda *_: box.trigger())
    return box
