"""A program for ``test_kills``: all that works at one journal is killed with SIGKILL, again and again.

That is a recorder, a sealer with retention, an ingester, and a stream's driver. Arguments: the folder, and for each
round the seconds from the recorder's first durable rows to the kill of all.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from killing import kill, record
from pyspark.sql.streaming.datasource import ReadMaxRows

from sbuslib.errors import SbusError
from sbuslib.journal.limits import JournalLimits
from sbuslib.journal.read import sealing, units
from sbuslib.journal.read.retention import retain
from sbuslib.journal.read.schema import SCHEMA
from sbuslib.spark.reader import Options, read_partition
from sbuslib.spark.source import JournalSource
from sbuslib.spark.stream import JournalStreamReader

LIMITS = JournalLimits(block_records=16, block_seconds=0.002, segment_bytes=20_000)
KEEP_BYTES = 20_000
"""Of the sealed files: some of the first rounds are deleted by the end of fifty."""
BATCH_ROWS = 500


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
    units.UNIT_BYTES = 50_000

    def step() -> None:
        sealing.seal(f"{folder}/journal")
        retain(f"{folder}/journal", KEEP_BYTES, None)

    again_and_again(step)


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


if __name__ == "__main__":
    logging.disable()  # of what each mends of the one before
    folder = sys.argv[1]
    others = [partial(work, folder) for work in (seal, ingest, stream)]
    for number, seconds in enumerate(map(float, sys.argv[2:])):
        bus, journal = f"{folder}/bus-{number}", f"{folder}/journal"
        recorder = partial(record, bus=bus, journal=journal, number=number, limits=LIMITS, pause=0.001)
        kill(seconds, recorder, others)
