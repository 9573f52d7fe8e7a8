"""``sbus pub``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import ADDRESSES, add_address

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Publish one message, or each line of standard input, and return once the hub has taken it. A word that starts "
        "with a hyphen is an option, unless -- comes before it."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus pub room/1/temp 21.5\n"
        "  sbus pub -- room/1/note '-5 below'          after --, nothing is taken for an option\n"
        "  tail -f app.log | sbus pub log/app -        a message for each line\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument("key", metavar="KEY", help="routing key")
    parser.add_argument("payload", metavar="PAYLOAD", help="payload; -: each line of standard input, without its end")
    parser.set_defaults(run=_publish)


def _publish(arguments: Namespace) -> int:
    from . import messages

    return messages.run(messages.publish, arguments)
