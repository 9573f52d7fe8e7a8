"""What it costs in Spark to match many patterns, beside a plain count by key of the same rows; planning counts in both.

Run ``python benchmarks/spark_subscriptions.py [ROWS]``: 5,000 patterns against 2 million rows over 10,000 keys, from
Parquet, on two cores; the two take turns. Half of the speed of the count or more is wanted.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sbuslib.spark.matching import by_key
from sbuslib.spark.sessions import session
from sbuslib.spark.subscriptions import received

KEYS = 10_000
PATTERNS = 5_000
ROUNDS = 11
WARM_UP = 5
"""Rounds that do not count: Java compiles what it runs."""


def make_keys() -> list[bytes]:
    """A hundred sites, each with a hundred figures."""
    return [b"site/%d/machine/%d/figure/%d" % (n // 100, n % 100 // 5, n % 5) for n in range(KEYS)]


def make_patterns() -> list[bytes]:
    """Of all kinds: single keys, one star, two, whole machines and sites; a tenth of them matches nothing."""
    chance = random.Random(7)
    found: dict[bytes, None] = {b"": None}
    while len(found) < PATTERNS:
        site, machine, figure = chance.randrange(100), chance.randrange(20), chance.randrange(5)
        kinds = (
            b"site/%d/machine/%d/figure/%d" % (site, machine, figure),
            b"site/%d/machine/%d/" % (site, machine),
            b"site/%d/machine/*/figure/%d" % (site, figure),
            b"site/*/machine/%d/figure/%d" % (machine, figure),
            b"site/%d/" % site,
            b"site/%d/machine/%d/other/%d" % (site, machine, chance.randrange(10**6)),
            b"machine/%d/*" % chance.randrange(10**6),
        )
        found[chance.choices(kinds, (40, 20, 10, 5, 1, 8, 2))[0] if len(found) < 3_500 else kinds[0]] = None
        if len(found) < PATTERNS and len(found) >= 3_500:
            found[b"site/%d/machine/%d/figure/%d/%d" % (site, machine, figure, len(found))] = None
    return list(found)


def make_rows(spark: SparkSession, rows: int, place: str) -> DataFrame:
    """Rows as a lake holds them."""
    names = spark.createDataFrame(list(enumerate(make_keys())), "number int, key binary")
    frame = spark.range(rows).select(
        f.col("id").alias("sequence"),
        f.lit("message").alias("kind"),
        (f.pmod(f.xxhash64("id"), f.lit(KEYS))).cast("int").alias("number"),
        (f.pmod(f.xxhash64("id", f.lit(1)), f.lit(200))).alias("size"),
    )
    frame.join(f.broadcast(names), "number").drop("number").write.parquet(place)
    return spark.read.parquet(place)


def seconds(job: Callable[[], DataFrame]) -> float:
    started = time.perf_counter()
    job().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def main(rows: int) -> None:
    spark = session("local[2]")
    patterns = make_patterns()
    with tempfile.TemporaryDirectory() as folder:
        frame = make_rows(spark, rows, f"{folder}/rows")

        def count() -> DataFrame:
            return frame.groupBy("key").count()

        def match() -> DataFrame:
            return received(by_key(frame), patterns)

        matched = match().where("messages > 0").count()
        print(f"{len(patterns):,} patterns, {matched:,} of which match; {rows:,} rows over {KEYS:,} keys")
        for _ in range(WARM_UP):
            for job in (count, match):
                seconds(job)
        counting, matching = [], []
        for _ in range(ROUNDS):
            counting.append(seconds(count))
            matching.append(seconds(match))
    for name, taken in (("count by key", counting), ("match", matching)):
        print(f"{name}: {rows / statistics.median(taken) / 1e6:.2f} million rows a second")
    ratios = [one / other for one, other in zip(counting, matching, strict=True)]
    print(f"ratio: {statistics.median(ratios):.2f} (of {ROUNDS} pairs from {min(ratios):.2f} to {max(ratios):.2f})")
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 2_000_000)
