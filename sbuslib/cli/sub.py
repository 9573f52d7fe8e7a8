"""``sbus sub``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import ADDRESSES, add_address
from .values import count

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show the messages whose keys match one of the patterns: in a pattern, * stands for everything up to the next "
        "/ or the end, and one that ends in / matches everything below; the empty pattern matches everything.\n\n"
        r"A line is key, tab, payload. In it, backslash, tab, newline, carriage return and other bytes that cannot be "
        r"printed are written as \\, \t, \n, \r and, for each byte, \xNN, so no message can control the terminal or "
        "look like two messages. Each message is written at once, and the command ends when its output is closed."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus sub 'room/*/temp'                      * stands for all up to the next /\n"
        "  sbus sub room/ log/                         everything below room/ and log/\n"
        "  sbus sub ''                                 everything\n"
        "  sbus sub -n 1 --raw config > config.new     the next payload, byte for byte\n"
        "  sbus sub --json '' | jq .key\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument("patterns", metavar="PATTERN", nargs="+", help="pattern of routing keys")
    parser.add_argument("-n", "--count", type=count, metavar="N", help="exit after N messages")
    parser.add_argument(
        "-s", "--senders", action="store_true", help="show who sent each message, first; the hub vouches for it"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json",
        action="store_true",
        help="a JSON object a line, in ASCII, with key and payload (and sender); bytes that are not UTF-8 are in "
        "Base64, under key_base64 or payload_base64",
    )
    form.add_argument(
        "--raw",
        action="store_true",
        help="exactly the payloads, with nothing between them: take one message with -n 1, or use --json",
    )
    parser.set_defaults(run=_subscribe)


def _subscribe(arguments: Namespace) -> int:
    from . import messages

    return messages.run(messages.subscribe, arguments)
