"""``sbus gateway``: joins the bus of this machine to those of others."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from .arguments import ADDRESSES, add_address
from .tcp import CERTIFICATES, add_peer_arguments, run

if TYPE_CHECKING:
    from gevent.event import Event

    from ..tcp import Peer

__all__ = ["add_arguments", "run_gateway"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Join the bus of this machine to those of other machines, each of which runs a gateway too. Messages whose "
        "keys match an exported pattern go out, and those that match an imported one come in; secrets never cross."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus gateway -a /tmp/a --listen :9014 --export 'room/*/temp' --import alarm/ &\n"
        "  sbus gateway -a /tmp/b --connect 127.0.0.1:9014 --export alarm/ --import 'room/*/temp' &\n"
        "  sbus sub -a /tmp/b room/ &\n"
        "  sbus pub -a /tmp/a room/1/temp 21.5         comes out at the other bus\n"
        "\n"
        "Only keys that a pattern of --export matches here, and one of --import there, cross; secret keys never do. "
        "The gateway ends, with status 1, when the bus does.\n\n" + CERTIFICATES + "\n\n" + ADDRESSES
    )
    add_address(parser)
    for option, what in (
        ("export", "messages under these keys go out"),
        ("import", "messages under these keys come in"),
    ):
        parser.add_argument(
            f"--{option}",
            dest=f"{option}_patterns",
            metavar="PATTERN",
            nargs="+",
            action="extend",
            default=[],
            help=f"{what}; '': all",
        )
    parser.add_argument(
        "--name", default="bus", help="what the joined buses are called, the same at each gateway (%(default)s)"
    )
    add_peer_arguments(parser)
    parser.set_defaults(run=run_gateway)


def run_gateway(arguments: Namespace) -> int:
    """Run the command; its exit status."""

    def serve(peer: Peer, end: Event, stack: ExitStack) -> Callable[[], str | None]:
        from ..client import Client
        from ..tcp import Gateway

        client = stack.enter_context(Client(arguments.address))
        gateway = stack.enter_context(
            Gateway(
                client,
                peer,
                export=list(map(os.fsencode, arguments.export_patterns)),
                import_=list(map(os.fsencode, arguments.import_patterns)),
                name=arguments.name,
            )
        )
        gateway.ended.rawlink(lambda _: end.set())
        return lambda: None if gateway.started else f"{client.address}: the bus has gone"

    return run(arguments, serve)
