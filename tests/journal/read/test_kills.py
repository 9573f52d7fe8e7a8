"""Recorder, sealer, ingester and driver are killed together, while retention and readers run: each row is read once.

``SBUS_SEAL_RUNS`` says how many kills there are.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from journal.format.journals import READERS
from journal.read.plain import rows_of_journal
from support import PATIENCE, TESTS, python

from sbuslib import Hub, read
from sbuslib.errors import SbusError
from sbuslib.journal.read.blocks import read_records
from sbuslib.journal.read.sealing import ingest, seal
from sbuslib.journal.recorder import Recorder
from sbuslib.reading import Engine

RUNS = int(os.environ.get("SBUS_SEAL_RUNS", "5"))
COLUMNS = ["sequence", "kind", "key", "payload", "cause"]


def check(sequences: list[int]) -> tuple[int, int]:
    """The first and the last number; every one between is there once."""
    assert sorted(sequences) == [*range(min(sequences), max(sequences) + 1)]
    return min(sequences), max(sequences)


def accounted(rows: list[dict[str, Any]]) -> list[int]:
    """The numbers that a reading tells of: those of its rows, and those that were deleted before it came to them."""
    found = list[int]()
    for row in rows:
        lost = row["lost"] if row["cause"] == "deleted" else 1
        found += range(row["sequence"] - lost + 1, row["sequence"] + 1)
    return found


class Reading(threading.Thread):
    """Reads all durable rows again and again. Each number is told once, and neither end goes back."""

    def __init__(self, journal: str) -> None:
        super().__init__(daemon=True)  # a run that hangs here ends all the same
        self.journal = journal
        self.stopping = threading.Event()
        self.readings = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        first = last = 0
        try:
            while not self.stopping.wait(0.01):
                if not os.path.isdir(self.journal):
                    continue
                rows = read(self.journal, columns=["sequence", "cause", "lost"], durable_only=True).to_pylist()
                if rows and rows[-1]["cause"] == "cut":  # until the next recorder writes what it knows of the kill
                    rows.pop()
                if rows:
                    now = check(accounted(rows))
                    assert now[0] >= first
                    assert now[1] >= last
                    first, last = now
                    self.readings += 1
        except BaseException as error:  # the test has to hear of any
            self.error = error


def rows_of(journal: str, engine: Engine) -> list[tuple[Any, ...]]:
    """The rows as an engine reads them, in the order of their numbers."""
    rows = READERS[engine](read(journal, engine, columns=COLUMNS))
    return sorted(tuple(row[column] for column in COLUMNS) for row in rows)


def check_copies(folder: str, journal: dict[int, tuple[str | None, bytes | None]]) -> None:
    """Lake and stream tell of each number once, and have the rows that the journal has."""
    with suppress(SbusError):  # the last kill may have been just before the first
        ingest([f"{folder}/journal"], f"{folder}/lake")
    batches = sorted(Path(folder, "stream").glob("*.rows"), key=lambda path: int(path.stem))
    streamed = [
        {"sequence": sequence, "cause": cause, "lost": lost, "payload": payload and payload.encode()}
        for path in batches
        for sequence, cause, lost, payload in json.loads(path.read_text())
    ]
    for rows in (read(f"{folder}/lake").to_pylist(), streamed):
        if rows:  # on a busy machine each stream may have been killed before its first batch
            check(accounted(rows))
        for row in rows:
            if row["cause"] != "deleted" and row["sequence"] in journal:
                assert (row["cause"], row["payload"]) == journal[row["sequence"]]
    print(f"lake and stream: {len(read(f'{folder}/lake'))} and {len(streamed)} rows, {len(batches)} batches")


@pytest.mark.promise("journal.md", "Every reader gives the same rows")
@pytest.mark.seconds(60 + 6 * RUNS)
def test_every_engine_reads_each_row_once_after_kills_of_all_that_works_at_a_journal(folder: str) -> None:
    journal, moments = f"{folder}/journal", random.Random()
    reading = Reading(journal)
    reading.start()
    try:
        seconds = [f"{moments.random() * 0.6:.6f}" for _ in range(RUNS)]
        python(str(Path(__file__).parent / "killed.py"), folder, *seconds, PYTHONPATH=str(TESTS))
    finally:
        reading.stopping.set()
        reading.join(PATIENCE)
    assert not reading.is_alive()
    assert reading.error is None, reading.error

    # As the last kill left it: what the page of the format makes of the files, and the gap that tells of the kill.
    whole = rows_of_journal(journal)
    for engine in READERS:
        read_now = rows_of(journal, engine)
        assert read_now[: len(whole)] == whole, engine
        assert [row[4] for row in read_now[len(whole) :]] in ([], ["cut"]), engine
    assert [(row.sequence, row.cause) for row in read_records(journal)] == [(row[0], row[4]) for row in read_now]
    assert reading.readings > 0
    with Hub(f"{folder}/bus") as hub, Recorder(hub, journal):
        hub.publish(b"end", b"")
    seal(journal)
    rows = {engine: rows_of(journal, engine) for engine in READERS}
    first, last = check([row[0] for row in rows["arrow"]])
    print(f"{RUNS} kills: rows {first} to {last}, {reading.readings} readings meanwhile")
    for engine, others in rows.items():
        assert others == rows["arrow"], engine
    check_copies(folder, {row[0]: (row[4], row[3]) for row in rows["arrow"]})

    # Of each run, what was recorded is there in order; only retention deletes, from the start.
    before: tuple[bytes, int] = b"", 0
    for _, kind, key, payload, cause in rows["arrow"][:-1]:
        if kind == "gap":
            assert cause in ("cut", "outage")
            continue
        number = int(re.match(rb"\d+", payload)[0])  # type: ignore[index]
        assert number == before[1] + 1 if key == before[0] else number == 1 or not before[0]
        before = key, number
    assert rows["arrow"][-1][2] == b"end"
