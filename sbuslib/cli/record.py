"""``sbus record``: everything that a bus carries, into a journal. It blocks, and never loads gevent."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from .arguments import ADDRESSES, add_address
from .console import EXIT_SUCCESS, complain, explain, on_stop, progress, tell
from .values import seconds, size

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Record what a bus carries into a journal, a directory, until Ctrl-C or SIGTERM: everything, or what matches "
        "a pattern. Secrets are never recorded.\n\n"
        "Messages that are lost on the way are in the journal as a gap, with their number and a cause. The command "
        "ends with status 1 when the disk is full."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus record /var/lib/sbus/journal\n"
        "  sbus record --keep-bytes 10G --keep-seconds 30d /var/lib/sbus/journal\n"
        "  sbus record -p room/ -p log/ rooms          these keys only\n"
        "\n" + ADDRESSES
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
    parser.add_argument("--keep-bytes", type=size, metavar="SIZE", help="delete the oldest beyond this: 500M, 10G")
    parser.add_argument("--keep-seconds", type=seconds, metavar="TIME", help="delete what is older: 3600, 12h, 30d")
    parser.add_argument(
        "--no-hold", action="store_true", help="lose messages rather than have the hub hold publishers back"
    )
    parser.add_argument(
        "--tell-durable", action="store_true", help="publish how much is durable, under journal/durable"
    )
    parser.set_defaults(run=_record)


def _record(arguments: Namespace) -> int:
    from ..errors import SbusError
    from ..journal.follower import Follower

    patterns = tuple(map(os.fsencode, arguments.pattern or [""]))
    try:
        with progress(lambda: "waiting for a hub"):
            follower = Follower(
                arguments.address,
                arguments.directory,
                patterns=patterns,
                hold=not arguments.no_hold,
                durability=arguments.durability,
                publish_durable=arguments.tell_durable,
                keep_bytes=arguments.keep_bytes,
                keep_seconds=arguments.keep_seconds,
            )
        on_stop(follower.stop)
        tell(f"recording {follower.client.address} into {arguments.directory} (Ctrl-C ends it)")
        follower.run()
    except (SbusError, OSError) as error:
        return complain("sbus", explain(error, arguments.address))
    tell(f"{follower.received:,} messages recorded, row {follower.durable_sequence:,} is the last")
    return EXIT_SUCCESS
