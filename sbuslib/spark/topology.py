"""A tree of hubs and their clients: read from a file, and turned into frames for :mod:`sbuslib.spark.plan`.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import UsageError
from ..matcher import check_separator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Client", "Hub", "Topology", "hubs_frame", "interests_frame"]


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


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tree of hubs by name, and their clients by name.

    Raises :exc:`~sbuslib.errors.UsageError` if the hubs are not a tree, or if a name is unknown.
    """

    hubs: dict[str, Hub]
    clients: dict[str, Client] = {}
    separator: str = "/"

    def __post_init__(self) -> None:
        check_separator(self.separator.encode())
        roots = [name for name, hub in self.hubs.items() if not hub.above]
        if len(roots) != 1:
            raise UsageError(f"a tree has one hub with nothing above it, not {len(roots)}: {', '.join(roots)}")
        for name, hub in self.hubs.items():
            if hub.above and hub.above not in self.hubs:
                raise UsageError(f"above {name} is {hub.above}, which is not among the hubs")
        for name in self.hubs:
            self.path(name)
        for name, client in self.clients.items():
            if client.hub not in self.hubs:
                raise UsageError(f"client {name} is at {client.hub}, which is not among the hubs")
            for pattern in (*client.subscribes, *client.publishes):
                if "\0" in pattern:
                    raise UsageError(f"client {name}: a pattern cannot hold a NUL byte")

    @property
    def root(self) -> str:
        """The name of the hub without a hub above it."""
        return next(name for name, hub in self.hubs.items() if not hub.above)

    def path(self, hub: str) -> list[str]:
        """The links from a hub up to the root. A link has the name of the hub below it, so ``hub`` itself comes first.

        Raises :exc:`~sbuslib.errors.UsageError` when hubs are above each other in a circle.
        """
        found: list[str] = []
        while self.hubs[hub].above:
            if hub in found:
                raise UsageError(f"hubs stand above each other: {', '.join(found)}")
            found.append(hub)
            hub = self.hubs[hub].above
        return found

    @classmethod
    def read(cls, path: str) -> Topology:
        """Read a file. Raises :exc:`~sbuslib.errors.UsageError`, which names the file, and :exc:`OSError`."""
        try:
            return msgspec.convert(tomllib.loads(Path(path).read_text("utf-8")), cls)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, UsageError) as error:
            raise UsageError(f"{path}: {error}") from None


def hubs_frame(spark: SparkSession, topology: Topology) -> DataFrame:
    """``hub``, ``above`` (null at the root) and ``path``, as :meth:`Topology.path` gives it."""
    rows: list[tuple[Any, ...]] = [
        (name, hub.above or None, topology.path(name)) for name, hub in topology.hubs.items()
    ]
    return spark.createDataFrame(rows, "hub string, above string, path array<string>")


def interests_frame(spark: SparkSession, topology: Topology) -> DataFrame:
    """``hub``, ``client`` and ``pattern`` (binary): one row for each pattern of each client."""
    rows = [
        (client.hub, name, pattern.encode())
        for name, client in topology.clients.items()
        for pattern in dict.fromkeys(client.subscribes)
    ]
    return spark.createDataFrame(rows, "hub string, client string, pattern binary")
