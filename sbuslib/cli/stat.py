"""``sbus stat``: counters of a hub, and losses by cause; also of each of its clients, or of all hubs below it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator

from . import tables
from .arguments import Parser, add, add_address
from .console import begin_to_show

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from ..monitor.survey import SeenHub, SeenLink
    from ..statistics import HubStatistics, LinkStatistics

CLIENTS = 10
"""Clients shown without ``--clients``: those with the most losses first, then those with the most waiting messages."""

ORDERS = ("number", "published", "delivered", "waiting", "lost", "patterns")


def add_stat(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show what a hub counts: of itself, its users, the clients that lag or lose, and its links to other hubs. "
        "Counts begin when the hub is made, those of a client when it connects, those of a link when it is made. A hub "
        "shows this to its own user, root, and the users of --trusted.\n\n"
        "With --clients, show every client. Number 0 is the program that serves the hub.\n\n"
        "With --tree, show a hub and its children, with what passed over each link: up from the lower hub, and "
        "down to it. Children are asked at the address that their relays say, if they run as the same user as the "
        "relay; of others, only the link is shown. Lag is how long a hub has not answered."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus stat --json | jq .lost\n"
        "  sbus stat -i 1s                             once a second, until Ctrl-C\n"
        "  sbus stat --clients --sort lost --rows 10   who loses most\n"
        "  sbus stat --tree --window 1s                messages a second, over one second"
    )

    add_address(parser)
    of = parser.add_mutually_exclusive_group()
    add(of, "--clients", "show every client")
    add(of, "--tree", "show the hubs from this one downwards, and their links")
    what = f"with --clients: the largest first, or the oldest (number): {', '.join(ORDERS)}"
    add(parser, "--sort COLUMN", what, choices=ORDERS, default="number")
    add(parser, "--rows N", "with --clients: only the first N")
    add(parser, "--window TIME", "with --tree: look twice, TIME apart, and show rates")
    add(parser, "-i --interval TIME", "show it again after each TIME, until Ctrl-C")
    add(parser, "--json", "all that is known, as JSON in one line")


def run_stat(arguments: Namespace) -> None:
    from time import sleep

    begin_to_show()
    show = _clients if arguments.clients else _tree if arguments.tree else _hub
    show(arguments)
    while arguments.interval:
        sleep(arguments.interval)
        show(arguments)


def _hub(arguments: Namespace) -> None:
    import msgspec

    from ..blocking import Client
    from ..monitor.rates import is_local

    with Client(arguments.address) as client:
        hub = client.hub.statistics()
        links = client.hub.links()
        clients = list(hub.per_client)
        if len(clients) < hub.clients:
            clients = client.hub.clients()  # they are too many for one answer
        local = is_local(client)
    hub = msgspec.structs.replace(hub, per_client=tuple(clients), per_link=tuple(links))
    if arguments.json:
        tables.show_json(hub)
    else:
        print("\n".join(describe(hub, local=local)), flush=True)


def describe(hub: HubStatistics, *, local: bool = False) -> Iterator[str]:
    """Yield a hub's statistics as lines. With ``local``, its process ids are valid here: lines name programs, too."""
    from ..monitor.rates import Rates

    yield f"{tables.plain(hub.address)}  id {tables.plain(hub.hub_id)}"
    yield (
        f"clients    {hub.clients:,} now, {hub.clients_peak:,} at most, {hub.clients_total:,} in all; "
        f"{hub.patterns:,} patterns"
    )
    yield f"published  {hub.published:,}"
    yield f"delivered  {hub.delivered:,} of {hub.routed:,}; {hub.waiting:,} waiting"
    yield f"lost       {tables.losses(hub.lost)}"
    if hub.violations:
        yield f"kicked     {tables.losses(hub.violations)}"
    if hub.dropped:
        yield f"dropped    {tables.losses(hub.dropped)}"

    worst = sorted(hub.per_client, key=lambda client: (-sum(client.lost.values()), -client.waiting))
    worst = [client for client in worst if client.waiting or any(client.lost.values())]
    look = Rates(local=local).look(0, hub.address, hub, worst[:CLIENTS], hub.per_link)
    if look.users:
        yield ""
        users = sorted(look.users, key=lambda user: (-user["published"] - user["delivered"], user["uid"]))
        yield from tables.table("stat users", users)
    if worst:
        yield ""
        yield from tables.table("stat worst", look.clients or [])
        if len(worst) > CLIENTS:
            yield f"and {len(worst) - CLIENTS:,} more: sbus stat --clients"
    if look.links:
        yield ""
        yield from tables.table("stat links", look.links)


