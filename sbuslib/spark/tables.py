"""Writes the tables of a report for machines, as Parquet or CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ..wire.text import printable

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

__all__ = ["as_text", "write_csv", "write_parquet"]


def as_text(frame: DataFrame) -> DataFrame:
    """``frame`` with bytes as :func:`~sbuslib.wire.text.printable` text, and lists as their items with blanks between.

    In a list, a blank within an item is written as ``\\x20``, and an empty item as ``""``.
    """
    from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

    lists = {field.name for field in frame.schema.fields if isinstance(field.dataType, ArrayType)}
    texts = {field.name for field in frame.schema.fields if isinstance(field.dataType, BinaryType)} | lists
    if not texts:
        return frame
    schema = StructType(
        [StructField(field.name, StringType()) if field.name in texts else field for field in frame.schema.fields]
    )

    def show(value: object) -> str | None:
        match value:
            case None:
                return None
            case list():
                return " ".join((show(one) or '""').replace(" ", "\\x20") for one in value)
            case bytes():
                return printable(value)
        return str(value)

    def convert(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            columns = [
                pa.array(map(show, column.to_pylist()), pa.string()) if name in texts else column
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, batch.schema.names)

    return frame.mapInArrow(convert, schema)


def write_parquet(tables: Mapping[str, DataFrame], directory: str) -> None:
    """Write each table into ``directory/NAME``, a directory of Parquet files. It is replaced if it is there."""
    for name, frame in tables.items():
        frame.write.mode("overwrite").parquet(f"{directory}/{name}")


def write_csv(tables: Mapping[str, DataFrame], directory: str) -> None:
    """Write each table into ``directory/NAME``, a directory with one CSV file. It is replaced if it is there."""
    for name, frame in tables.items():
        # One file keeps the order of the table.
        as_text(frame).coalesce(1).write.mode("overwrite").csv(f"{directory}/{name}", header=True, escape='"')
