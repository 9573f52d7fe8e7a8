"""``sbus events``: the events of a hub, as they come."""

from __future__ import annotations

from argparse import Namespace

from .arguments import Parser, add, add_address
from .console import begin_to_show
from .tables import plain, show_json

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from ..wire import control
    from ..wire.events import HubEvent


def add_events(parser: Parser) -> None:
    """Complete the parser of the command."""
    from ..wire.event_kinds import KINDS

    parser.description = (
        "Show the events of a hub, one a line: its start and stop, take-overs, links that join, end or do not answer, "
        "users that begin to lose messages, with the sums when that ends, and clients that are disconnected, and why. "
        "The latest 64 come first. The command waits for a hub that is away. A hub shows its events to its own user, "
        "root, and the users of --trusted."
    )
    parser.epilog = (
        f"kinds: {', '.join(KINDS)}\n"
        "\n"
        "examples:\n"
        "  sbus events --kind loses --kind lost        who loses messages\n"
        "  sbus events --json --user alice | jq -r .cause"
    )

    add_address(parser)
    add(parser, "--kind KIND", "only events of this kind; several times for several", action="append", choices=KINDS)
    add(parser, "-u --user USER", "only events about clients of this user; likewise", action="append")
    add(parser, "--json", "a JSON object a line")


def run_events(arguments: Namespace) -> None:
    from ..kernel.users import resolve_user
    from ..wire.events import HubEvent
    from . import messages

    uids = None if arguments.user is None else set(map(resolve_user, arguments.user))

    def on_notice(notice: control.Notice) -> None:
        if isinstance(notice, HubEvent):
            of_user = uids is None or notice.uid in uids
            if of_user and (arguments.kind is None or notice.kind in arguments.kind):
                _show(notice, as_json=arguments.json)
        else:
            messages.show_notice(notice)

    begin_to_show()
    with messages.connected(arguments, lasting=True, monitor=True, on_notice=on_notice) as client:
        client.hub.statistics()  # raises where the hub does not trust this user, and would show no events
        messages.subscribe(client, lambda message, time=None: b"")


def _show(event: HubEvent, *, as_json: bool) -> None:
    from datetime import datetime

    if as_json:
        show_json(event)
        return
    moment = datetime.fromtimestamp(event.time).astimezone().isoformat(timespec="milliseconds")
    print(f"{moment}  {plain(event.kind):<10}  {plain(event.summary)}", flush=True)
