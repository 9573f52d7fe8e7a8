"""Columns of recorded rows, and their encodings in sealed files."""

from __future__ import annotations

import pyarrow

_COLUMNS = [
    ("time", pyarrow.timestamp("us", tz="UTC"), "deltas"),
    ("time_ns", pyarrow.int64(), "deltas"),
    ("journal", pyarrow.string(), "dictionary"),
    ("hub", pyarrow.string(), "dictionary"),
    ("sequence", pyarrow.int64(), "deltas"),
    ("kind", pyarrow.string(), "dictionary"),
    ("key", pyarrow.binary(), "dictionary"),
    ("payload", pyarrow.binary(), "plain"),
    ("size", pyarrow.int64(), "dictionary"),
    ("sender", pyarrow.binary(), "dictionary"),
    ("gid", pyarrow.int64(), "dictionary"),
    ("uid", pyarrow.int64(), "dictionary"),
    ("pid", pyarrow.int64(), "dictionary"),
    ("lost", pyarrow.int64(), "plain"),
    ("cause", pyarrow.string(), "dictionary"),
]

SCHEMA = pyarrow.schema([(name, kind) for name, kind, _ in _COLUMNS])
"""All columns of the data source, in Arrow's types."""

DICTIONARIES = [name for name, _, stored in _COLUMNS if stored == "dictionary"]
"""Columns that sealed files encode as dictionaries."""

DELTAS = [name for name, _, stored in _COLUMNS if stored == "deltas"]
"""Columns that sealed files encode as differences."""
