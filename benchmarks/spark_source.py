"""How fast Spark reads a journal, and the same rows from Parquet, in one run by turns.

Try: python benchmarks/spark_source.py [ROWS]

The rows have a thousand keys and payloads of 100 bytes, and are read into Spark's no-op sink, which makes every row and
throws it away. The payloads are measurements as text, no two alike, as a bus carries them; then all the same, of which
Parquet keeps one and makes no bytes again; then only two columns are read. What a reading costs before its first row
is measured with a journal of one block, and told apart; the figures hold it, on both sides. On a machine that has other
work the time tells little, and the processors' time more.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from sbuslib.bench.process import cpu_seconds
from sbuslib.segments.encoding import encode_block, encode_end
from sbuslib.segments.layout import SegmentHeader, pack, segment_name
from sbuslib.spark import session

BLOCK = 256
KEYS = 1_000
SEGMENT_BYTES = 64_000_000
ROUNDS = 7
WARM_UP = 3
"""Rounds that do not count: Java compiles what it runs."""
SALT = 1
ALL = "time_ns BIGINT, sequence BIGINT, key BINARY, payload BINARY, sender BINARY, gid BIGINT, uid BIGINT, pid BIGINT"
TWO = "time_ns BIGINT, key BINARY"


def measured(number: int) -> bytes:
    """A payload that no other message has."""
    form = b'{"number": %10d, "value": %8.3f, "unit": "C", "state": "measured", "quality": "good", "by": 17}  '
    return form % (number, number * 7919 % 100_000 / 1000)


def alike(number: int) -> bytes:
    """The same payload for all."""
    return b"x" * 100


def write(directory: str, rows: int, payload: Callable[[int], bytes]) -> None:
    """A journal of so many messages."""
    os.mkdir(directory)
    sender = b"!/cred/100/1000/4711"
    first = start = 1
    data = bytearray(SegmentHeader("0" * 16, "hub", b"/", 0, first, SALT).encode())
    while first <= rows:
        count = min(BLOCK, rows - first + 1)
        names = list({b"room/%d/temperature" % (n * 7 % KEYS): None for n in range(first, first + count)})
        places = {name: n for n, name in enumerate(names)}
        data += encode_block(
            SALT,
            first,
            pack("q", [1_750_000_000_000_000_000 + n * 1_000 + n * 7919 % 997 for n in range(first, first + count)]),
            pack("q", [100]) * count,
            pack("q", [1000]) * count,
            pack("q", [4711]) * count,
            pack("i", [places[b"room/%d/temperature" % (n * 7 % KEYS)] for n in range(first, first + count)]),
            pack("i", [len(names)]) * count,
            [*names, sender],
            [payload(n) for n in range(first, first + count)],
        )
        first += count
        if len(data) > SEGMENT_BYTES or first > rows:
            data += encode_end(SALT, first)
            with open(os.path.join(directory, segment_name(start)), "wb") as file:
                file.write(data)
            start = first
            data = bytearray(SegmentHeader("0" * 16, "hub", b"/", 0, first, SALT).encode())


def descendants() -> list[int]:
    """Java and its workers in Python: all processes that come from this one."""
    found, new = set[int](), [os.getpid()]
    while new:
        lists = Path(f"/proc/{new.pop()}/task").glob("*/children")
        children = {int(child) for file in lists for child in file.read_text().split()} - found
        found |= children
        new.extend(children)
    return sorted(found)


def take(frame: DataFrame) -> tuple[float, float]:
    """Seconds, and seconds of the processors."""
    before, start = cpu_seconds(descendants()), time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start, cpu_seconds(descendants()) - before


def main(rows: int) -> None:
    spark = session("local[2]", settings={"spark.driver.memory": "3g"})
    with tempfile.TemporaryDirectory() as folder:

        def sides(name: str, columns: str) -> tuple[Callable[[], DataFrame], Callable[[], DataFrame]]:
            places = os.path.join(folder, name), os.path.join(folder, f"{name}.parquet")
            names = [column.split()[0] for column in columns.split(", ")]
            return (
                lambda: spark.read.format("sbus").schema(columns).load(places[0]),
                lambda: spark.read.parquet(places[1]).select(names),
            )

        for name, count, payload in (("one", BLOCK, measured), ("measured", rows, measured), ("alike", rows, alike)):
            write(os.path.join(folder, name), count, payload)
            sides(name, ALL)[0]().write.parquet(os.path.join(folder, f"{name}.parquet"))
        pairs = {
            "one block": sides("one", ALL),
            "payloads of their own": sides("measured", ALL),
            "payloads all alike": sides("alike", ALL),
            "two columns": sides("measured", TWO),
        }
        figures: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in pairs}
        for turn in range(-WARM_UP, ROUNDS):
            for name, frames in pairs.items():
                taken = [take(frame()) for frame in frames]
                if turn >= 0:
                    figures[name].append(taken)
    spark.stop()
    fixed = [statistics.median(seconds for seconds, _ in side) for side in zip(*figures.pop("one block"), strict=True)]
    print(f"{rows:,} rows; before the first row: journal {fixed[0]:.2f} s, Parquet {fixed[1]:.2f} s; {ROUNDS} rounds")
    for name, rounds in figures.items():
        for what, at in (("time", 0), ("processor time", 1)):
            costs = [statistics.median(one[at] / rows * 1e9 for one in side) for side in zip(*rounds, strict=True)]
            ratios = sorted(parquet[at] / journal[at] for journal, parquet in rounds)
            print(
                f"{name}, {what} a row: journal {costs[0]:.0f} ns, Parquet {costs[1]:.0f} ns; "
                f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 4_000_000)
