"""``sbus sub`` and ``sbus get``: messages as they come, and the newest of a key, in the same forms."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from ..wire.modes import HARD, ORDER, SOFT
from .arguments import Parser, add_address
from .console import EXIT_FAILURE, EXIT_SUCCESS
from .values import count, seconds

__all__ = ["add_forms", "add_get", "add_sub", "wants_senders"]


def add_sub(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show the messages whose keys match one of the patterns: in a pattern, * stands for everything up to the next "
        "/ or the end, and one that ends in / matches everything below; the empty pattern matches everything.\n\n"
        r"A line is key, tab, payload. In it, backslash, tab, newline, carriage return and other bytes that cannot be "
        r"printed are written as \\, \t, \n, \r and, for each byte, \xNN, so no message can control the terminal or "
        "look like two messages. Each message is written at once, and the command ends when its output is closed. "
        "Messages that the hub lost because they were not read in time are told on standard error. When the hub goes "
        "away, it waits until one is there again."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus sub 'room/*/temp'                      * stands for all up to the next /\n"
        "  sbus sub room/ log/                         everything below room/ and log/\n"
        "  sbus sub ''                                 everything\n"
        "  sbus sub -n 1 --timeout 5s --raw config     the next payload, byte for byte, if it comes soon\n"
        "  sbus sub --json '' | jq .key\n"
        "  sbus sub --format '{time} {key} {size}' ''\n"
        "  sbus sub --reconnect --timestamps room/     whether or not the hub is there yet"
    )

    add_address(parser)
    parser.add_argument("patterns", metavar="PATTERN", nargs="+", help="pattern of routing keys")
    parser.add_argument("-n", "--count", type=count, metavar="N", help="exit after N messages")
    parser.add_argument(
        "--timeout", type=seconds, metavar="TIME", help="exit with status 1 when no message comes for so long: 5, 2m"
    )
    add_forms(parser)
    parser.add_argument("--reconnect", action="store_true", help="wait for a hub that is not there yet, too")
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


def wants_senders(arguments: Namespace) -> bool:
    """Whether senders are shown, by the options of :func:`add_forms`."""
    return arguments.senders or "{sender}" in (arguments.format or "")


def _subscribe(arguments: Namespace) -> None:
    from . import messages

    show = messages.shower(arguments)
    options = {**messages.RECONNECTING, "timeout": arguments.timeout} if arguments.reconnect else {"lasting": True}
    senders = wants_senders(arguments)
    options |= {"soft": arguments.soft, "hard": arguments.hard, "order": arguments.order}
    with messages.connected(arguments, on_notice=messages.tell_notice, senders=senders, **options) as client:
        with messages.beginning():
            client.subscribe(*map(os.fsencode, arguments.patterns))
        messages.subscribe(client, show, arguments.count, arguments.timeout)


def add_get(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show the newest message of a key, or of each key that matches, and exit. It is asked of sbus retain. The "
        "lines are those of sbus sub; a kept message has no sender, and its time is now."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus get --raw config/app                   the payload, byte for byte\n"
        "  sbus get 'room/*/temp'\n"
        "\n"
        "exit status:\n"
        "  0   there is one\n"
        "  1   there is none, or nobody keeps them: a line on standard error tells that\n"
        "  2   the arguments are wrong"
    )

    add_address(parser)
    parser.add_argument("pattern", metavar="KEY", help="key, or pattern of keys")
    add_forms(parser)

    parser.set_defaults(run=_get)


def _get(arguments: Namespace) -> int:
    from . import messages
    from .console import complain

    show, status = messages.shower(arguments), EXIT_FAILURE
    with messages.connected(arguments) as client:
        for message in client.last(os.fsencode(arguments.pattern)):
            sys.stdout.buffer.write(show(message))
            status = EXIT_SUCCESS
        sys.stdout.flush()
    if status == EXIT_FAILURE:
        complain("sbus", "no message is kept there")
    return status
