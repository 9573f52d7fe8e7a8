"""``sbus-relay``: a hub in the foreground that is joined to its parent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .arguments import Parser, add, add_address, add_patterns, add_program_options
from .console import finish, hold_signals
from .daemon import ADDRESS_FORMS, add_hub_arguments, serve_hub

if TYPE_CHECKING:
    from argparse import Namespace

    from ..hub import Hub
    from ..relay import Relay
    from .config import HubSettings

_DESCRIPTION = """\
Serve a message bus that is joined to a parent: a hub like sbusd(1) in the foreground, the child of another hub. \
Messages of its clients go up if a client above wants them, messages that its clients want come down, and secret \
messages reach clients anywhere in the tree.

While the parent is away, it goes on serving its own clients, keeps what has to go up, within a bound, and tries to \
connect until the parent is back. It cannot be taken over by a new process yet, as a hub of sbusd(1) can."""

_EPILOG = f"""\
{ADDRESS_FORMS}

exit status:
  0   a signal has stopped it, or its last client has left
  1   it cannot listen, or an unforeseen error has ended the relay: a line on
      standard error says why; a parent that is not there is no error
  2   the arguments are wrong

examples:
  sbus-relay --upstream /run/sbus.socket --listen /tmp/bus
                              all messages cross that a client wants
  sbus-relay --upstream /run/sbus.socket --listen $XDG_RUNTIME_DIR/sbus/bus \\
      --import host/ --export apps/
                              these patterns only, and secrets"""


def build_parser() -> Parser:
    """Build the parser of ``sbus-relay``."""
    parser = Parser(prog="sbus-relay", description=_DESCRIPTION, epilog=_EPILOG)
    add(parser, "--upstream ADDRESS", "the parent; may be repeated, then they are tried in order", action="append")
    add_address(parser, "--listen", metavar="WHERE", help="the address where to listen, unless the file has it")
    add_patterns(parser, "export", "let only what matches go up, besides secrets", file_may_have=True)
    add_patterns(parser, "import", "let only what matches go down, besides secrets", file_may_have=True)
    add(parser, "--upstream-user USER", "join only a hub that runs as USER, by name or id")
    add_hub_arguments(parser, may_take_over=False)
    add_program_options(parser)
    parser.set_defaults(run=lambda arguments: _run_relay(arguments, parser))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``sbus-relay`` and return its exit status."""
    hold_signals()
    return finish("sbus-relay", build_parser().parse_args(argv))


def _run_relay(arguments: Namespace, parser: Parser) -> int:
    if arguments.config is None and not (arguments.upstream and arguments.address):
        parser.error("--upstream and --listen are required, unless --config is given")
    relays: list[Relay] = []

    def join(hub: Hub, settings: HubSettings) -> Relay:
        import gevent

        from ..relay import Relay

        relay = Relay(
            hub,
            settings.upstream,
            export=settings.export,
            import_=settings.import_,
            upstream_user=settings.upstream_user,
        ).start()
        relay.service.failed.rawlink(lambda _: gevent.spawn(hub.stop))
        relays.append(relay)
        return relay

    status = serve_hub("sbus-relay", arguments, on_hub=join, default=None)
    for relay in relays:
        if relay.service.error is not None:
            raise relay.service.error
    return status


if __name__ == "__main__":
    sys.exit(main())
