"""``sbus doctor``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import ADDRESSES, add_address
from .console import EXIT_FAILURE, EXIT_SUCCESS

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Look at the way to the hub, and at the hub: addresses, permissions, descriptors, buffers, namespaces, the "
        "clock, what the hub offers and, if it trusts this user, lost messages and the links up to the root. Each "
        "finding is ok, a warning or a problem, and tells what to do."
    )
    parser.epilog = (
        "exit status:\n"
        "  0   there is no problem\n"
        "  1   there is one\n"
        "\n"
        "examples:\n"
        "  sbus doctor\n"
        "  sbus doctor --json | jq 'select(.level != \"ok\")'\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument("--json", action="store_true", help="a JSON object a line for each finding")
    parser.set_defaults(run=_doctor)


def _doctor(arguments: Namespace) -> int:
    from ..diagnosis import examine
    from .console import yield_to_signals
    from .tables import plain, show_json

    yield_to_signals()
    status = EXIT_SUCCESS
    for one in examine(arguments.address):
        if arguments.json:
            show_json(one)
        else:
            print(f"{one.level:8} {plain(one.about)}: {plain(one.text)}", flush=True)
            if one.advice:
                print(f"{'':8} -> {plain(one.advice)}", flush=True)
        if one.level == "problem":
            status = EXIT_FAILURE
    return status
