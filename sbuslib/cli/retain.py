"""``sbus retain``: the service that keeps the newest message of each key."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from .arguments import ADDRESSES, add_address
from .console import EXIT_SUCCESS, complain, explain, on_stop, progress, tell
from .values import count, size

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Keep the newest message of each key that matches, until Ctrl-C or SIGTERM, and tell it to sbus get and to "
        "programs that subscribe with last=True. An empty message makes a key forgotten. Secrets are never kept.\n\n"
        "When it starts, it takes over what another such service of the same patterns has. Beyond --keys and --size, "
        "the keys whose message is oldest are forgotten."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus retain room/ &\n"
        "  sbus pub room/1/temp 21.5\n"
        "  sbus get 'room/*/temp'\n"
        "  sbus retain --file /var/lib/sbus/last.db config/ 'room/*/temp'\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument("patterns", metavar="PATTERN", nargs="+", help="pattern of routing keys; '': everything")
    parser.add_argument("-f", "--file", metavar="FILE", help="keep them in this file as well, over restarts")
    parser.add_argument("--keys", type=count, default=100_000, metavar="N", help="most keys (100000)")
    parser.add_argument("--size", type=size, default=2**26, metavar="SIZE", help="most bytes of messages (64M)")
    parser.set_defaults(run=_retain)


def _retain(arguments: Namespace) -> int:
    import sqlite3

    import gevent

    from ..errors import SbusError, StateError
    from ..services.retain import Retain

    try:
        with progress(lambda: "looking for a hub, and for others that keep these patterns"):
            service = Retain(
                arguments.address,
                *map(os.fsencode, arguments.patterns),
                file=arguments.file,
                keys=arguments.keys,
                size=arguments.size,
            )
        on_stop(service.stop, gevent.signal_handler)
        tell(f"{len(service.kept.values):,} keys are kept of {service.client.address} (Ctrl-C ends it)")
        service.run()
    except sqlite3.Error as error:
        return complain("sbus", f"{arguments.file}: {error}")
    except StateError as error:
        return complain("sbus", explain(error))
    except (SbusError, OSError) as error:
        return complain("sbus", explain(error, arguments.address))
    return EXIT_SUCCESS
