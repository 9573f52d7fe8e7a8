"""``sbus peer``: one end of Simplest pubsub."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ..errors import SbusError
from ..wire.text import printable
from .console import complain, explain
from .tables import plain
from .tcp import CERTIFICATES, add_peer_arguments, run
from .values import seconds

if TYPE_CHECKING:
    from gevent.event import Event

    from ..clients.endpoint import Files
    from ..tcp import Peer
    from ..tcp.inbox import PeerInbox

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
        "  sbus peer --connect 127.0.0.1:9014 --pub //myorg/chat hello\n"
        "                                                        publish once somebody wants it, and end\n"
        "  sbus peer --listen :9014 --retain //myorg/motd 'closed on Monday'\n"
        "                                                        for those that subscribe later, too\n"
        "  sbus peer --listen :9014 --receive //myorg/docs ~/incoming\n"
        "  sbus peer --connect 127.0.0.1:9014 --send //myorg/docs report.pdf\n"
        "                                                        a file of any size, checked\n"
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
    for option, operands, what in (
        ("pub", ("NAME", "DATA"), "publish DATA once a peer wants NAME, and end"),
        ("send", ("NAME", "FILE"), "send a file to a peer that receives files under NAME, and end"),
        ("retain", ("NAME", "DATA"), "publish DATA, and keep it for peers that subscribe to NAME later"),
        ("receive", ("TEXT", "DIR"), "put files that are sent under names with TEXT into DIR, and print their paths"),
    ):
        parser.add_argument(f"--{option}", metavar=operands, nargs=2, action="append", default=[], help=what)
    parser.add_argument(
        "--timeout", type=seconds, default=30.0, metavar="TIME", help="wait so long for a peer with --pub, --send (30)"
    )
    parser.set_defaults(run=run_peer)


def run_peer(arguments: Namespace) -> int:
    """Run the command; its exit status."""

    def serve(peer: Peer, end: Event, stack: ExitStack) -> Callable[[], str | None] | None:
        from ..core.service import ServiceGreenlets
        from ..errors import PeerError
        from ..tcp.large import receive_large, send_large

        output = ServiceGreenlets("output of the peer", end.set)
        stack.callback(output.check)
        trouble: list[str] = []

        def write(line: str) -> None:
            try:
                print(line, flush=True)
            except BrokenPipeError:
                sys.stderr.close()
                end.set()

        def show(inbox: PeerInbox) -> None:
            for message in inbox:
                write(f"{printable(message.name.encode())}\t{printable(message.data)}")

        def publish() -> None:
            try:
                for name, data in arguments.pub:
                    peer.wait_for_subscriber(name, timeout=arguments.timeout)
                    peer.publish(name, os.fsencode(data))
                for name, path in arguments.send:
                    send_large(peer, name, path, timeout=arguments.timeout)
                peer.flush(arguments.timeout)
            except (SbusError, OSError) as error:
                trouble.append(explain(error))
            end.set()

        def receive(files: Files) -> None:
            while True:
                try:
                    write(plain(str(files.receive().file)))
                except PeerError as error:
                    complain("sbus", explain(error))  # and take the next

        for name, data in arguments.retain:
            peer.retain(name, os.fsencode(data))
        if arguments.sub:
            output.spawn(show, stack.enter_context(peer.subscribe(*arguments.sub)))
        for text, folder in arguments.receive:
            output.spawn(receive, stack.enter_context(receive_large(peer, text, folder=folder)))
        if arguments.pub or arguments.send:
            output.spawn(publish)
        return lambda: trouble[0] if trouble else None

    return run(arguments, serve)
