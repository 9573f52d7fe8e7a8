"""How fast journals are sealed, and how fast Spark reads them beside Parquet of its own, in one run by turns.

Try: python benchmarks/sealed.py [ROWS]

The rows have a thousand keys and payloads of 100 bytes, measurements as text, no two alike. They are sealed by ``sbus
seal`` in a process of its own, once, and once more with nothing new. Then ``sbuslib.read(engine="spark")`` reads the
journal when all of it is sealed, and when a tenth of it is still in segments. Beside it, Spark reads Parquet files that
Spark has written of the same rows. All columns and two columns go into Spark's no-op sink, which makes every row and
throws it away; then rows are counted, and counted by key. On a machine that has other work the time tells little, and
the processors' time more.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

import sbuslib
from sbuslib.bench.process import cpu_seconds
from sbuslib.journal.format.encoding import encode_block, encode_end
from sbuslib.journal.format.layout import SegmentHeader, pack, segment_name
from sbuslib.journal.read.sealing import seal
from sbuslib.spark import session

BLOCK = 256
KEYS = 1_000
SEGMENTS = 10
ROUNDS = 5
WARM_UP = 2
"""Rounds that do not count: Java compiles what it runs."""
SALT = 1


def write(directory: str, rows: int) -> None:
    """A journal of so many messages, in ten segments."""
    os.mkdir(directory)
    sender = b"!/cred/100/1000/4711"
    form = b'{"number": %10d, "value": %8.3f, "unit": "C", "state": "measured", "quality": "good", "by": 17}  '
    each = rows // SEGMENTS // BLOCK * BLOCK
    for segment in range(SEGMENTS):
        start = 1 + segment * each
        end = rows if segment == SEGMENTS - 1 else start + each - 1
        with open(os.path.join(directory, segment_name(start)), "wb") as file:
            file.write(SegmentHeader("0" * 16, "hub", b"/", 0, start, SALT).encode())
            for first in range(start, end + 1, BLOCK):
                numbers = range(first, min(first + BLOCK, end + 1))
                count = len(numbers)
                names = list({b"room/%d/temperature" % (n * 7 % KEYS): None for n in numbers})
                places = {name: n for n, name in enumerate(names)}
                file.write(
                    encode_block(
                        SALT,
                        first,
                        {
                            "times": pack(
                                "q", [1_750_000_000_000_000_000 + n * 1_000 + n * 7919 % 997 for n in numbers]
                            ),
                            "gids": pack("q", [100]) * count,
                            "uids": pack("q", [1000]) * count,
                            "pids": pack("q", [4711]) * count,
                            "keys": pack("i", [places[b"room/%d/temperature" % (n * 7 % KEYS)] for n in numbers]),
                            "senders": pack("i", [len(names)]) * count,
                        },
                        [*names, sender],
                        [form % (n, n * 7919 % 100_000 / 1000) for n in numbers],
                    )
                )
            file.write(encode_end(SALT, end + 1))


def sealed_by_itself(directory: str) -> tuple[float, float, int]:
    """Seconds, seconds of the processors and bytes of memory of ``sbus journal seal`` as a process of its own."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "sbuslib", "journal", "seal", "-q", directory], check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, cpu, after.ru_maxrss * 1024


def descendants() -> list[int]:
    """Java and its workers in Python: all processes that come from this one."""
    found, new = set[int](), [os.getpid()]
    while new:
        lists = Path(f"/proc/{new.pop()}/task").glob("*/children")
        children = {int(child) for file in lists for child in file.read_text().split()} - found
        found |= children
        new.extend(children)
    return sorted(found)


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and seconds of the processors, of this process too: it looks for the files."""
    pids = [*descendants(), os.getpid()]
    before, start = cpu_seconds(pids), time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    pids = [*descendants(), os.getpid()]
    return seconds, cpu_seconds(pids) - before


def throw_away(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


QUESTIONS: dict[str, Callable[[DataFrame], object]] = {
    "all columns": throw_away,
    "two columns": lambda frame: throw_away(frame.select("time_ns", "key")),
    "count()": lambda frame: frame.count(),
    "groupBy(key).count()": lambda frame: throw_away(frame.groupBy("key").count()),
}


def journals(folder: str, rows: int) -> dict[str, str]:
    """A journal that is sealed, and one of which the last segment is not."""
    whole, live = f"{folder}/sealed", f"{folder}/a tenth live"
    write(whole, rows)
    shutil.copytree(whole, live)
    last = max(Path(live).glob("*.sbj"))
    last.rename(f"{folder}/last")
    seal(live)
    Path(f"{folder}/last").rename(last)
    for number in range(2):
        seconds, cpu, memory = sealed_by_itself(whole)
        what = "nothing new" if number else f"{rows / cpu:,.0f} rows a second of one core, start of Python included"
        print(f"sbus journal seal: {seconds:.2f} s, {cpu:.2f} s of CPU, {memory >> 20} MB: {what}")
    return {"sealed": whole, "a tenth live": live}


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        there = journals(folder, rows)
        spark = session("local[2]", settings={"spark.driver.memory": "3g"})
        plain = f"{folder}/plain"
        sbuslib.read(there["sealed"], "spark").write.parquet(plain)
        sides: dict[str, Callable[[], Any]] = {
            name: lambda place=place: sbuslib.read(place, "spark")
            for name, place in there.items()  # type: ignore[misc]
        }
        sides["Parquet"] = lambda: spark.read.parquet(plain)
        taken: dict[str, dict[str, list[tuple[float, float]]]] = {
            question: {side: [] for side in sides} for question in QUESTIONS
        }
        for turn in range(-WARM_UP, ROUNDS):
            for question, ask in QUESTIONS.items():
                for side, frame in sides.items():
                    once = measured(lambda ask=ask, frame=frame: ask(frame()))  # type: ignore[misc]
                    if turn >= 0:
                        taken[question][side].append(once)
        spark.stop()
    print(f"{rows:,} rows, {ROUNDS} rounds by turns; medians, and ratios to Parquet: more is faster")
    for question, by_side in taken.items():
        for side in there:
            for what, at in (("time", 0), ("CPU", 1)):
                ours, theirs = ([one[at] for one in by_side[name]] for name in (side, "Parquet"))
                ratios = sorted(parquet / journal for parquet, journal in zip(theirs, ours, strict=True))
                print(
                    f"{question}, {side}, {what}: {statistics.median(ours):.2f} s, "
                    f"Parquet {statistics.median(theirs):.2f} s; "
                    f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3_000_000)
