"""``sbus peer`` and ``sbus gateway``: ends of Simplest pubsub, over TCP."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from .arguments import Parser, add, add_address, add_patterns
from .console import complain, explain, on_stop, show_status
from .tables import plain

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from ..tcp import Peer
    from ..tcp.large import PeerFiles
    from ..tcp.peer_inbox import PeerInbox

    Work = Callable[[], object]

_CERTIFICATES = (
    "WHERE is HOST:PORT, [IPV6]:PORT, or :PORT for this machine alone; port 0 takes a free one, which is printed. "
    "To listen for other machines, give --tls-cert, --tls-key and --tls-ca: both ends of a connection then have to "
    "show a certificate of that authority."
)


def _add_ends(parser: Parser) -> None:
    """Add the options for where a peer listens and connects."""
    add(parser, "--listen WHERE", "where others may connect to")
    add(parser, "--connect WHERE...", "connect to these peers, and again whenever the connection is lost", default=[])
    add(parser, "--forward NAME...", "pass on what is published under //NAME, as copies under //fwd/NAME", default=[])

    add(parser, "--discover ORG", "find the other peers of ORG, from any one of them")
    add(parser, "--who NAME", "with --discover: be known as NAME; else a random name")
    add(parser, "--advertise WHERE", "with --discover: where others reach this peer, unless as --listen")
    add(parser, "--allow NETWORK...", "with --discover: connect only to peers in these networks; else on this machine")

    # Authentication, and encryption.
    add_tls(parser, "certificate of this peer (PEM)", "certificate of the authority of all peers (PEM)")
    add(parser, "--tls-name NAME", "name in the certificates of others, if not their host")
    add(parser, "--insecure", "listen for other machines without TLS")


def add_tls(parser: Parser, cert: str, authority: str) -> None:
    """Add the options for TLS that all commands have."""
    add(parser, "--tls-cert FILE", cert)
    add(parser, "--tls-key FILE", "private key of that certificate (PEM)")
    add(parser, "--tls-ca FILE", authority)


def add_peer(parser: Parser) -> None:
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
        "  sbus peer --listen :0 --connect 127.0.0.1:9014 --discover myorg --who bob    find the others from one\n"
        "  sbus peer --connect 127.0.0.1:9014 --pub //myorg/chat hello    publish once somebody wants it, and end\n"
        "  sbus peer --listen :9014 --retain //myorg/motd 'closed on Monday'    for those that subscribe later, too\n"
        "  sbus peer --listen :9014 --receive //myorg/docs ~/incoming\n"
        "  sbus peer --connect 127.0.0.1:9014 --send //myorg/docs report.pdf    a file of any size, checked\n"
        "  sbus peer --listen 0.0.0.0:9014 --tls-cert me.pem --tls-key me.key --tls-ca ours.pem\n"
        "\n" + _CERTIFICATES
    )

    _add_ends(parser)
    add(parser, "--sub TEXT...", "show messages whose names contain TEXT: name, tab, data; '': all", default=[])
    for option, operands, what in (
        ("pub", ("NAME", "DATA"), "publish DATA once a peer wants NAME, and end"),
        ("send", ("NAME", "FILE"), "send a file to a peer that receives files under NAME, and end"),
        ("retain", ("NAME", "DATA"), "publish DATA, and keep it for peers that subscribe to NAME later"),
        ("receive", ("TEXT", "DIR"), "put files that are sent under names with TEXT into DIR, and print their paths"),
    ):
        parser.add_argument(f"--{option}", metavar=operands, nargs=2, action="append", default=[], help=what)
    add(parser, "--timeout TIME", "wait so long for a peer with --pub, --send (30)", default=30.0)


def run_peer(arguments: Namespace) -> None:

    def begin(peer: Peer, stack: ExitStack) -> list[Work]:
        from ..tcp.large import receive_large

        for name, data in arguments.retain:
            peer.retain(name, os.fsencode(data))
        work: list[Work] = []
        if arguments.sub:
            work.append(partial(_show, stack.enter_context(peer.subscribe(*arguments.sub))))
        for text, folder in arguments.receive:
            work.append(partial(_receive, stack.enter_context(receive_large(peer, text, folder=folder))))
        if arguments.pub or arguments.send:
            work.append(partial(_publish, peer, arguments))
        return work

    _serve(arguments, begin)


def _show(inbox: PeerInbox) -> None:
    from ..wire.text import printable

    for message in inbox:
        print(f"{printable(message.name.encode())}\t{printable(message.data)}", flush=True)


def _receive(files: PeerFiles) -> None:
    from ..errors import PeerError

    while True:
        try:
            print(plain(str(files.receive().file)), flush=True)
        except PeerError as error:
            complain("sbus", explain(error))  # and take the next


def _publish(peer: Peer, arguments: Namespace) -> None:
    from ..tcp.large import send_large

    for name, data in arguments.pub:
        peer.wait_for_subscriber(name, timeout=arguments.timeout)
        peer.publish(name, os.fsencode(data))
    for name, path in arguments.send:
        send_large(peer, name, path, timeout=arguments.timeout)
    peer.flush(arguments.timeout)


def add_gateway(parser: Parser) -> None:
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
        "When the bus goes away, the gateway waits for it.\n\n" + _CERTIFICATES
    )

    add_address(parser)
    add_patterns(parser, "export", "messages under these keys go out; '': all")
    add_patterns(parser, "import", "messages under these keys come in; '': all")
    add(parser, "--name NAME", "name of the joined buses, the same at each gateway (bus)", default="bus")
    _add_ends(parser)


def run_gateway(arguments: Namespace) -> None:

    def begin(peer: Peer, stack: ExitStack) -> list[Work]:
        from ..tcp import Gateway

        gateway = Gateway(
            arguments.address,
            peer,
            export=arguments.export_patterns,
            import_=arguments.import_patterns,
            name=arguments.name,
        )
        return [stack.enter_context(gateway).serve_forever]

    _serve(arguments, begin)


def _peer(arguments: Namespace) -> Peer:
    from ..errors import UsageError
    from ..tcp import TLS, Discovery, Peer

    files = arguments.tls_cert, arguments.tls_key, arguments.tls_ca
    if any(files) and not all(files):
        raise UsageError("TLS needs all three: --tls-cert, --tls-key and --tls-ca")
    tls = TLS(*files, hostname=arguments.tls_name) if all(files) else None
    options = {
        "who": arguments.who,
        "advertise": arguments.advertise,
        "allow": arguments.allow and tuple(arguments.allow),
    }
    given = {name: value for name, value in options.items() if value}
    if given and arguments.discover is None:
        raise UsageError("--who, --advertise and --allow go with --discover")
    discover = None if arguments.discover is None else Discovery(org=arguments.discover, **given)
    if arguments.listen is None and not arguments.connect:
        raise UsageError("a peer listens or connects: give --listen or --connect")
    return Peer(arguments.listen, forward=arguments.forward, discover=discover, tls=tls, insecure=arguments.insecure)


def _serve(arguments: Namespace, begin: Callable[[Peer, ExitStack], list[Work]]) -> None:
    """Start the peer, and run the work that ``begin`` returns, each in a greenlet, until one ends or a signal comes.

    Leaving this also closes all that ``begin`` has put on the stack.
    """
    import logging

    import gevent
    from gevent.event import AsyncResult

    from ..core.supervision import Supervisor
    from ..errors import SbusError

    # 1. The end: a signal, work that is done, or an error, foreseen or not.
    logging.basicConfig(format="sbus: %(message)s")
    end: AsyncResult[None] = AsyncResult()
    on_stop(end.set, gevent.signal_handler)
    running = Supervisor("peer", end.set)

    def run(work: Work) -> None:
        try:
            work()
            end.set()
        except BrokenPipeError:  # standard output is closed
            sys.stderr.close()
            end.set()
        except (SbusError, OSError) as error:
            end.set_exception(error)

    # 2. The peer, and the work.
    with ExitStack() as stack:
        try:
            peer = stack.enter_context(_peer(arguments))
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), arguments.listen) from None
        peer.greenlets.failed.rawlink(lambda _: end.set())  # then leaving the stack raises
        stack.callback(running.check)
        for address in arguments.connect:
            peer.connect(address, wait=False)
        for work in begin(peer, stack):
            running.spawn(run, work)
        if peer.address:
            show_status(f"listening at {peer.address} (Ctrl-C ends it)")
        end.get()
