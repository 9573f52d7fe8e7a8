"""The driver of the test of a cluster, a process of its own. It prints JSON."""

from __future__ import annotations

import json
import sys

from sbuslib.lake.sealing import ingest
from sbuslib.reports.sql import in_spark
from sbuslib.reports.traffic import summaries
from sbuslib.spark import session
from sbuslib.spark.lake import on_spark


def main(master: str, journal: str, bus: str, folder: str, quick: str) -> None:
    """Read a journal, publish its rows, take it into a lake and count its users."""
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.defaultJavaOptions": quick,
        "spark.executor.defaultJavaOptions": quick,
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        # Wait for both workers, so that each has work.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.cores.max": "2",
    }
    spark = session(master, settings=settings)
    frame = spark.read.format("sbus").load(journal)
    found: dict[str, object] = {"rows": frame.count()}
    rows = frame.selectExpr("key", "payload").repartition(2)
    rows.write.format("sbus").mode("append").option("address", bus).save()
    ingest([journal], f"{folder}/lake", run=on_spark(spark))
    users = summaries(in_spark(spark, f"{folder}/lake"), 3600)["by_user"].rows
    found["users"] = [[uid, messages, size] for uid, _, messages, size in users]
    spark.stop()
    print(json.dumps(found))


main(*sys.argv[1:])
