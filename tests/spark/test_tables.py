"""The tables of a report as CSV and Parquet."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from spark.frames import rows_of

from sbuslib.spark.tables import write_csv, write_parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_tables_are_written_and_replaced(spark: SparkSession, tmp_path: Path) -> None:
    values = [(b'a"b\xff', [b"x y", b"", b"z"], 2), (None, [], 1)]
    frame = spark.createDataFrame(values, "key binary, others array<binary>, count int")
    for directory in ("once", "once"):
        write_csv({"keys": frame, "counts": frame.select("count")}, f"{tmp_path}/{directory}")
        write_parquet({"keys": frame}, f"{tmp_path}/parquet")
    (path,) = (tmp_path / "once" / "keys").glob("*.csv")
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["key", "others", "count"],
            ['a"b\\xff', 'x\\x20y "" z', "2"],
            ["", "", "1"],
        ]
    assert sorted(rows_of(spark.read.parquet(f"{tmp_path}/parquet/keys"), "count")) == [(1,), (2,)]
