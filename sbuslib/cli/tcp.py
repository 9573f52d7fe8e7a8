"""What ``sbus peer`` and ``sbus gateway`` share: how they listen, connect, run and end."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from .console import EXIT_SUCCESS, EXIT_USAGE, complain, explain, on_stop, tell

if TYPE_CHECKING:
    from gevent.event import Event

    from ..tcp import Peer
    from .heap import HeapTrimmer

__all__ = ["CERTIFICATES", "add_peer_arguments", "run"]

CERTIFICATES = (
    "HOST:PORT may be [IPV6]:PORT, or :PORT for this machine alone; port 0 takes a free one, which is printed. "
    "To listen for other machines, give --tls-cert, --tls-key and --tls-ca: both ends of a connection then have to "
    "show a certificate of that authority."
)


def add_peer_arguments(parser: ArgumentParser) -> None:
    """Add the options that say where a peer listens and connects."""
    parser.add_argument("--listen", metavar="HOST:PORT", help="where others may connect to")
    parser.add_argument(
        "--connect",
        metavar="HOST:PORT",
        nargs="+",
        action="extend",
        default=[],
        help="connect to these peers, and again whenever the connection is lost",
    )
    parser.add_argument(
        "--forward",
        metavar="NAME",
        nargs="+",
        action="extend",
        default=[],
        help="pass on what is published under //NAME, as copies under //fwd/NAME",
    )
    parser.add_argument("--discover", metavar="ORG", help="find the other peers of ORG, from any one of them")
    parser.add_argument("--who", metavar="NAME", help="with --discover: be known as NAME; else a random name")
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="with --discover: where others reach this peer, unless as --listen"
    )
    parser.add_argument(
        "--allow",
        metavar="NETWORK",
        nargs="+",
        action="extend",
        help="with --discover: connect to peers in these networks, or with these names, alone; else on this machine",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate of this peer (PEM)")
    parser.add_argument("--tls-key", metavar="FILE", help="private key of that certificate (PEM)")
    parser.add_argument("--tls-ca", metavar="FILE", help="certificate of the authority of all peers (PEM)")
    parser.add_argument("--tls-name", metavar="NAME", help="what certificates of others are for, if not their host")
    parser.add_argument("--insecure", action="store_true", help="listen for other machines without TLS")


def _peer(arguments: Namespace) -> Peer:
    from ..errors import UsageError
    from ..tcp import TLS, Discovery, Peer

    files = arguments.tls_cert, arguments.tls_key, arguments.tls_ca
    if any(files) and not all(files):
        raise UsageError("TLS needs all three: --tls-cert, --tls-key and --tls-ca")
    tls = TLS(*files, hostname=arguments.tls_name) if all(files) else None
    discover = None
    if arguments.discover is not None:
        options = {"who": arguments.who, "advertise": arguments.advertise, "allow": arguments.allow}
        given = {name: value for name, value in options.items() if value is not None}
        if "allow" in given:
            given["allow"] = tuple(given["allow"])
        discover = Discovery(org=arguments.discover, **given)
    elif arguments.who or arguments.advertise or arguments.allow:
        raise UsageError("--who, --advertise and --allow go with --discover")
    if arguments.listen is None and not arguments.connect:
        raise UsageError("a peer listens or connects: give --listen or --connect")
    return Peer(
        arguments.listen,
        forward=arguments.forward,
        discover=discover,
        tls=tls,
        insecure=arguments.insecure,
    )


def _trimmer_of(peer: Peer) -> HeapTrimmer:
    import gevent

    from .heap import HeapTrimmer

    return HeapTrimmer(gevent.get_hub().loop, lambda: len(peer.links), lambda: peer.statistics().queued_bytes)


def run(arguments: Namespace, serve: Callable[[Peer, Event, ExitStack], Callable[[], str | None] | None]) -> int:
    """Start the peer, call ``serve`` with it, and wait for a signal or the event. Returns the exit status.

    ``serve`` starts the work of the command, and puts what ends the work on the stack. It may return a function that,
    after the event, tells what went wrong.
    """
    import logging

    import gevent
    from gevent.event import Event

    from ..errors import SbusError, UsageError

    logging.basicConfig(format="sbus: %(message)s")
    end = Event()
    on_stop(end.set, gevent.signal_handler)
    try:
        with ExitStack() as stack:
            peer = stack.enter_context(_peer(arguments))
            peer.greenlets.failed.rawlink(lambda _: end.set())  # then leaving the stack raises
            for address in arguments.connect:
                peer.connect(address, wait=False)
            trouble = serve(peer, end, stack)
            stack.enter_context(closing(_trimmer_of(peer)))
            if peer.address:
                tell(f"listening at {peer.address} (Ctrl-C ends it)")
            end.wait()
            reason = None if trouble is None else trouble()
            return EXIT_SUCCESS if reason is None else complain("sbus", reason)
    except UsageError as error:
        complain("sbus", explain(error))
        return EXIT_USAGE
    except SbusError as error:
        return complain("sbus", explain(error))
    except OSError as error:
        return complain("sbus", explain(error, arguments.listen))
