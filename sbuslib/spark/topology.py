"""A tree of hubs and their clients, as a file describes it, and as the frames that :mod:`sbuslib.spark.plan` takes.

The file is TOML::

    [hubs.root]

    [hubs.plant]
    above = "root"

    [clients.heating]
    hub = "plant"
    subscribes = ["room/*/target"]
    publishes = ["room/*/temp"]     # in the recording, what matches this is its,
    uid = 1000                      # if it is from this user as well,
    sender = "!/cred/0/1000/4711"   # and from this sender

Of several clients that a recorded message may be from, the first is taken. What is from none was published at the hub
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
    """A hub: the one ``above`` it, empty at the root, and the id under which it is ``recorded``."""

    above: str = ""
    recorded: str = ""


class Client(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client of a ``hub``: the patterns that it ``subscribes`` to, and how to tell what it published.

    ``publishes`` are patterns of keys, ``uid`` and ``sender`` narrow them down; with none of the three, it publishes
    nothing.
    """

    hub: str
    subscribes: tuple[str, ...] = ()
    publishes: tuple[str, ...] = ()
    uid: int | None = None
    sender: str = ""


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tree of hubs by name, and their clients by name.

    Raises :exc:`~sbuslib.errors.UsageError` where it is no tree, or names what is not there.
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
        """The hub with nothing above it."""
        return next(name for name, hub in self.hubs.items() if not hub.above)

    def path(self, hub: str) -> list[str]:
        """The links between a hub and the root, each called by the hub below it: the hub itself first.

        Raises :exc:`~sbuslib.errors.UsageError` when the way up does not end.
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
        """From a file. Raises :exc:`~sbuslib.errors.UsageError`, which names it, and :exc:`OSError`."""
        try:
            return msgspec.convert(tomllib.loads(Path(path).read_text("utf-8")), cls)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, UsageError) as error:
            raise UsageError(f"{path}: {error}") from None


def hubs_frame(spark: SparkSession, topology: Topology) -> DataFrame:
    """``hub``, ``above`` (null at the root) and ``path``: what :meth:`Topology.path` gives."""
    rows: list[tuple[Any, ...]] = [
        (name, hub.above or None, topology.path(name)) for name, hub in topology.hubs.items()
    ]
    return spark.createDataFrame(rows, "hub string, above string, path array<string>")


def interests_frame(spark: SparkSession, topology: Topology) -> DataFrame:
    """``hub``, ``client`` and ``pattern`` (binary): one row for each pattern that a client holds."""
    rows = [
        (client.hub, name, pattern.encode())
        for name, client in topology.clients.items()
        for pattern in dict.fromkeys(client.subscribes)
    ]
    return spark.createDataFrame(rows, "hub string, client string, pattern binary")
