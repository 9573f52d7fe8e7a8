"""Publishes rows as messages on a bus. Each task is a client, and blocks while the bus has no room.

Delivery is at least once: a task that fails after it published some rows publishes them again. With the option
``envelope`` each payload carries an id that is the same both times. It comes from the column ``id``. If there is no
such column, it is made of the query, the batch, the partition and the place of the row in the partition. A shuffle may
change that place between attempts, so a query with a shuffle should have a column ``id``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from ..blocking import Client
from ..errors import UsageError
from .envelope import seal

__all__ = ["BusStreamWriter", "BusWriter", "Published", "Target"]


@dataclass(frozen=True)
class Target:
    """The arguments of ``option(...)`` when writing."""

    address: str | None
    timeout: float
    envelope: bool
    has_id: bool
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    NAMES: ClassVar = ("address", "timeout", "envelope")

    @classmethod
    def read(cls, options: MutableMapping[str, str], schema: StructType) -> Target:
        """Check and parse options. Raises :exc:`~sbuslib.errors.UsageError`."""
        # Spark adds the options of a stream.
        unknown = {name.lower() for name in options} - {*cls.NAMES, "path", "checkpointlocation", "queryname"}
        if unknown:
            raise UsageError(f"no such option: {', '.join(sorted(unknown))}; there are {', '.join(cls.NAMES)}")

        # 1. The columns: a key and a payload, and an id where messages may be published twice.
        columns = {column.name: column.dataType for column in schema.fields}
        for name in ("key", "payload"):
            if name not in columns:
                raise UsageError(f"the columns key and payload are published, and here {name} is missing")
        for name in ("key", "payload", "id"):
            if name in columns and not isinstance(columns[name], (BinaryType, StringType)):
                raise UsageError(f"the column {name} is binary or string, not {columns[name].simpleString()}")

        # 2. The options.
        envelope = options.get("envelope", "false").lower()
        if envelope not in ("true", "false"):
            raise UsageError(f"envelope is true or false, not {envelope!r}")
        try:
            timeout = float(options.get("timeout", "10"))
        except ValueError:
            timeout = 0.0
        if not timeout > 0:
            raise UsageError(f"timeout is a positive number of seconds, not {options['timeout']!r}")
        address = options.get("address", options.get("path"))
        return cls(address, timeout, envelope == "true", "id" in columns)


@dataclass
class Published(WriterCommitMessage):
    """How many messages a task published."""

    messages: int


def _bytes(value: bytes | str | None) -> bytes:
    return b"" if value is None else value.encode() if isinstance(value, str) else value


def _messages(target: Target, batches: Iterator[Any]) -> Iterator[tuple[bytes, bytes]]:
    """Pairs of key and payload. Raises :exc:`~sbuslib.errors.UsageError` for a row without a key."""
    context = TaskContext.get()
    where = [target.run, "0", "0"]
    if context is not None:
        # The id of the query and the number of the batch stay the same after a restart from the checkpoint.
        query = context.getLocalProperty("sql.streaming.queryId")
        if query:
            where[:2] = query, context.getLocalProperty("streaming.sql.batchId") or "0"
        where[2] = str(context.partitionId())
    prefix = "/".join(where).encode()
    numbers = count()
    for batch in batches:
        keys, payloads = batch.column("key").to_pylist(), batch.column("payload").to_pylist()
        ids = batch.column("id").to_pylist() if target.has_id else None
        if batch.column("key").null_count:
            raise UsageError("a row has no key: a journal's gaps have none, leave them out with kind = 'message'")
        for n, (key, payload) in enumerate(zip(keys, payloads, strict=True)):
            number = next(numbers)
            if target.envelope:
                id = b"%b/%d" % (prefix, number) if ids is None else _bytes(ids[n])
                yield _bytes(key), seal(id, _bytes(payload))
            else:
                yield _bytes(key), _bytes(payload)


def _publish(target: Target, batches: Iterator[Any]) -> Published:
    """Publish, and return once the hub has taken all. Raises what :class:`sbuslib.blocking.Client` raises."""
    with Client(target.address, timeout=target.timeout) as client:
        published = client.publish_many(_messages(target, batches))
        client.sync()
    return Published(published)


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
