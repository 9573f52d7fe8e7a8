"""The tables of a report as CSV and Parquet."""

from __future__ import annotations

import csv
from pathlib import Path

from pyarrow import parquet

from sbuslib.spark.tables import table_of, write_csv, write_parquet


def test_tables_are_written_and_replaced(tmp_path: Path) -> None:
    columns = {"key": "binary", "count": "int64"}
    table = table_of([(b'a"b\xff', 2), (None, 1)], columns)
    others = [[b"x y", b"", b"z"], []]
    for directory in ("once", "once"):
        write_csv({"keys": table.append_column("others", [others])}, f"{tmp_path}/{directory}")
        write_parquet({"keys": table, "none": table_of([], columns)}, f"{tmp_path}/parquet")
    with (tmp_path / "once" / "keys.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["key", "count", "others"],
            ['a"b\\xff', "2", 'x\\x20y "" z'],
            ["", "1", ""],
        ]
    assert parquet.read_table(tmp_path / "parquet" / "keys.parquet").equals(table)
    empty = parquet.read_table(tmp_path / "parquet" / "none.parquet")
    assert (empty.num_rows, empty.schema) == (0, table.schema)
