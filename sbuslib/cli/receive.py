"""``sbus receive``: files that others send, into a folder."""

from __future__ import annotations

import errno
import os
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from .arguments import ADDRESSES, add_address
from .console import EXIT_SUCCESS, complain, explain, on_stop, tell
from .values import count, seconds, size

if TYPE_CHECKING:
    from ..blocking import Client

__all__ = ["add_arguments"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Why one file cannot be written, and another may be."""


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Receive the files that are sent under matching keys, and print the path of each once it is whole and checked. "
        "No file is ever replaced: one of the same name gets a number. Names that lead out of the folder are not used."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus receive 'files/*' --into ~/incoming\n"
        "  sbus receive -n 1 --timeout 1m --most 10M files/report\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument("patterns", metavar="PATTERN", nargs="+", help="pattern of routing keys")
    parser.add_argument("--into", metavar="DIR", default=".", help="where the files go; else here")
    parser.add_argument("-n", "--count", type=count, metavar="N", help="exit after N files")
    parser.add_argument("--most", type=size, metavar="SIZE", default=1024**3, help="take no larger file (1G)")
    parser.add_argument(
        "--timeout", type=seconds, metavar="TIME", help="exit with status 1 when no file is whole for so long"
    )
    parser.set_defaults(run=_receive)


def _receive(arguments: Namespace) -> int:
    from ..errors import PeerError
    from . import messages
    from .tables import plain

    def stop() -> None:
        raise KeyboardInterrupt

    def receive(client: Client) -> None:
        on_stop(stop)  # so that nothing is left of what is not whole
        with client.receive_large(
            *map(os.fsencode, arguments.patterns), folder=arguments.into, most=arguments.most
        ) as files:
            tell("ready to receive (Ctrl-C ends it)")
            left = arguments.count
            while left is None or left:
                try:
                    received = files.receive(timeout=arguments.timeout)
                except (PeerError, OSError) as error:
                    if isinstance(error, OSError) and error.errno not in _FULL:
                        raise
                    complain("sbus", explain(error, arguments.into))  # and take the next: it may be smaller
                else:
                    print(plain(str(received.file)), flush=True)
                    left = left and left - 1

    try:
        # With senders, no other user can put parts into a file.
        return messages.run(receive, arguments.address, senders=True, **messages.RECONNECTING)
    except KeyboardInterrupt:  # how it ends without a count
        return EXIT_SUCCESS
