"""``sbus whoami``."""

from __future__ import annotations

from argparse import Namespace

from .arguments import ADDRESSES, Parser, add_address

__all__ = ["add_arguments"]


def add_arguments(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = "Print the credentials of this process as the hub sees them: !/cred/GID/UID/PID."
    parser.epilog = "examples:\n  sbus whoami\n\n" + ADDRESSES
    add_address(parser)
    parser.set_defaults(run=_whoami)


def _whoami(arguments: Namespace) -> int:
    from ..wire.text import printable
    from . import messages

    return messages.run(lambda client: print(printable(client.whoami())), arguments.address)
