"""``sbus present``: the presences on a bus, and their changes."""

from __future__ import annotations

from argparse import Namespace

from .arguments import Parser, add, add_address
from .console import EXIT_FAILURE, EXIT_SUCCESS, begin_to_show
from .tables import show_json

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from ..clients.endpoint import HubView
    from ..clients.watching import Present


def add_present(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show who is present under keys that match a pattern, in the whole tree: key, user, process, and its "
        "text, one a line. The kernel vouches for user and process. With --watch, lines with + and - follow as "
        "others come and go, and why those went."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus present                                everybody\n"
        "  sbus present 'worker/*' --watch\n"
        "\n"
        "exit status:\n"
        "  0   somebody is there\n"
        "  1   nobody is, of the part of the tree that is known\n"
    )

    add_address(parser)
    add(parser, "[PATTERN]", "pattern of keys; without one, all", default=b"")
    add(parser, "--watch", "go on until Ctrl-C, and show who comes and goes")
    add(parser, "--json", "a JSON object a line")


def run_present(arguments: Namespace) -> int:
    from . import messages

    with messages.connected(arguments) as client, client.present(arguments.pattern) as watch:
        members = watch.members
        for member in members:
            _show(arguments, client.hub, member, " " if arguments.watch else "", "")
        begin_to_show()
        if arguments.watch:
            for event in watch:
                _show(arguments, client.hub, event.member, "+" if event.came else "-", event.cause)
    return EXIT_SUCCESS if members else EXIT_FAILURE


def _show(arguments: Namespace, hub: HubView, member: Present, mark: str, cause: str) -> None:
    from ..kernel.users import name_of_user
    from ..secrets import UNKNOWN
    from ..wire.text import printable

    who = hub.credentials_of(member.sender) or UNKNOWN
    if arguments.json:
        shown = {"key": printable(member.key), "uid": who.uid, "pid": who.pid, "info": printable(member.info)}
        show_json(shown | ({"event": {"+": "came", "-": "went"}.get(mark, "there"), "cause": cause}))
        return
    words = [printable(member.key), name_of_user(who.uid), str(who.pid), printable(member.info), cause]
    print("\t".join([mark, *words] if arguments.watch else words).rstrip("\t"), flush=True)
