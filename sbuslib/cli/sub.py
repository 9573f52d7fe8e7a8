"""``sbus sub`` and ``sbus get``: show messages as they come, or the retained ones, with the same output options."""

from __future__ import annotations

import sys
from argparse import Namespace

from ..wire.modes import HARD, ORDER, SOFT
from .arguments import Parser, add, add_address
from .console import EXIT_FAILURE, EXIT_SUCCESS


def add_sub(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show the messages whose keys match one of the patterns: in a pattern, * stands for everything up to the next "
        "/ or the end, and one that ends in / matches everything below; the empty pattern matches everything.\n\n"
        r"A line is key, tab, payload. In it, backslash, tab, newline, carriage return and other bytes that cannot be "
        r"printed are written as \\, \t, \n, \r and, for each byte, \xNN, so no message can control the terminal. "
        "Requests, replies, jobs and offers are shown as such, in brackets; --raw and --json show their bytes. "
        "Messages that the hub lost, since they were not read in time, are reported on standard error. After the hub "
        "has gone away, the command waits for it."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus sub 'room/*/temp'                      * stands for all up to the next /\n"
        "  sbus sub room/ log/                         everything below room/ and log/\n"
        "  sbus sub ''                                 everything\n"
        "  sbus sub '' --not log/ 'bus/*'              but these\n"
        "  sbus sub -n 1 --timeout 5s --raw config     the next payload, byte for byte, if it comes soon\n"
        "  sbus sub --json '' | jq .key\n"
        "  sbus sub --format '{time} {key} {size}' ''"
    )

    add_address(parser)
    add(parser, "PATTERN...", "pattern of routing keys")
    add(parser, "--not PATTERN...", "but not those whose keys match one of these", dest="unwanted")
    add(parser, "-n --count N", "exit after N messages")
    add(parser, "--timeout TIME", "exit with status 1 when no message comes for TIME: 5, 2m")
    add(parser, "--ready-fd FD", "write a newline to this descriptor, and close it, once subscribed", type=int)
    add_forms(parser)
    for mode, words, what in (
        ("soft", SOFT, "what the hub does with messages that are not read in time, while its queue has room"),
        ("hard", HARD, "the same, when that queue is full"),
        ("order", ORDER, "which message of that queue comes next"),
    ):
        add(parser, f"--{mode}", what, choices=words)


def add_forms(parser: Parser) -> None:
    """Add the options that say how messages are shown."""
    add(parser, "-s --senders", "show who sent each message, first; the hub vouches for it")
    add(parser, "-t --timestamps", "show the time when each message came, first")
    form = parser.add_mutually_exclusive_group()
    add(form, "--json", "a JSON object a line; bytes that are not UTF-8 are in Base64, as key_base64, payload_base64")
    add(form, "--raw", "exactly the payloads, with nothing between them: take one message with -n 1, or use --json")
    add(form, "--format TEXT", "a line with {key}, {payload}, {size}, {sender} and {time} filled in")


def wants_senders(arguments: Namespace) -> bool:
    """Return whether senders are shown, by the options of :func:`add_forms`."""
    return arguments.senders or "{sender}" in (arguments.format or "")


def run_sub(arguments: Namespace) -> None:
    import os

    from ..matcher import Pattern
    from . import messages

    show = messages.shower(arguments)
    with messages.connected(
        arguments,
        *arguments.patterns,
        lasting=True,
        monitor=True,
        on_notice=messages.show_notice,
        senders=wants_senders(arguments),
        soft=arguments.soft,
        hard=arguments.hard,
        order=arguments.order,
        **({} if arguments.timeout is None else {"timeout": arguments.timeout}),
    ) as client:
        if arguments.ready_fd is not None:
            os.write(arguments.ready_fd, b"\n")
            os.close(arguments.ready_fd)
        unwanted = [Pattern(pattern, client.hub.separator) for pattern in arguments.unwanted or ()]
        messages.subscribe(client, show, arguments.count, arguments.timeout, unwanted)


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
        "  1   there is none, or nobody keeps them: a line on standard error says which\n"
    )

    add_address(parser)
    add(parser, "KEY", "key, or pattern of keys", dest="pattern")
    add_forms(parser)


def run_get(arguments: Namespace) -> int:
    from . import messages
    from .console import complain

    show, status = messages.shower(arguments), EXIT_FAILURE
    with messages.connected(arguments) as client:
        for message in client.last(arguments.pattern):
            sys.stdout.buffer.write(show(message))
            status = EXIT_SUCCESS
        sys.stdout.flush()
    if status == EXIT_FAILURE:
        complain("sbus", "no message is kept there")
    return status