def _clients(arguments: Namespace) -> None:
    from ..blocking import Client
    from ..monitor.rates import Rates, is_local

    with Client(arguments.address) as client:
        clients, hub = client.hub.clients(), client.hub.statistics()
        rows = Rates(local=is_local(client)).look(0, client.address, hub, clients, ()).clients or []
    pairs = list(zip(clients, rows, strict=True))
    if arguments.sort != "number":
        pairs.sort(key=lambda pair: pair[1][arguments.sort], reverse=True)
    pairs = pairs[: arguments.rows]
    if arguments.json:
        tables.show_json([one for one, _ in pairs])
    else:
        print("\n".join(tables.table("stat clients", [row for _, row in pairs])), flush=True)


def _tree(arguments: Namespace) -> None:
    from time import monotonic, sleep

    from ..monitor.survey import survey

    began, before = monotonic(), None
    if arguments.window is not None:
        before = survey(arguments.address)
        sleep(arguments.window)
    seen = survey(arguments.address)
    if arguments.json:
        tables.show_json(seen)
    else:
        print("\n".join(draw(seen, before, monotonic() - began)), flush=True)


def draw(seen: SeenHub, before: SeenHub | None = None, span: float = 1.0) -> Iterator[str]:
    """Yield a tree as lines; with ``before``, seen ``span`` seconds earlier, also the rates of messages."""
    parent = seen.parent
    if parent is not None:
        where = tables.plain(parent.address) or "a hub"
        yield f"(below {where}: {', '.join(_link(parent, None, span))})"
    yield f"{tables.plain(seen.statistics.address)}: {_sum_up(seen)}"
    yield from _branches(seen, before, span, "")


def _branches(seen: SeenHub, before: SeenHub | None, span: float, margin: str) -> Iterator[str]:
    earlier = {} if before is None else {one.link.number: one for one in before.children}
    same_hub = before is not None and before.statistics.hub_id == seen.statistics.hub_id
    for one in seen.children:
        last = one is seen.children[-1]
        old = earlier.get(one.link.number) if same_hub else None
        if old is not None and (old.link.pid, old.link.epoch) != (one.link.pid, one.link.epoch):
            old = None  # another link has its number: this hub was started anew

        where = tables.plain(one.link.address) or "a hub"
        parts: Iterable[str] = (
            f"user {tables.name_of_user(one.link.uid)}",
            *_link(one.link, old, span),
        )
        yield f"{margin}{'└' if last else '├'}─ {where}: {', '.join(parts)}"

        below = margin + ("   " if last else "│  ")
        if one.hub is None:
            yield f"{below}   {tables.plain(one.why)}"
        else:
            yield f"{below}{'│' if one.hub.children else ' '}  {_sum_up(one.hub)}"
            yield from _branches(one.hub, None if old is None else old.hub, span, below)


def _sum_up(seen: SeenHub) -> str:
    hub = seen.statistics
    return f"{hub.clients:,} clients, {hub.published:,} published, lost {tables.losses(hub.lost)}"


def _link(link: LinkStatistics, before: SeenLink | None, span: float) -> list[str]:
    """Return the texts about a link: as its parent hub reports it, but for the topmost, as its child does."""
    parts = [tables.plain(link.state), tables.plain(link.mode)]
    old = None if before is None else before.link
    for name in ("up", "down"):
        now = getattr(link, name)
        rate = "" if old is None else f" ({max(0, now - getattr(old, name)) / span:,.1f}/s)"
        parts.append(f"{name} {now:,}{rate}")

    parts.append(f"{link.patterns:,} pattern{'' if link.patterns == 1 else 's'}")
    if link.waiting:
        parts.append(f"{link.waiting:,} waiting")
    if any(link.lost.values()):
        parts.append(f"lost {tables.losses(link.lost)}")
    if link.uncertain:
        parts.append(f"{link.uncertain:,} uncertain")
    if link.lag >= 0.05:
        parts.append(f"lag {link.lag:.1f} s")
    return parts
