"""``sbus peer``: one end of Simplest pubsub."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ..wire.text import printable
from .tcp import CERTIFICATES, add_peer_arguments, run

if TYPE_CHECKING:
    from gevent.event import Event

    from ..tcp import Peer

__all__ = ["add_arguments", "run_peer"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Run one end of Simplest pubsub, over TCP: send other peers the messages under the names that they want, and "
        "pass on messages under names that are forwarded. Both ends are equal."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus peer --listen 127.0.0.1:9014 --sub //myorg/      show what others publish; from any other program:\n"
        "      printf 'pub //myorg/chat 5 hello\\n' | nc 127.0.0.1 9014\n"
        "  sbus peer --listen :9014 --forward myorg/chat         pass //myorg/chat on as //fwd/myorg/chat\n"
        "  sbus peer --listen :0 --connect 127.0.0.1:9014 --discover myorg --who bob\n"
        "                                                        find the others from one of them\n"
        "  sbus peer --listen 0.0.0.0:9014 --tls-cert me.pem --tls-key me.key --tls-ca ours.pem\n"
        "\n" + CERTIFICATES
    )
    add_peer_arguments(parser)
    parser.add_argument(
        "--sub",
        metavar="TEXT",
        nargs="+",
        action="extend",
        default=[],
        help="show the messages whose names contain TEXT, a line each: name, tab, data; '': all",
    )
    parser.set_defaults(run=run_peer)


def run_peer(arguments: Namespace) -> int:
    """Run the command; its exit status."""

    def serve(peer: Peer, end: Event, stack: ExitStack) -> Callable[[], str | None] | None:
        if arguments.sub:
            from ..core.service import ServiceGreenlets

            inbox = stack.enter_context(peer.subscribe(*arguments.sub))

            def show() -> None:
                try:
                    for message in inbox:
                        print(f"{printable(message.name.encode())}\t{printable(message.data)}", flush=True)
                except BrokenPipeError:
                    sys.stderr.close()
                    end.set()

            output = ServiceGreenlets("output of the peer", end.set)
            stack.callback(output.check)
            output.spawn(show)
        return None

    return run(arguments, serve)
