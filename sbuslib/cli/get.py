"""``sbus get``: the newest message of a key, or of each that matches, as ``sbus retain`` keeps them."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from .arguments import ADDRESSES, Parser, add_address
from .console import EXIT_FAILURE
from .sub import add_forms

if TYPE_CHECKING:
    from ..blocking import Client

__all__ = ["add_arguments"]


def add_arguments(parser: Parser) -> None:
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
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument("pattern", metavar="KEY", help="key, or pattern of keys")
    add_forms(parser)
    parser.set_defaults(run=_get)


def _get(arguments: Namespace) -> int:
    from . import messages

    show, found = messages.shower(arguments), False

    def get(client: Client) -> None:
        nonlocal found
        for message in client.last(os.fsencode(arguments.pattern)):
            sys.stdout.buffer.write(show(message))
            found = True
        sys.stdout.flush()

    return messages.run(get, arguments.address) or (0 if found else EXIT_FAILURE)
