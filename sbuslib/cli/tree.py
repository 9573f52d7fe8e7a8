"""``sbus tree``: the hubs from one of them downwards, and what passes between them."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .arguments import ADDRESSES, add_address
from .values import seconds

if TYPE_CHECKING:
    from ..statistics import LinkStatistics
    from ..survey import SeenHub, SeenLink

__all__ = ["add_arguments", "draw"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show a hub and the hubs below it, with what passed over each link: up from the lower hub, and down to it. A "
        "hub tells this to its own user, root, and the users of --trusted. Hubs below are asked at the address that "
        "their relays say, if they run as the same user as the relay; of others, only the link is shown.\n\n"
        "Counts of a link begin when it is made. What waits, what was lost, and for how long a hub owes an answer "
        "(lag) is shown where there is any."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus tree\n"
        "  sbus tree --rates 1                         messages a second, over one second\n"
        "  sbus tree --key room/1/temp                 which links would carry it: up, down or neither\n"
        "  sbus tree --json | jq .statistics.clients\n"
        "\n" + ADDRESSES
    )
    add_address(parser)
    parser.add_argument("--key", metavar="KEY", help="tell through which links a message under this key would go")
    parser.add_argument("--rates", type=seconds, metavar="TIME", help="look again after so long, and show rates")
    parser.add_argument("--json", action="store_true", help="all that is known, as JSON in one line")
    parser.set_defaults(run=_tree)


def _tree(arguments: Namespace) -> int:
    from time import monotonic, sleep

    from ..survey import survey
    from . import tables

    def show() -> None:
        key = None if arguments.key is None else os.fsencode(arguments.key)
        began, before = monotonic(), None
        if arguments.rates is not None:
            before = survey(arguments.address)
            sleep(arguments.rates)
        seen = survey(arguments.address, key)
        if arguments.json:
            tables.show_json(seen)
            return
        for line in draw(seen, before, monotonic() - began):
            print(line)

    return tables.run(show, arguments.address)


def draw(seen: SeenHub, before: SeenHub | None = None, span: float = 1.0) -> Iterator[str]:
    """The lines that show a tree; with what was seen a ``span`` in seconds before, also how fast messages pass."""
    from . import tables

    above = seen.above
    if above is not None:
        where = tables.plain(above.address) or "a hub"
        yield f"(below {where}: {', '.join(_link(above, None, span))})"
    yield f"{tables.plain(seen.statistics.address)}: {_hub(seen)}"
    yield from _branches(seen, before, span, "")


def _branches(seen: SeenHub, before: SeenHub | None, span: float, margin: str) -> Iterator[str]:
    from . import tables

    earlier = {} if before is None else {one.link.number: one for one in before.below}
    same_hub = before is not None and before.statistics.hub_id == seen.statistics.hub_id
    for one in seen.below:
        last = one is seen.below[-1]
        old = earlier.get(one.link.number) if same_hub else None
        if old is not None and (old.link.pid, old.link.epoch) != (one.link.pid, one.link.epoch):
            old = None  # another link has its number: this hub was started anew
        told = [f"user {tables.name_of_user(one.link.uid)}", *_link(one.link, old, span), *_carried(one)]
        where = tables.plain(one.link.address) or "a hub"
        yield f"{margin}{'└' if last else '├'}─ {where}: {', '.join(told)}"
        below = margin + ("   " if last else "│  ")
        if one.hub is None:
            yield f"{below}   {tables.plain(one.why)}"
        else:
            yield f"{below}{'│' if one.hub.below else ' '}  {_hub(one.hub)}"
            yield from _branches(one.hub, None if old is None else old.hub, span, below)


def _hub(seen: SeenHub) -> str:
    from . import tables

    told = seen.statistics
    return f"{told.clients:,} clients, {told.received:,} published, lost {tables.losses(told.lost)}"


def _link(link: LinkStatistics, before: SeenLink | None, span: float) -> list[str]:
    """What is told of a link, as its upper hub sees it, or its lower hub if it is the link above."""
    from . import tables

    up, down = (link.delivered, link.received) if link.direction == "above" else (link.received, link.delivered)
    parts = [tables.plain(link.state), tables.plain(link.mode)]
    old = None if before is None else before.link
    for name, count, earlier in (
        ("up", up, 0 if old is None else old.received),
        ("down", down, 0 if old is None else old.delivered),
    ):
        rate = "" if old is None else f" ({max(0, count - earlier) / span:,.1f}/s)"
        parts.append(f"{name} {count:,}{rate}")
    parts.append(f"{link.patterns:,} pattern{'' if link.patterns == 1 else 's'}")
    if link.queued:
        parts.append(f"{link.queued:,} waiting")
    if any(link.lost.values()):
        parts.append(f"lost {tables.losses(link.lost)}")
    if link.uncertain:
        parts.append(f"{link.uncertain:,} uncertain")
    if link.lag >= 0.05:
        parts.append(f"lag {link.lag:.1f} s")
    return parts


def _carried(seen: SeenLink) -> list[str]:
    """Which way the key goes that was asked about."""
    if seen.link.carries is None:
        return []
    up = seen.hub.above.carries if seen.hub is not None and seen.hub.above is not None else None
    ways = ["up"] * bool(up) + ["down"] * seen.link.carries
    unknown = " (up: not known)" if up is None else ""
    return [f"key: {' and '.join(ways) or 'neither'}{unknown}"]
