"""Batch reader of the data source: its options, the division into tasks, and the rows of a task.

It holds the reader of batches, and what that shares with the reader of streams. Spark plans in one process and reads in
others: it calls ``partitions`` once, and ``read`` once for each task. The interface is that of
:mod:`pyspark.sql.datasource` in Spark 4.3.

Filters are options (``startTime``, ``pattern``, ...). ``pushFilters`` is left out on purpose: with it, Spark 4.3 gives
wrong answers when a frame is used twice.
"""

from __future__ import annotations

import base64
import gc
import json
import pickle
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, cast

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ..errors import UsageError
from ..journal.read.arrow_batches import batches
from ..journal.read.journal_files import absolute
from ..journal.read.read_plan import RowRange, plan
from ..journal.read.schema import SCHEMA
from ..journal.read.selection import Selection, nanoseconds

PARTITION_BYTES = 134_217_728
"""Bytes of a journal that one task reads: Spark's default for other files. A task costs some 0.1 s."""


def encode_plan(row_ranges: list[RowRange], wanted: Selection) -> str:
    """Encode a read plan as the value of an option: options are text."""
    return base64.b85encode(pickle.dumps((row_ranges, wanted))).decode()


@dataclass(frozen=True)
class Options:
    """The arguments of ``option(...)`` and ``load(...)`` when reading."""

    places: tuple[str, ...]
    wanted: Selection
    on_corrupt: Literal["error", "skip"]
    max_records: int | None
    durable_only: bool
    row_ranges: list[RowRange] | None
    """The read plan, if it was made before."""

    NAMES: ClassVar = (
        "path",
        "paths",
        "startTime",
        "endTime",
        "pattern",
        "onCorrupt",
        "maxRecordsPerBatch",
        "durableOnly",
        "plan",
    )

    @classmethod
    def read(cls, options: MutableMapping[str, str]) -> Options:
        """Check and parse options. As in Spark, their names may have any case.

        Raises :exc:`~sbuslib.errors.UsageError`.
        """
        unknown = {name.lower() for name in options} - {name.lower() for name in cls.NAMES}
        if unknown:
            raise UsageError(f"no such option: {', '.join(sorted(unknown))}; there are {', '.join(cls.NAMES[2:-1])}")

        # 1. Where to read.
        given = {name: options[name] for name in cls.NAMES if name in options}
        paths = json.loads(given["paths"]) if "paths" in given else []
        if "path" in given:
            paths = [given["path"], *paths]
        if not paths:
            raise UsageError("which journal? Name its directory: load('/var/lib/sbus/journal')")

        # 2. How. A wrong value ends here, and not in each task.
        on_corrupt = given.get("onCorrupt", "error")
        if on_corrupt not in ("error", "skip"):
            raise UsageError(f"onCorrupt is 'error' or 'skip', not {on_corrupt!r}")
        most = given.get("maxRecordsPerBatch")
        if most is not None and not (most.isascii() and most.isdigit() and int(most) > 0):
            raise UsageError(f"maxRecordsPerBatch is a positive whole number, not {most!r}")
        durable_only = given.get("durableOnly", "false").lower()
        if durable_only not in ("true", "false"):
            raise UsageError(f"durableOnly is 'true' or 'false', not {durable_only!r}")

        # 3. The selection, unless the plan has it already.
        wanted = Selection(
            start_ns=nanoseconds("startTime", given.get("startTime")),
            end_ns=nanoseconds("endTime", given.get("endTime")),
            patterns=(given["pattern"].encode(),) if "pattern" in given else None,
        )
        places = tuple(dict.fromkeys(map(absolute, paths)))
        policy = cast(Literal["error", "skip"], on_corrupt)
        row_ranges = None
        if "plan" in given:  # of :func:`.lake.read_frame`
            row_ranges, wanted = pickle.loads(base64.b85decode(given["plan"]))
        return cls(places, wanted, policy, int(most) if most else None, durable_only == "true", row_ranges)


def group(row_ranges: Iterable[RowRange], most: int = PARTITION_BYTES) -> list[InputPartition]:
    """Divide ranges among tasks, in order. A task reads at most ``most`` bytes, or one range."""
    partitions: list[InputPartition] = []
    chunk: list[RowRange] = []
    size = 0
    for row_range in row_ranges:
        if chunk and size + row_range.size > most:
            partitions.append(InputPartition(chunk))
            chunk, size = [], 0
        chunk.append(row_range)
        size += row_range.size
    if chunk:
        partitions.append(InputPartition(chunk))
    return partitions


def read_partition(partition: InputPartition, schema: Any, options: Options) -> Iterator[Any]:
    """Yield the record batches of one task, with the columns of the Arrow ``schema``.

    Raises :exc:`~sbuslib.errors.JournalError`.
    """
    if partition.value is None:
        return  # Spark makes a partition of its own when there are none
    settle_once()
    yield from batches(partition.value, schema, options.wanted, options.on_corrupt)


@lru_cache(maxsize=1)
def settle_once() -> None:
    """Exclude all existing objects from garbage collection, at the first call in a worker.

    A worker is a process that runs one task after the other, and Spark collects after each. That takes some 20 ms for
    all imported modules, while the next task waits. Call it after making objects that are needed as long as the process
    lives. Current garbage is never freed, either.
    """
    if TaskContext.get() is not None:
        gc.freeze()


def arrow_schema(schema: StructType) -> Any:
    """Convert columns to an Arrow schema. Raises :exc:`~sbuslib.errors.UsageError` for unknown columns and types."""
    known = from_arrow_schema(SCHEMA)
    for field in schema.fields:
        if field.name not in known.names:
            raise UsageError(f"there is no column {field.name!r}: there are {', '.join(known.names)}")
        if field.dataType != known[field.name].dataType:
            expected, given = known[field.name].dataType.simpleString(), field.dataType.simpleString()
            raise UsageError(f"the column {field.name} is of type {expected}, not {given}")
    return to_arrow_schema(schema, timezone="UTC")


class JournalReader(DataSourceReader):
    """Reads journals as they are when Spark plans the reading."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)  # the columns that are read

    def partitions(self) -> list[InputPartition]:
        """Divide the files of all journals among tasks. Raises :exc:`~sbuslib.errors.JournalError`."""
        options = self._options
        if options.row_ranges is not None:
            return group(options.row_ranges)
        plans = plan(options.places, options.wanted, durable_only=options.durable_only)
        return group(row_range for row_ranges in plans.values() for row_range in row_ranges)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of one task."""
        return read_partition(partition, self._schema, self._options)
