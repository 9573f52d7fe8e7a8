"""What a report costs, from the start of the command to the page, in processor time and in time; both engines by turns.

Try: python benchmarks/reports.py [--spark] [CHECKOUT...]

Each report of traffic is made by ``sbus report traffic`` as a process of its own, of 5,000, a million and 3 million
rows in sealed files, with DuckDB. ``--spark`` makes each with Spark as well. A checkout is a folder with another
version of this package; without one, only this version is measured. On a machine that has other work the time tells
little, and the processors' time more.
"""

from __future__ import annotations

import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import numpy
import pyarrow
from pyarrow import parquet

from sbuslib.journal.read.journal_files import sealed_name
from sbuslib.journal.read.schema import SCHEMA

ROUNDS = 3
SIZES = (5_000, 1_000_000, 3_000_000)
KEYS, SENDERS = 1_000, 20
START_NS = 1_750_000_000_000_000_000
JOURNAL = "0123456789abcdef"
PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h: processes whose parent has ended, such as Java, become children of this one, so they count."""


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
            "journal": pyarrow.repeat(JOURNAL, count),
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
        aside = Path(path, "aside")
        parquet.write_table(pyarrow.table(arrays, schema=SCHEMA), aside, compression="zstd")
        span, crc = (int(times[0]), int(times[-1])), crc32(aside.read_bytes())
        aside.rename(Path(path, sealed_name(JOURNAL, int(number[0]) + 1, int(number[-1]) + 1, span, crc)))


def measure(checkout: str, path: str, folder: str, words: list[str]) -> tuple[float, float]:
    """Processor time, that of Java and its workers included, and time of one report, in seconds."""
    # Compiled modules are kept, as those of an installed package are.
    environment = os.environ | {"PYTHONPATH": checkout, "PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "sbuslib", "report", "traffic", path, "--output", f"{folder}/page.html", *words]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, env=environment, check=True, capture_output=True, cwd=checkout)
    took = time.monotonic() - start
    with suppress(ChildProcessError):  # Java ends by itself a little later
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, took


def main(arguments: list[str]) -> None:
    """Measure, and print the median of each."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    checkouts = [one for one in arguments if one != "--spark"]
    ways = {"DuckDB": list[str]()} | ({"Spark": ["--engine", "spark"]} if "--spark" in arguments else {})
    with tempfile.TemporaryDirectory() as folder:
        for rows in SIZES:
            path = f"{folder}/{rows}"
            write(path, rows)
            found = dict[tuple[str, str], list[tuple[float, float]]]()
            for number in range(ROUNDS + 1):
                for checkout in checkouts:
                    for way, words in ways.items():
                        measured = measure(checkout, path, folder, words)
                        if number:  # the first one compiles
                            found.setdefault((checkout, way), []).append(measured)
            for (checkout, way), each in found.items():
                cpu, wall = (statistics.median(one) for one in zip(*each, strict=True))
                load = os.getloadavg()[0]
                print(
                    f"{rows:9,} rows  {checkout}  {way:6}: {cpu:6.2f} s of CPU, {wall:6.2f} s (load {load:.1f})",
                    flush=True,
                )


if __name__ == "__main__":
    main([*sys.argv[1:], str(Path(__file__).parents[1])])
