"""A program for ``test_kills``: all that works at one journal is killed with SIGKILL, again and again.

That is a recorder, a sealer with retention, an ingester, and a stream's driver. Arguments: the folder, the number of
the first round, and for each round the seconds from the recorder's first durable rows to the kill of all. It prints the
last row that each recorder had told to be durable.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import gevent
from pyspark.sql.streaming.datasource import ReadMaxRows

from sbuslib import Hub
from sbuslib.errors import SbusError
from sbuslib.journal.limits import JournalLimits
from sbuslib.journal.recorder import Recorder
from sbuslib.lake import sealing
from sbuslib.lake.rows import SCHEMA
from sbuslib.spark.reader import Options, read_partition
from sbuslib.spark.source import JournalSource
from sbuslib.spark.stream import JournalStreamReader

LIMITS = JournalLimits(block_records=16, block_seconds=0.002, segment_bytes=20_000)
KEEP_BYTES = 20_000
"""Of the sealed files: some of the first rounds are deleted by the end of fifty."""
BATCH_ROWS = 500


def record(folder: str, number: int, told: int) -> None:
    """Record, publish, and tell the durable sequence, until killed."""
    with Hub(f"{folder}/bus-{number}") as hub, Recorder(hub, f"{folder}/journal", limits=LIMITS) as recorder:
        published, before = 0, recorder.durable_sequence
        while True:
            for _ in range(20):
                published += 1
                hub.publish(b"run/%d" % number, b"%d" % published + b"x" * (published % 200))
            gevent.sleep(0.001)
            if recorder.durable_sequence > before:
                os.write(told, b"%d\n" % recorder.durable_sequence)


def again_and_again(work: Callable[[], object]) -> None:
    """Do it until killed, also after the errors that a recorder leaves that was killed just now."""
    while True:
        try:
            work()
        except (SbusError, OSError) as error:
            if "no end mark" not in str(error) and "cut" not in str(error):
                os.write(2, f"{error}\n".encode())
        time.sleep(0.001)


def seal(folder: str) -> None:
    """Seal, delete segments at once and old files by their size."""
    sealing.UNIT_BYTES = 50_000
    again_and_again(lambda: sealing.seal(f"{folder}/journal", keep_bytes=KEEP_BYTES))


def ingest(folder: str) -> None:
    """Take the rows of the journal into a lake, those of the open segment too."""
    again_and_again(lambda: sealing.ingest([f"{folder}/journal"], f"{folder}/lake"))


def stream(folder: str) -> None:
    """Read batches of rows, as Spark's driver does: a batch's end is noted first, then its rows are written.

    A batch whose rows are not there when it starts is read again, with the end that was noted.
    """
    options = Options.read({"path": f"{folder}/journal"})
    reader, place = JournalStreamReader(options, JournalSource({}).schema()), Path(folder, "stream")
    place.mkdir(exist_ok=True)
    start: dict[str, int] = {}

    def note(name: str, what: Any) -> None:
        aside = place / "new"
        aside.write_text(json.dumps(what))
        aside.rename(place / name)

    def batch(number: int) -> None:
        noted, rows = place / f"{number}.end", place / f"{number}.rows"
        end = json.loads(noted.read_text()) if noted.exists() else reader.latestOffset(start, ReadMaxRows(BATCH_ROWS))
        while end == start:
            time.sleep(0.001)
            end = reader.latestOffset(start, ReadMaxRows(BATCH_ROWS))
        if not noted.exists():
            note(noted.name, end)
        if not rows.exists():
            parts = reader.partitions(start, end)
            batches = [one for part in parts for one in read_partition(part, SCHEMA, options)]
            columns = (one.select(["sequence", "cause", "lost", "payload"]).to_pydict().values() for one in batches)
            note(
                rows.name,
                [(*row, text and text.decode()) for each in columns for *row, text in zip(*each, strict=True)],
            )
        start.update(end)

    numbers = count()
    number = next(numbers)

    def step() -> None:
        nonlocal number
        batch(number)
        number = next(numbers)

    again_and_again(step)


def child(work: Callable[..., object], *arguments: object) -> int:
    """Start a fork that does nothing else."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)  # in case the process that should kill it has ended
            work(*arguments)
        except BaseException:  # the test has to hear of any
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def kill_all(folder: str, number: int, seconds: float) -> bytes:
    """Start all, kill all, and return the last line that the recorder told."""
    reading, told = os.pipe()
    pids = [child(record, folder, number, told)]
    os.close(told)
    with open(reading, "rb") as file:
        heard = file.readline()
        pids += [child(work, folder) for work in (seal, ingest, stream)]
        time.sleep(seconds)
        random.shuffle(pids)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        return (heard + file.read()).splitlines()[-1]


if __name__ == "__main__":
    logging.disable()  # of what each mends of the one before
    for number, seconds in enumerate(map(float, sys.argv[3:]), int(sys.argv[2])):
        print(number, kill_all(sys.argv[1], number, seconds).decode(), flush=True)
