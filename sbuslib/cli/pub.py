"""``sbus pub``. A single message is published without the modules of a client, which take longest to load."""

from __future__ import annotations

import os

from .arguments import Parser, add_address
from .console import yield_to_signals
from .values import count, rate

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["add_pub"]


def add_pub(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Publish a message, or many, and return once the hub has taken all. A word that starts with a hyphen is an "
        "option, unless -- comes before it."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus pub room/1/temp 21.5\n"
        "  sbus pub -- room/1/note '-5 below'          after --, nothing is taken for an option\n"
        "  tail -f app.log | sbus pub log/app -        a message for each line, as it comes\n"
        "  sbus pub camera/1 --file picture.jpg        a file as it is\n"
        "  date | sbus pub clock --stdin               all of standard input, with its newlines\n"
        "  sbus sub --json '' | sbus pub -a /tmp/other --json\n"
        "                                              the same messages at another hub\n"
        "  sbus pub tick now --repeat 60 --rate 1      once a second, for a minute"
    )
    add_address(parser)
    parser.add_argument("key", metavar="KEY", nargs="?", help="routing key; left out with --json")
    parser.add_argument("payload", metavar="PAYLOAD", nargs="?", help="the payload; - is the same as --lines")
    parser.late = "payload"
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "-l", "--lines", action="store_true", help="a message for each line of standard input, without its end"
    )
    source.add_argument("--stdin", action="store_true", help="all of standard input as one payload")
    source.add_argument("--file", metavar="FILE", help="the contents of a file as one payload")
    source.add_argument(
        "--json", action="store_true", help="a message for each line of standard input, as sbus sub --json writes them"
    )
    parser.add_argument("--repeat", type=count, metavar="N", default=1, help="publish the payload N times")
    parser.add_argument("--rate", type=rate, metavar="RATE", help="publish at most so many messages a second")
    parser.set_defaults(run=lambda arguments: _publish(arguments, parser))


def _publish(arguments: Namespace, parser: Parser) -> None:
    if arguments.payload == "-":
        arguments.lines, arguments.payload = True, None
    sources = [arguments.lines, arguments.stdin, arguments.file is not None, arguments.json]
    if (arguments.key is None) is not arguments.json:
        parser.error(
            "KEY is missing"
            if arguments.key is None
            else "--json takes KEY from the lines of standard input: leave it out"
        )
    if sum(sources) + (arguments.payload is not None) != 1:
        parser.error("give one PAYLOAD, or one of -, -l, --stdin, --file and --json")
    if arguments.repeat > 1 and (arguments.lines or arguments.json):
        parser.error("--repeat is for a single payload")

    if arguments.payload is not None and arguments.repeat == 1 and not arguments.verbose:
        yield_to_signals()
        if _publish_once(arguments):
            return
    from . import messages

    # Lines may come for days.
    with messages.connected(arguments, lasting=arguments.lines or arguments.json) as client:
        messages.publish(client, messages.from_arguments(arguments), arguments.rate)


def _publish_once(arguments: Namespace) -> bool:
    from ..kernel.single import publish_once
    from ..wire.defaults import default_addresses

    addresses = default_addresses() if arguments.address is None else [arguments.address]
    key, payload = os.fsencode(arguments.key), os.fsencode(arguments.payload)
    return any(publish_once(address, key, payload) for address in addresses)
