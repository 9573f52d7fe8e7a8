"""Small recordings in memory, with the columns of a journal, and the rows of a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import msgspec
import pyarrow

from sbuslib.journal.read.schema import SCHEMA
from sbuslib.reports.sql import InDuckDB

__all__ = ["SECOND", "START_NS", "Row", "gap", "in_memory", "message", "recording"]

SECOND = 1_000_000_000
START_NS = 1_750_000_000 * SECOND


class Row(msgspec.Struct, kw_only=True):
    """A row of a journal, its time in seconds since :data:`START_NS`; ``None`` for a gap of unknown time."""

    kind: str
    at: float | None
    journal: str = "journal-1"
    hub: str | None = "hub-1"
    key: bytes | None = None
    size: int | None = None
    sender: bytes | None = None
    gid: int | None = None
    uid: int | None = None
    pid: int | None = None
    lost: int | None = None
    cause: str | None = None


def message(key: bytes, payload: bytes = b"", at: float = 0, size: int | None = None, **others: Any) -> Row:
    """A message, by default of user 1000. ``size`` replaces the size of the payload."""
    size = len(payload) if size is None else size
    fields: dict[str, Any] = {"sender": b"!/cred/100/1000/4711", "gid": 100, "uid": 1000, "pid": 4711} | others
    return Row(kind="message", at=at, key=key, size=size, **fields)


def gap(lost: int | None, cause: str, at: float | None = 0, hub: str = "hub-1", journal: str = "journal-1") -> Row:
    """A gap; ``lost`` is ``None`` where nobody knows how many messages are missing."""
    return Row(kind="gap", at=at, journal=journal, hub=hub, lost=lost, cause=cause)


def recording(rows: Iterable[Row]) -> pyarrow.Table:
    """A table of these rows, numbered from 1 on."""
    found = []
    for sequence, row in enumerate(rows, 1):
        ns = None if row.at is None else START_NS + round(row.at * SECOND)
        time = None if ns is None else ns // 1_000
        found.append(msgspec.structs.asdict(row) | {"sequence": sequence, "time_ns": ns, "time": time})
    return pyarrow.Table.from_pylist(found, SCHEMA)


@contextmanager
def in_memory(rows: Iterable[Row] | pyarrow.Table) -> Iterator[InDuckDB]:
    """These rows in DuckDB."""
    table = rows if isinstance(rows, pyarrow.Table) else recording(rows)
    with duckdb.connect() as base:
        yield InDuckDB(base.from_arrow(table))
