"""``sbus why``: whether a message would arrive, without sending it, and if not, why."""

from __future__ import annotations

from argparse import Namespace

from .arguments import Parser, add, add_address
from .console import EXIT_FAILURE, EXIT_SUCCESS, begin_to_show
from .tables import plain, show_json

LINES = 24
"""Findings that are shown, as many as a terminal has lines; with ``--json`` there are all."""


def add_why(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Follow one message through the bus without sending it, and say where it ends: whether the sender may publish "
        "it, who receives it, what flood control would do there now, and which links carry it on, or why not. The most "
        "important comes first.\n\n"
        "A hub shows all clients to its own user, root, and the users of --trusted. Anybody else sees the clients of "
        "its own user, and whether there are others."
    )
    parser.epilog = (
        "exit status:\n"
        "  0   it would arrive\n"
        "  1   it would not, not everywhere, or that is not known; or an error\n"
        "\n"
        "examples:\n"
        "  sbus why room/1/temp\n"
        "  sbus why room/1/temp --to bob               why bob does not receive it\n"
        "  sbus why room/1/temp --from 1001 --json | jq -r '.findings[]'"
    )

    add_address(parser)
    add(parser, "KEY", "the key of the message")
    add(parser, "--from WHO", "who sends it: name or id of a user, or the credential key of a client (you)")
    add(parser, "--to WHO", "who should receive it, likewise (all)")
    add(parser, "--json", "all that is known, as JSON in one line")


def run_why(arguments: Namespace) -> int:
    from ..kernel.users import resolve_user
    from ..monitor.why import follow

    begin_to_show()
    given = vars(arguments)
    sender, receiver = (
        who if who is None or who.startswith("!") else resolve_user(who) for who in (given["from"], given["to"])
    )
    way = follow(arguments.address, arguments.key, sender=sender, receiver=receiver)
    if arguments.json:
        show_json(way)
    else:
        more = [f"and {len(way.findings) - LINES:,} more: --json"] if len(way.findings) > LINES else []
        print("\n".join([*map(plain, way.findings[:LINES]), *more]), flush=True)
    return EXIT_SUCCESS if way.arrives else EXIT_FAILURE
