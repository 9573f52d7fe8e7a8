"""``sbus sub``."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING

from ..wire.modes import HARD, ORDER, SOFT
from .arguments import ADDRESSES, Parser, add_address
from .values import count, seconds

if TYPE_CHECKING:
    from ..blocking import Client

__all__ = ["add_arguments", "add_forms"]


def add_arguments(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show the messages whose keys match one of the patterns: in a pattern, * stands for everything up to the next "
        "/ or the end, and one that ends in / matches everything below; the empty pattern matches everything.\n\n"
        r"A line is key, tab, payload. In it, backslash, tab, newline, carriage return and other bytes that cannot be "
        r"printed are written as \\, \t, \n, \r and, for each byte, \xNN, so no message can control the terminal or "
        "look like two messages. Each message is written at once, and the command ends when its output is closed. "
        "Messages that the hub lost because they were not read in time are told on standard error."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus sub 'room/*/temp'                      * stands for all up to the next /\n"
        "  sbus sub room/ log/                         everything below room/ and log/\n"
        "  sbus sub ''                                 everything\n"
        "  sbus sub -n 1 --timeout 5s --raw config     the next payload, byte for byte, if it comes soon\n"
        "  sbus sub --json '' | jq .key\n"
        "  sbus sub --format '{time} {key} {size}' ''\n"
        "  sbus sub --reconnect --timestamps room/     whether or not the hub is there yet\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument("patterns", metavar="PATTERN", nargs="+", help="pattern of routing keys")
    parser.add_argument("-n", "--count", type=count, metavar="N", help="exit after N messages")
    parser.add_argument(
        "--timeout", type=seconds, metavar="TIME", help="exit with status 1 when no message comes for so long: 5, 2m"
    )
    add_forms(parser)
    parser.add_argument(
        "--reconnect", action="store_true", help="wait for a hub that is not there yet, or comes back, and go on"
    )
    for mode, words, what in (
        ("soft", SOFT, "while its queue for this client has room"),
        ("hard", HARD, "when that queue is full"),
        ("order", ORDER, "with which message of the queue comes next"),
    ):
        parser.add_argument(
            f"--{mode}", choices=words, help=f"what the hub does with messages that are not read in time, {what}"
        )
    parser.set_defaults(run=_subscribe)


def add_forms(parser: Parser) -> None:
    """Add the options that say how messages are shown."""
    parser.add_argument(
        "-s", "--senders", action="store_true", help="show who sent each message, first; the hub vouches for it"
    )
    parser.add_argument("-t", "--timestamps", action="store_true", help="show when each message came, before all else")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json",
        action="store_true",
        help="a JSON object a line, in ASCII, with key and payload (and sender and time); bytes that are not UTF-8 are "
        "in Base64, under key_base64 or payload_base64",
    )
    form.add_argument(
        "--raw",
        action="store_true",
        help="exactly the payloads, with nothing between them: take one message with -n 1, or use --json",
    )
    form.add_argument(
        "--format", metavar="TEXT", help="a line with {key}, {payload}, {size}, {sender} and {time} filled in"
    )
    parser.set_defaults(parser=parser)


def _subscribe(arguments: Namespace) -> int:
    from . import messages

    show = messages.shower(arguments)

    def subscribe(client: Client) -> None:
        client.flood_control(soft=arguments.soft, hard=arguments.hard, order=arguments.order)
        client.subscribe(*map(os.fsencode, arguments.patterns))
        messages.subscribe(client, show, arguments.count, arguments.timeout)

    options = {**messages.RECONNECTING, "timeout": arguments.timeout} if arguments.reconnect else {}
    senders = arguments.senders or "{sender}" in (arguments.format or "")
    return messages.run(subscribe, arguments.address, on_notice=messages.tell_notice, senders=senders, **options)
