"""What a report costs, from the start of Spark to the page, in processor time and in time; several checkouts by turns.

Try: python benchmarks/reports.py [CHECKOUT...]

Each report of traffic is made by a process of its own, of 5,000 and of 3 million rows in Parquet files. A checkout is a
folder with another version of this package; without one, only this version is measured. On a machine that has other
work the time tells little, and the processors' time more.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import pyarrow
from pyarrow import parquet

from sbuslib.lake.rows import SCHEMA

ROUNDS = 5
SIZES = (5_000, 3_000_000)
KEYS, SENDERS = 1_000, 20
START_NS = 1_750_000_000_000_000_000

REPORT = """
import glob, os, sys
from sbuslib.spark import sessions
from sbuslib.spark.reports import traffic
spark = sessions.session(settings=getattr(sessions, "QUICK", {}))  # as the commands start it
report = traffic(spark.read.parquet(sys.argv[1]))
open(sys.argv[2], "w").write(report.page())
# This process, Java and the Python that Java has started: all that are in its process group or in ours.
java = spark.sparkContext._gateway.proc.pid
used = 0
for path in glob.glob("/proc/[0-9]*/stat"):
    try:
        fields = open(path).read().rpartition(")")[2].split()
    except OSError:
        continue
    if int(fields[2]) in (java, os.getpgrp()):
        used += sum(map(int, fields[11:15]))
print(used / os.sysconf("SC_CLK_TCK"))
spark.stop()
"""


def write(path: str, rows: int) -> None:
    """Messages of an hour as a lake has them, in four files."""
    os.mkdir(path)
    for part in range(4):
        number = numpy.arange(part * rows // 4, (part + 1) * rows // 4)
        count = len(number)
        times = START_NS + number * (3_600_000_000_000 // rows)
        keys = pyarrow.array([b"site/%d/machine/%d/temp" % (n % 10, n) for n in range(KEYS)]).take(
            pyarrow.array(number * 7 % KEYS)
        )
        senders = pyarrow.array([b"!/cred/100/%d/%d" % (1000 + n % 5, n) for n in range(SENDERS)])
        columns = {
            "time": pyarrow.array(times // 1_000, pyarrow.timestamp("us", tz="UTC")),
            "time_ns": times,
            "journal": pyarrow.repeat("0123456789abcdef", count),
            "hub": pyarrow.repeat("hub-1", count),
            "sequence": number + 1,
            "kind": pyarrow.repeat("message", count),
            "key": keys,
            "payload": pyarrow.array([b"%100d" % n for n in number.tolist()]),
            "size": pyarrow.repeat(100, count),
            "sender": senders.take(pyarrow.array(number % SENDERS)),
            "gid": pyarrow.repeat(100, count),
            "uid": 1000 + number % SENDERS % 5,
            "pid": number % SENDERS,
            "lost": pyarrow.nulls(count, pyarrow.int64()),
            "cause": pyarrow.nulls(count, pyarrow.string()),
        }
        arrays = [pyarrow.array(columns[field.name]).cast(field.type) for field in SCHEMA]
        parquet.write_table(pyarrow.table(arrays, schema=SCHEMA), f"{path}/part-{part}.parquet", compression="zstd")


def measure(checkout: str, path: str, page: str) -> tuple[float, float]:
    """Processor time and time of one report, in seconds."""
    start = time.monotonic()
    environment = os.environ | {"PYTHONPATH": checkout}
    command = [sys.executable, "-c", REPORT, path, page]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, process_group=0)
    return float(done.stdout), time.monotonic() - start


def main(checkouts: list[str]) -> None:
    """Measure, and print the median of each and the ratio to the last checkout."""
    with tempfile.TemporaryDirectory() as folder:
        for rows in SIZES:
            path = f"{folder}/{rows}"
            write(path, rows)
            found: dict[str, list[tuple[float, float]]] = {checkout: [] for checkout in checkouts}
            for _ in range(ROUNDS):
                for checkout in checkouts:
                    found[checkout].append(measure(checkout, path, f"{folder}/page.html"))
            last = [statistics.median(one) for one in zip(*found[checkouts[-1]], strict=True)]
            for checkout, each in found.items():
                cpu, wall = (statistics.median(one) for one in zip(*each, strict=True))
                print(
                    f"{rows:9,} rows  {checkout}: {cpu:6.2f} s of processors ({last[0] / cpu:.2f}), "
                    f"{wall:6.2f} s ({last[1] / wall:.2f})",
                    flush=True,
                )


if __name__ == "__main__":
    main([*sys.argv[1:], str(Path(__file__).parents[1])])
