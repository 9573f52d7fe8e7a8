"""The columns of what was recorded."""

from __future__ import annotations

import pyarrow

__all__ = ["SCHEMA"]

SCHEMA = pyarrow.schema(
    [
        ("time", pyarrow.timestamp("us", tz="UTC")),
        ("time_ns", pyarrow.int64()),
        ("journal", pyarrow.string()),
        ("hub", pyarrow.string()),
        ("sequence", pyarrow.int64()),
        ("kind", pyarrow.string()),
        ("key", pyarrow.binary()),
        ("payload", pyarrow.binary()),
        ("size", pyarrow.int64()),
        ("sender", pyarrow.binary()),
        ("gid", pyarrow.int64()),
        ("uid", pyarrow.int64()),
        ("pid", pyarrow.int64()),
        ("lost", pyarrow.int64()),
        ("cause", pyarrow.string()),
    ]
)
"""All columns of the data source, in Arrow's types."""
