"""``sbus hub``: a hub in the foreground."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from .arguments import ADDRESSES, add_address
from .console import complain, explain, tell
from .daemon import add_hub_arguments, run_hub

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Serve a bus in the foreground until Ctrl-C. It prints on standard error where it listens; without an address, "
        "that is the first place where clients look. Everything else is as for sbusd -f, see sbusd(1)."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus hub -a /tmp/bus                        for this user and root\n"
        "  sbus hub -a /tmp/bus -o -u alice -u 1001    for these users\n"
        "  sbus hub -a /dev/unix/abstract              at a random address, which is printed\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    add_hub_arguments(parser)
    parser.set_defaults(run=_hub)


def _hub(arguments: Namespace) -> int:
    from ..wire.defaults import default_addresses

    default = default_addresses()[0]
    if arguments.address is None and not os.environ.get("SBUS_ADDRESS") and os.environ.get("XDG_RUNTIME_DIR"):
        # Clients look there first, and no other program makes the folder.
        try:
            os.makedirs(os.path.dirname(default), mode=0o700, exist_ok=True)
        except OSError as error:
            return complain("sbus", explain(error))

    def announce(address: str) -> None:
        tell(f"listening at {address} (Ctrl-C ends it)")

    return run_hub("sbus", arguments, on_ready=announce, default=default)
