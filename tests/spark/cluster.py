"""What the test of a cluster runs as a driver of its own. Prints JSON."""

from __future__ import annotations

import json
import sys

from sbuslib.spark import ingest, read, session
from sbuslib.spark.traffic import by_user, digest


def main(master: str, journal: str, bus: str, folder: str, quick: str) -> None:
    """Source, sink, stream and a report, by workers that are processes of their own."""
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.defaultJavaOptions": quick,
        "spark.executor.defaultJavaOptions": quick,
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        # Both workers shall have work, though one of them may come a little later.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.cores.max": "2",
    }
    spark = session(master, settings=settings)
    frame = spark.read.format("sbus").load(journal)
    found: dict[str, object] = {"rows": frame.count()}
    rows = frame.selectExpr("key", "payload").repartition(2)
    rows.write.format("sbus").mode("append").option("address", bus).save()
    ingest(spark, journal, f"{folder}/lake")
    users = by_user(digest(read(spark, f"{folder}/lake"), 3600)).collect()
    found["users"] = [[row.uid, row.messages, row.bytes] for row in users]
    spark.stop()
    print(json.dumps(found))


main(*sys.argv[1:])
