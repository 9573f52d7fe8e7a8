"""How fast Spark reads a journal, and the same rows from Parquet, in one run by turns.

Try: python benchmarks/spark_source.py [ROWS]

The rows have some thousand keys and payloads of 100 bytes. Each side is read with all columns of a message that were
recorded, into Spark's no-op sink, which makes every row and throws it away: median of some rounds that take turns.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from sbuslib.journal.format import SegmentHeader, encode_block, encode_end, pack, segment_name
from sbuslib.spark import session

BLOCK = 256
KEYS = 1_000
SEGMENT_BYTES = 64_000_000
ROUNDS = 7
SALT = 1
COLUMNS = (
    "time_ns BIGINT, sequence BIGINT, key BINARY, payload BINARY, sender BINARY, gid BIGINT, uid BIGINT, pid BIGINT"
)


def write(directory: str, rows: int) -> None:
    """A journal of so many messages."""
    sender = b"!/cred/100/1000/4711"
    payload = b"x" * 100
    first = start = 1
    data = bytearray(SegmentHeader("0" * 16, "hub", b"/", 0, first, SALT).encode())
    while first <= rows:
        count = min(BLOCK, rows - first + 1)
        names = list({b"room/%d/temperature" % (n * 7 % KEYS): None for n in range(first, first + count)})
        places = {name: n for n, name in enumerate(names)}
        data += encode_block(
            SALT,
            first,
            pack("q", [1_750_000_000_000_000_000 + n * 1_000 for n in range(first, first + count)]),
            pack("q", [100]) * count,
            pack("q", [1000]) * count,
            pack("q", [4711]) * count,
            pack("i", [places[b"room/%d/temperature" % (n * 7 % KEYS)] for n in range(first, first + count)]),
            pack("i", [len(names)]) * count,
            [*names, sender],
            [payload] * count,
        )
        first += count
        if len(data) > SEGMENT_BYTES or first > rows:
            data += encode_end(SALT, first)
            with open(os.path.join(directory, segment_name(start)), "wb") as file:
                file.write(data)
            start = first
            data = bytearray(SegmentHeader("0" * 16, "hub", b"/", 0, first, SALT).encode())


def measure(rows: int, read: Callable[[], object]) -> float:
    """Millions of rows a second."""
    start = time.perf_counter()
    read()
    return rows / (time.perf_counter() - start) / 1e6


def main(rows: int) -> None:
    spark = session("local[2]", settings={"spark.driver.memory": "3g"})
    with tempfile.TemporaryDirectory() as folder:
        journal, parquet = os.path.join(folder, "journal"), os.path.join(folder, "parquet")
        os.mkdir(journal)
        write(journal, rows)
        source = spark.read.format("sbus").schema(COLUMNS).load(journal)
        source.write.parquet(parquet)
        sides = {
            "journal": lambda: source.write.format("noop").mode("overwrite").save(),
            "parquet": lambda: spark.read.parquet(parquet).write.format("noop").mode("overwrite").save(),
        }
        for read in sides.values():
            read()  # Java compiles what it runs
        figures: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(ROUNDS):
            for name, read in sides.items():
                figures[name].append(measure(rows, read))
        for name, values in figures.items():
            low, high = min(values), max(values)
            print(
                f"{name}: {statistics.median(values):.2f} million rows/s, median of {ROUNDS} ({low:.2f} to {high:.2f})"
            )
        ratios = [one / other for one, other in zip(figures["journal"], figures["parquet"], strict=True)]
        print(f"journal to parquet: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 4_000_000)
