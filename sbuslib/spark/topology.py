"""A tree of hubs and their clients, read from a file, for :mod:`sbuslib.spark.plan`.

The file is TOML::

    [hubs.root]

    [hubs.plant]
    above = "root"

    [clients.heating]
    hub = "plant"
    subscribes = ["room/*/target"]
    publishes = ["room/*/temp"]     # it published the messages under these keys
    uid = 1000                      # by this user
    sender = "!/cred/0/1000/4711"   # and by this sender

If a recorded message fits several clients, the first of them published it. If it fits none, it was published at the hub
whose ``recorded`` is the id of the hub that recorded it, or else at the root.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import msgspec

from ..errors import UsageError
from ..matcher import check_separator

__all__ = ["Client", "Hub", "Topology", "Tree"]


class Tree:
    """Hubs by number: the root is 0, and every other hub has a larger number than the hub above it.

    So a loop from the last hub to the first meets each hub after all hubs below it.

    :param above: for each hub, the hub above it; empty at the root.

    Raises :exc:`~sbuslib.errors.UsageError` if the hubs are not a tree, or if a name is unknown.
    """

    def __init__(self, above: Mapping[str, str]) -> None:
        below = defaultdict[str, list[str]](list)
        for name, upper in above.items():
            if upper and upper not in above:
                raise UsageError(f"above {name} is {upper}, which is not among the hubs")
            below[upper].append(name)
        if len(below[""]) != 1:
            raise UsageError(f"a tree has one hub with nothing above it, not {len(below[''])}: {', '.join(below[''])}")
        self.names = [*below[""]]
        """The name of each hub."""
        for name in self.names:
            self.names += below[name]
        self.number = {name: number for number, name in enumerate(self.names)}
        """The number of each hub, by its name."""
        if len(self.names) < len(above):
            circle = [next(name for name in above if name not in self.number)]
            while (upper := above[circle[-1]]) not in circle:
                circle.append(upper)
            raise UsageError(f"hubs stand above each other: {', '.join(circle[circle.index(upper) :])}")
        self.above = [self.number.get(above[name], 0) for name in self.names]
        """The number of the hub above each hub; of the root, its own."""


class Hub(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A hub: the hub ``above`` it, empty at the root, and its id in the recording, ``recorded``."""

    above: str = ""
    recorded: str = ""


class Client(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client of a ``hub``: the patterns that it ``subscribes`` to, and which recorded messages it published.

    These are the messages whose key, user and sender fit ``publishes`` (patterns), ``uid`` and ``sender``. Without any
    of the three, the client published nothing.
    """

    hub: str
    subscribes: tuple[str, ...] = ()
    publishes: tuple[str, ...] = ()
    uid: int | None = None
    sender: str = ""


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A tree of hubs by name, and their clients by name.

    Raises :exc:`~sbuslib.errors.UsageError` if the hubs are not a tree, or if a name is unknown.
    """

    hubs: dict[str, Hub]
    clients: dict[str, Client] = {}
    separator: str = "/"

    def __post_init__(self) -> None:
        check_separator(self.separator.encode())
        _ = self.tree
        for name, client in self.clients.items():
            if client.hub not in self.hubs:
                raise UsageError(f"client {name} is at {client.hub}, which is not among the hubs")
            for pattern in (*client.subscribes, *client.publishes):
                if "\0" in pattern:
                    raise UsageError(f"client {name}: a pattern cannot hold a NUL byte")

    @cached_property
    def tree(self) -> Tree:
        """The hubs by number."""
        return Tree({name: hub.above for name, hub in self.hubs.items()})

    @classmethod
    def read(cls, path: str) -> Topology:
        """Read a file. Raises :exc:`~sbuslib.errors.UsageError`, which names the file, and :exc:`OSError`."""
        try:
            return msgspec.convert(tomllib.loads(Path(path).read_text("utf-8")), cls)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, UsageError) as error:
            raise UsageError(f"{path}: {error}") from None
