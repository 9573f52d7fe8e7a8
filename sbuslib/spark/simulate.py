"""A synthetic tree of hubs of any size with traffic and interest, for :mod:`sbuslib.spark.plan`.

Hub 0 is the root, and hub *i* is below hub *(i - 1) // fan_out*. A *site* is a hub of the second level with all hubs
below it. Each hub has one client, which has the hub's name and

* publishes its figures under ``site/<site>/<hub>/state``;
* receives orders under ``hub/<hub>/set/power``: from the hub of its site, but one client in ten from a distant hub;
* receives ``news/``, which the root publishes.

One hub in :data:`WATCHERS` receives all figures of its site.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import UsageError
from .plan import Flow, Interest
from .topology import Tree

__all__ = ["FAN_OUT", "WATCHERS", "interests", "traffic", "tree"]

FAN_OUT = 8
"""How many hubs are directly below a hub."""

WATCHERS = 100
"""One hub in so many receives all figures of its site."""

_FIGURES, _ORDERS, _NEWS = 60, 3, 10
_FIGURE_BYTES, _ORDER_BYTES, _NEWS_BYTES = 220, 90, 500
_SCATTER = 2_654_435_761
"""A prime near the golden section of 2**32, which spreads its multiples evenly (Knuth's multiplicative hash)."""


def tree(hubs: int, fan_out: int = FAN_OUT) -> Tree:
    """The tree. The name of a hub is its number. Raises :exc:`~sbuslib.errors.UsageError`."""
    if hubs < 1 or fan_out < 2:
        raise UsageError(f"a tree has one hub or more and a fan-out of two or more, not {hubs} and {fan_out}")
    return Tree({str(hub): str((hub - 1) // fan_out) if hub else "" for hub in range(hubs)})


def _sites(tree: Tree) -> list[int]:
    """The site of each hub; of the hubs of the first levels, the hub itself."""
    sites = list[int]()
    for hub, above in enumerate(tree.above):
        sites.append(sites[above] if above and tree.above[above] else hub)
    return sites


def interests(tree: Tree) -> Iterator[Interest]:
    """What the clients of the tree subscribe to."""
    for hub, site in enumerate(_sites(tree)):
        client = str(hub)
        yield Interest(hub, client, b"news/")
        yield Interest(hub, client, b"hub/%d/set/" % hub)
        if hub % WATCHERS == WATCHERS - 1:
            yield Interest(hub, client, b"site/%d/" % site)


def traffic(tree: Tree) -> Iterator[Flow]:
    """What the clients of the tree publish."""
    hubs = len(tree.above)
    for hub, site in enumerate(_sites(tree)):
        yield _flow(hub, b"site/%d/%d/state" % (site, hub), _FIGURES, _FIGURE_BYTES)
        master = site if hub % 10 else hub * _SCATTER % hubs
        yield _flow(master, b"hub/%d/set/power" % hub, _ORDERS, _ORDER_BYTES)
    yield _flow(0, b"news/today", _NEWS, _NEWS_BYTES)


def _flow(hub: int, key: bytes, messages: int, size: int) -> Flow:
    return Flow(hub, str(hub), key, messages, messages * (len(key) + 5 + size))
