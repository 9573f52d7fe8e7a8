"""The tables of a report as CSV and Parquet."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path

from pyarrow import parquet

from sbuslib.reports.exports import Table, write_csv, write_parquet

TIME = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_tables_are_written_and_replaced(tmp_path: Path) -> None:
    columns = {"key": "binary", "count": "int64", "others": "keys", "at": "time"}
    table = Table(columns, [(b'a"b\xff', 2, [b"x y", b"", b"z"], TIME), (None, None, [], None)])
    for _ in range(2):
        write_csv({"keys": table}, f"{tmp_path}/once")
        write_parquet({"keys": table, "none": Table(columns, [])}, f"{tmp_path}/parquet")
    with (tmp_path / "once" / "keys.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["key", "count", "others", "at"],
            ['a"b\\xff', "2", 'x\\x20y "" z', "2026-03-01 12:00:00+00:00"],
            ["", "", "", ""],
        ]
    read = parquet.read_table(tmp_path / "parquet" / "keys.parquet")
    assert [tuple(row.values()) for row in read.to_pylist()] == table.rows
    empty = parquet.read_table(tmp_path / "parquet" / "none.parquet")
    assert (empty.num_rows, empty.schema) == (0, read.schema)


def test_a_table_tells_its_columns_and_sums() -> None:
    table = Table({"a": "int64", "b": "int64"}, [(1, None), (2, 5)])
    assert (table.column("b"), table.total("a"), table.total("b")) == ([None, 5], 3, 5)
