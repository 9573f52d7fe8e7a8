"""Workers exclude their objects from garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sbuslib.spark.workers import settle_once

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession


def test_settling_freezes_objects_in_workers_only(spark: SparkSession) -> None:
    def frozen(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        settle_once()
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"count": pa.array([gc.get_freeze_count()])})

    before = gc.get_freeze_count()
    settle_once()
    assert gc.get_freeze_count() == before
    ((count,),) = spark.range(1, numPartitions=1).mapInArrow(frozen, "count long").collect()
    assert count > 10_000
