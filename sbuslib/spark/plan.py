"""The load of every link in a tree of hubs, and the best hub for each client.

Spark counts what was recorded by key, sender and user (:func:`recorded`). The rest is plain Python, since it walks from
hub to hub: a tree of 100,000 hubs takes seconds.

A *link* has the name of the hub below it. A message goes **up** a link if it was published below the link, and else
**down**. If hubs *flood*, every message crosses every link once. *By interest*, a message goes up if a client that is
not below the link wants it, and down if a client below the link wants it. Relays do the latter once their hubs have
announced what they want (:mod:`sbuslib.relay`), as long as no link holds more patterns than ``Limits.link_patterns``,
and without ``export=`` and ``import_=``.

**The load of links.** Messages whose keys match the same patterns take the same links, so keys are grouped by the set
of patterns that match them, their *class*. For each class and each link *x*, ``T(x)`` is the number of messages
published below the link, and ``n(x)`` the number of clients below the link that want them. ``T`` and ``n`` are the
totals of the tree. ``T(x)`` messages go up if ``n > n(x)``, and ``T - T(x)`` go down if ``n(x) > 0``. Only links above
a publisher or receiver of the class are looked at: at all others, both are 0, and nothing goes up or down.

**The best hub for a client.** The *weight* of link *x* for client *c* is what the link carries because of *c* if *c* is
below it, less what it carries because of *c* if *c* is above it. For messages of others that *c* wants, these are the
messages from above that no other client below wants, less the messages from below that no other client above wants. For
messages that *c* publishes, these are the messages that a client above wants, less those that a client below wants.
The sum of the weights on the way from a hub to the root compares that hub with the root, and so all hubs with each
other. A link with nothing of a class below it has the same weight wherever it is, and never a negative one. So the best
hub is the root, or one of those with something below them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..matcher import SEPARATOR, Subscriptions
from ..secrets import RESERVED
from .matching import is_message, packet_bytes
from .topology import Tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from .topology import Topology

__all__ = ["Class", "Flow", "Interest", "Link", "Placement", "classes", "interests", "links", "placements", "recorded"]

_Counts: TypeAlias = "list[int]"
"""Messages, their bytes, and clients that want them."""


class Flow(NamedTuple):
    """What a client at a hub published under a key. ``client`` is ``None`` for messages of none of the clients.

    ``bytes`` are those of packets on a link.
    """

    hub: int
    client: str | None
    key: bytes
    messages: int
    bytes: int


class Interest(NamedTuple):
    """A pattern of a client at a hub."""

    hub: int
    client: str
    pattern: bytes


class Class:
    """Messages whose keys match the same patterns."""

    def __init__(self, wanted: frozenset[tuple[int, str]]) -> None:
        self.wanted = wanted
        """The clients that want the messages, each with its hub."""
        self.published = defaultdict[tuple[int, "str | None"], _Counts](lambda: [0, 0])
        """Messages and bytes by hub and client."""

    def below(self, above: Sequence[int]) -> dict[int, _Counts]:
        """The counts at and below each hub with anything of the class there. It always has the root."""
        found: dict[int, _Counts] = {0: [0, 0, 0]}
        for (hub, _), (messages, size) in self.published.items():
            counts = found.setdefault(hub, [0, 0, 0])
            counts[0] += messages
            counts[1] += size
        for hub, _ in self.wanted:
            found.setdefault(hub, [0, 0, 0])[2] += 1
        for hub in [*found]:
            while (hub := above[hub]) not in found:
                found[hub] = [0, 0, 0]
        for hub in sorted(found, reverse=True)[:-1]:
            upper, counts = found[above[hub]], found[hub]
            upper[0] += counts[0]
            upper[1] += counts[1]
            upper[2] += counts[2]
        return found


class Link(NamedTuple):
    """The load of a link from the hub ``link`` to the hub ``above`` it, in messages and bytes."""

    link: str
    above: str
    flooded_up: int
    flooded_down: int
    up: int
    down: int
    flooded_up_bytes: int
    flooded_down_bytes: int
    up_bytes: int
    down_bytes: int


class Placement(NamedTuple):
    """What moving a client from its ``hub`` to the ``better`` one would save, if all other clients stay.

    ``saved`` are messages over links, by interest. ``saved_bytes`` is negative if fewer but longer messages would cross
    links. For a client that is at its best hub, ``better`` is that hub, and both are 0.
    """

    client: str
    hub: str
    better: str
    saved: int
    saved_bytes: int


def recorded(rows: DataFrame, topology: Topology) -> Iterator[Flow]:
    """A recording as traffic in a tree.

    :param rows: rows with ``kind``, ``hub``, ``key``, ``size``, ``sender`` and ``uid``. A message that several hubs
        recorded counts several times.
    """
    from pyspark.sql import functions as f

    counted = (
        rows.where(is_message())
        .groupBy("hub", "key", "sender", "uid")
        .agg(f.count(f.lit(1)).alias("messages"), f.sum(packet_bytes()).alias("bytes"))
        .toArrow()
    )
    separator, number = topology.separator.encode(), topology.tree.number
    at = {hub.recorded: number[name] for name, hub in topology.hubs.items() if hub.recorded}
    clients = [*topology.clients.items()]
    index: Subscriptions[int] = Subscriptions(separator)
    for order, (_, client) in enumerate(clients):
        for pattern in client.publishes or ("",) * (client.uid is not None or bool(client.sender)):
            index.add(pattern.encode(), order)
    orders: dict[bytes, list[int]] = {}
    for batch in counted.to_batches(max_chunksize=65_536):
        for hub, key, sender, uid, messages, size in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            if key not in orders:
                orders[key] = sorted(index.subscribers(key))
            for name, client in (clients[order] for order in orders[key]):
                if client.uid in (None, uid) and (not client.sender or client.sender.encode() == sender):
                    yield Flow(number[client.hub], name, key, messages, size)
                    break
            else:
                yield Flow(at.get(hub, 0), None, key, messages, size)


def interests(topology: Topology) -> Iterator[Interest]:
    """The patterns that the clients of a tree subscribe to."""
    for name, client in topology.clients.items():
        for pattern in client.subscribes:
            yield Interest(topology.tree.number[client.hub], name, pattern.encode())


def classes(flows: Iterable[Flow], interests: Iterable[Interest], separator: bytes = SEPARATOR) -> list[Class]:
    """Traffic by class."""
    holders = defaultdict[bytes, set[tuple[int, str]]](set)
    for interest in interests:
        holders[interest.pattern].add((interest.hub, interest.client))
    index: Subscriptions[bytes] = Subscriptions(separator)
    for pattern in holders:
        index.add(pattern, pattern)
    secret = RESERVED + separator
    by_patterns: dict[frozenset[bytes], Class] = {}
    by_key: dict[bytes, Class] = {}
    for flow in flows:
        found = by_key.get(flow.key)
        if found is None:
            patterns = frozenset(() if flow.key.startswith(secret) else index.subscribers(flow.key))
            found = by_patterns.get(patterns)
            if found is None:
                wanted = frozenset[tuple[int, str]]().union(*map(holders.__getitem__, patterns))
                found = by_patterns[patterns] = Class(wanted)
            by_key[flow.key] = found
        counts = found.published[flow.hub, flow.client]
        counts[0] += flow.messages
        counts[1] += flow.bytes
    return [*by_patterns.values()]


def links(tree: Tree, classes: Iterable[Class]) -> list[Link]:
    """The load of every link, the busiest first."""
    flooded = [[0, 0] for _ in tree.above]
    loads = [[0, 0, 0, 0] for _ in tree.above]
    for group in classes:
        for (hub, _), (messages, size) in group.published.items():
            flooded[hub][0] += messages
            flooded[hub][1] += size
        if not group.wanted:
            continue
        below = group.below(tree.above)
        all_messages, all_bytes, all_wanting = below[0]
        for hub, (messages, size, wanting) in below.items():
            load = loads[hub]
            if all_wanting > wanting:
                load[0] += messages
                load[2] += size
            if wanting:
                load[1] += all_messages - messages
                load[3] += all_bytes - size
    for hub in range(len(tree.above) - 1, 0, -1):
        flooded[tree.above[hub]][0] += flooded[hub][0]
        flooded[tree.above[hub]][1] += flooded[hub][1]
    (messages, size), *_ = flooded
    found = [
        Link(name, tree.names[above], ups, messages - ups, up, down, bytes_up, size - bytes_up, up_bytes, down_bytes)
        for name, above, (ups, bytes_up), (up, down, up_bytes, down_bytes) in zip(
            tree.names, tree.above, flooded, loads, strict=True
        )
    ]
    return sorted(found[1:], key=lambda link: (-link.up - link.down, link.link))


def placements(tree: Tree, classes: Iterable[Class]) -> list[Placement]:
    """The best hub for each client that wants or publishes something, the largest savings first.

    The work grows with the clients of each class times the links above them: it is for some thousand clients.
    """
    # What all links weigh for a client, and by how much single links weigh more: messages and bytes.
    weights = defaultdict[tuple[int, str], tuple[_Counts, dict[int, _Counts]]](lambda: ([0, 0], {0: [0, 0]}))
    for group in classes:
        below = group.below(tree.above)
        publishers = {(hub, client) for hub, client in group.published if client is not None}
        for at, client in group.wanted | publishers:
            takes, own = (at, client) in group.wanted, group.published.get((at, client), (0, 0))
            path = _path(tree, at)
            everywhere, single = weights[at, client]
            usual = _weights(below[0], [0, 0, 0], takes, own, False)
            for kind in (0, 1):
                everywhere[kind] += usual[kind]
            for link, counts in below.items():
                if link:
                    weight, more = _weights(below[0], counts, takes, own, link in path), single.setdefault(link, [0, 0])
                    for kind in (0, 1):
                        more[kind] += weight[kind] - usual[kind]
    found = [_best(tree, client, at, *weight) for (at, client), weight in weights.items()]
    return sorted(found, key=lambda one: (-one.saved, one.client))


def _path(tree: Tree, hub: int) -> set[int]:
    """The links from a hub up to the root."""
    found = set[int]()
    while hub:
        found.add(hub)
        hub = tree.above[hub]
    return found


def _weights(whole: _Counts, below: _Counts, takes: bool, own: Sequence[int], inside: bool) -> list[int]:
    """The weight of a link for a client in messages and bytes: see the module's docstring.

    :param inside: whether the client is below the link.
    """
    others_below = below[2] - (takes and inside)
    others_above = whole[2] - takes - others_below
    found = []
    for kind in (0, 1):
        from_below = below[kind] - own[kind] * inside
        from_above = whole[kind] - own[kind] - from_below
        received = takes * (from_above * (not others_below) - from_below * (not others_above))
        found.append(received + own[kind] * (bool(others_above) - bool(others_below)))
    return found


def _best(tree: Tree, client: str, at: int, everywhere: _Counts, single: dict[int, _Counts]) -> Placement:
    """Compare the hubs for a client by the sum of the weights on the way to the root."""
    costs: dict[int, tuple[int, int]] = {0: (0, 0)}
    for hub in sorted(single)[1:]:
        upper, more = costs[tree.above[hub]], single[hub]
        costs[hub] = upper[0] + everywhere[0] + more[0], upper[1] + everywhere[1] + more[1]
    best = min(costs, key=lambda hub: (*costs[hub], hub != at, tree.names[hub]))
    if costs[best][0] == costs[at][0]:  # only fewer messages are worth a move; fewer bytes alone are not
        best = at
    saved, saved_bytes = (costs[at][kind] - costs[best][kind] for kind in (0, 1))
    return Placement(client, tree.names[at], tree.names[best], saved, saved_bytes)
