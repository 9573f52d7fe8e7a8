"""``sbus hub``: a hub in the foreground; and ``sbus hub reload``, which has it read its configuration file again."""

from __future__ import annotations

import os
from argparse import Namespace

from .arguments import Parser, add_address
from .console import tell
from .daemon import add_hub_arguments, run_hub

__all__ = ["add_hub", "add_hub_reload"]


def add_hub(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Serve a bus in the foreground until Ctrl-C. It prints on standard error where it listens; without an address, "
        "that is the first place where clients look. Everything else is as for sbusd -f, see sbusd(1)."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus hub -a /tmp/bus                        for this user and root\n"
        "  sbus hub -a /tmp/bus -o -u alice -u 1001    for these users\n"
        "  sbus hub -a /dev/unix/abstract              at a random address, which is printed"
    )
    add_address(parser)
    add_hub_arguments(parser)
    parser.set_defaults(run=_hub)


def _hub(arguments: Namespace) -> int:
    from ..wire.defaults import default_addresses

    default = default_addresses()[0]
    if arguments.address is None and not os.environ.get("SBUS_ADDRESS") and os.environ.get("XDG_RUNTIME_DIR"):
        # Clients look there first, and no other program makes the folder.
        os.makedirs(os.path.dirname(default), mode=0o700, exist_ok=True)

    def announce(address: str) -> None:
        tell(f"listening at {address} (Ctrl-C ends it)")

    return run_hub("sbus", arguments, on_ready=announce, default=default)


def add_hub_reload(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Have a hub read its configuration file again, and wait until it has taken up what has changed. No client is "
        "lost that may still connect. If there is an error in the file, the hub goes on as before. For the hub's own "
        "user, root, and users that the hub trusts."
    )
    parser.epilog = "examples:\n  sbus hub reload -a /run/sbus.socket"
    add_address(parser)
    parser.set_defaults(run=_reload)


def _reload(arguments: Namespace) -> None:
    from . import messages

    with messages.connected(arguments) as client:
        print(client.reload())
