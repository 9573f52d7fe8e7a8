"""Publishes rows as messages on a bus. Each task is a client, and blocks while the bus has no room.

Delivery is at least once: a task that fails after it published some rows publishes them again.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from ..blocking import Client
from ..errors import UsageError

_OPTIONS = ("address", "timeout")


class Target(NamedTuple):
    """The arguments of ``option(...)`` when writing."""

    address: str | None
    timeout: float

    @classmethod
    def read(cls, options: MutableMapping[str, str], schema: StructType) -> Target:
        """Check and parse options. Raises :exc:`~sbuslib.errors.UsageError`."""
        # Spark adds the options of a stream.
        unknown = {name.lower() for name in options} - {*_OPTIONS, "path", "checkpointlocation", "queryname"}
        if unknown:
            raise UsageError(f"no such option: {', '.join(sorted(unknown))}; there are {', '.join(_OPTIONS)}")

        # 1. The columns: a key and a payload.
        columns = {column.name: column.dataType for column in schema.fields}
        for name in ("key", "payload"):
            if name not in columns:
                raise UsageError(f"the columns key and payload are published, and here {name} is missing")
            if not isinstance(columns[name], (BinaryType, StringType)):
                raise UsageError(f"the column {name} is binary or string, not {columns[name].simpleString()}")

        # 2. The options.
        try:
            timeout = float(options.get("timeout", "10"))
        except ValueError:
            timeout = 0.0
        if not timeout > 0:
            raise UsageError(f"timeout is a positive number of seconds, not {options['timeout']!r}")
        return cls(options.get("address", options.get("path")), timeout)


def _bytes(value: bytes | str | None) -> bytes:
    return b"" if value is None else value.encode() if isinstance(value, str) else value


def _messages(batches: Iterator[Any]) -> Iterator[tuple[bytes, bytes]]:
    """Pairs of key and payload. Raises :exc:`~sbuslib.errors.UsageError` for a row without a key."""
    for batch in batches:
        if batch.column("key").null_count:
            raise UsageError("a row has no key: a journal's gaps have none, leave them out with kind = 'message'")
        yield from zip(*(map(_bytes, batch.column(name).to_pylist()) for name in ("key", "payload")), strict=True)


def _publish(target: Target, batches: Iterator[Any]) -> WriterCommitMessage:
    """Publish, and return once the hub has taken all. Raises what :class:`sbuslib.blocking.Client` raises."""
    with Client(target.address, timeout=target.timeout) as client:
        client.publish_many(_messages(batches))
        client.sync()
    return WriterCommitMessage()


class BusWriter(DataSourceArrowWriter):
    """Publishes the rows of a frame."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish one partition."""
        return _publish(self._target, iterator)


class BusStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the rows of a stream, batch by batch."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish one partition of a batch."""
        return _publish(self._target, iterator)
