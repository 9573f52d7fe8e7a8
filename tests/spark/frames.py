"""Small frames with the columns of a journal, for the tests of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SECOND", "START_NS", "Row", "gap", "message", "recording", "rows_of"]

SECOND = 1_000_000_000
START_NS = 1_750_000_000 * SECOND

COLUMNS = (
    "time timestamp, time_ns bigint, journal string, hub string, sequence bigint, kind string, key binary, "
    "payload binary, size bigint, sender binary, gid bigint, uid bigint, pid bigint, lost bigint, cause string"
)


class Row(msgspec.Struct, kw_only=True):
    """A row of a journal, its time in seconds since :data:`START_NS`."""

    kind: str
    at: float
    hub: str = "hub-1"
    key: bytes | None = None
    payload: bytes | None = None
    size: int | None = None
    sender: bytes | None = None
    gid: int | None = None
    uid: int | None = None
    lost: int | None = None
    cause: str | None = None


def message(key: bytes, payload: bytes = b"", at: float = 0, size: int | None = None, **others: Any) -> Row:
    """A message, by default of user 1000. ``size`` replaces the size of the payload."""
    sender = others.pop("sender", b"!/cred/100/1000/4711")
    size = len(payload) if size is None else size
    return Row(
        kind="message", at=at, key=key, payload=payload, size=size, sender=sender, gid=100, **{"uid": 1000} | others
    )


def gap(lost: int, cause: str, at: float = 0, hub: str = "hub-1") -> Row:
    return Row(kind="gap", at=at, hub=hub, lost=lost, cause=cause)


def recording(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    """A frame of these rows, numbered from 1 on."""
    from datetime import UTC, datetime, timedelta

    values = []
    for sequence, row in enumerate(rows, 1):
        ns = START_NS + round(row.at * SECOND)
        time = datetime.fromtimestamp(START_NS // SECOND, UTC) + timedelta(seconds=row.at)
        pid = None if row.uid is None else 4711
        who = row.sender, row.gid, row.uid, pid
        what = row.hub, sequence, row.kind, row.key, row.payload, row.size
        values.append((time, ns, "journal", *what, *who, row.lost, row.cause))
    return spark.createDataFrame(values, COLUMNS)


def rows_of(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of a frame, with all columns or with these. Values of binary columns are ``bytes``."""
    rows = frame.select(*columns).collect() if columns else frame.collect()
    return [tuple(bytes(value) if isinstance(value, bytearray) else value for value in row) for row in rows]
