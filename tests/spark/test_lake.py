"""The lake: it has each record once, also after failures and kills, and fewer files after compacting."""

from __future__ import annotations

import random
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark.conftest import SETTINGS
from spark.journals import START_NS, message_block, rows, segment

from sbuslib.errors import JournalError, StateError
from sbuslib.segments.directory import DirectoryLock
from sbuslib.spark import lake as lakes
from sbuslib.spark.lake import Progress, compact, ingest, read
from sbuslib.spark.limits import SparkLimits
from sbuslib.spark.manifest import Manifest, Stream, changed, locked, read_manifest
from sbuslib.spark.places import list_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_NS = 86_400_000_000_000


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """The path for the lake of a test."""
    return tmp_path / "lake"


def sequences(spark: SparkSession, lake: Path) -> list[int]:
    """The numbers of all rows in the lake."""
    return sorted(row.sequence for row in read(spark, lake).select("sequence").collect())


def test_a_journal_becomes_a_lake(
    spark: SparkSession, journal: Path, lake: Path, request: pytest.FixtureRequest
) -> None:
    later = [row._replace(time_ns=row.time_ns + DAY_NS) for row in rows(5, 6)]
    segment(journal, 1, rows(5), (START_NS, "overflow", 4), hub="0012")
    segment(journal, 7, later, hub="0012", sealed=False)
    request.addfinalizer(DirectoryLock(journal).release)  # a recorder is at work
    seen: list[Progress] = []
    ingest(spark, journal, lake, progress=seen.append)
    assert [(one.batch, one.rows) for one in seen] == [(0, 11)]
    frame = read(spark, lake)
    source = spark.read.format("sbus").load(str(journal))
    columns = source.columns
    assert frame.columns == [*columns, "date"]
    assert frame.select(columns).exceptAll(source).count() == 0, "hub is still 0012, and no number"
    assert sorted(map(tuple, frame.groupBy("date").count().selectExpr("string(date)", "count").collect())) == [
        ("2025-06-15", 6),
        ("2025-06-16", 5),
    ]
    ingest(spark, journal, lake, progress=seen.append)
    assert len(seen) == 1, "nothing is new"
    with (journal / "00000000000000000007.sbj").open("ab") as file:
        file.write(message_block(12, rows(3, 12)))
    ingest(spark, journal, lake, progress=seen.append)
    assert sequences(spark, lake) == list(range(1, 15))


class KilledError(Exception):
    """Stands for a kill of the process."""


@pytest.mark.parametrize("step", ["nothing was written", "files were written", "the manifest was changed"])
def test_a_batch_that_failed_is_run_again_and_counts_once(
    spark: SparkSession, journal: Path, lake: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    segment(journal, 1, rows(4), rows(4, 5), rows(4, 9))
    limits = SparkLimits(ingest_rows=4)

    def fail(*arguments: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        if step == "nothing was written":
            patch.setattr(lakes, "_write", fail)
        elif step == "files were written":
            patch.setattr(lakes, "_describe", fail)
        progress = fail if step == "the manifest was changed" else (lambda progress: None)
        with pytest.raises(Exception, match="KilledError"):
            ingest(spark, journal, lake, limits=limits, progress=progress)
    ingest(spark, journal, lake)
    assert sequences(spark, lake) == list(range(1, 13))
    counted = {entry.path for entry in read_manifest(lake).entries}
    assert {path.name for path in lake.glob("batch=*")} == counted, "failed attempts left no directories"


DRIVER = """
import sys
from sbuslib.spark import ingest, session
from sbuslib.spark.limits import SparkLimits
spark = session("local[2]", settings={settings!r})
ingest(spark, {journal!r}, {lake!r}, limits=SparkLimits(ingest_rows=50),
       progress=lambda progress: print(progress.batch, flush=True))
"""


def test_a_killed_driver_loses_no_row_and_takes_none_in_twice(spark: SparkSession, journal: Path, lake: Path) -> None:
    for n in range(10):
        segment(journal, 1 + 60 * n, *(rows(10, 1 + 60 * n + 10 * block) for block in range(6)))
    code = DRIVER.format(settings=SETTINGS, journal=str(journal), lake=str(lake))
    chance = random.Random()
    kills = 0
    while kills < 2:
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdout is not None
            done = not driver.stdout.readline()  # the first batch is there, or there was none
            moment = time.monotonic() + chance.random() * 1.5
            while not done and (left := moment - time.monotonic()) > 0:
                if select.select([driver.stdout], [], [], left)[0]:
                    done = not driver.stdout.readline()
            driver.kill()
        kills += 1
        if done:
            break
    ingest(spark, journal, lake)
    assert sequences(spark, lake) == list(range(1, 601)), f"after {kills} kills"


def test_damage_is_an_error_or_a_gap(spark: SparkSession, journal: Path, lake: Path) -> None:
    path = segment(journal, 1, rows(4), rows(4, 5))
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match=rf"{path.name}: byte \d+: a block is damaged"):
        ingest(spark, journal, lake)
    ingest(spark, journal, lake, on_corrupt="skip")
    gaps = read(spark, lake).where("kind = 'gap'").collect()
    assert [(gap.cause, gap.lost) for gap in gaps] == [("corrupt", 4)]


def test_several_journals_and_days_are_compacted(spark: SparkSession, tmp_path: Path, lake: Path) -> None:
    journals = [tmp_path / "one", tmp_path / "other"]
    for number, journal in enumerate(journals):
        identity = f"{number:016x}"
        blocks = [[row._replace(time_ns=row.time_ns + day * DAY_NS) for row in rows(5)] for day in (0, 0, 1, 1)]
        segment(journal, 1, *blocks, journal=identity, hub=f"hub-{number}")
        ingest(spark, journal, lake, limits=SparkLimits(ingest_rows=5))
    before = sorted(map(tuple, read(spark, lake).collect()))
    assert len(before) == 40
    reader = read(spark, lake)
    assert compact(spark, lake) == (8, 4), "a file for each day and hub"
    assert sorted(map(tuple, read(spark, lake).collect())) == before
    assert sorted(map(tuple, reader.collect())) == before, "a reader that began before is not disturbed"
    assert compact(spark, lake) == (4, 4), "there is nothing to gain"
    compact(spark, lake, limits=SparkLimits(retired_seconds=1e-9))
    assert {path.name for path in lake.glob("batch=*")} == {entry.path for entry in read_manifest(lake).entries}
    assert sorted(map(tuple, read(spark, lake).collect())) == before


def test_follow_takes_in_later_rows_and_compacts(spark: SparkSession, journal: Path, lake: Path) -> None:
    journal.mkdir()
    stop = threading.Event()
    counts: list[int] = []
    limits = SparkLimits(follow_seconds=0.1, compact_batches=2)

    def progress(progress: Progress) -> None:
        counts.append(progress.rows)
        if len(counts) == 1:
            segment(journal, 5, rows(3, 5))
        else:
            stop.set()

    thread = threading.Timer(0.3, lambda: segment(journal, 1, rows(4)))
    thread.start()
    ingest(spark, journal, lake, follow=True, stop=stop, progress=progress, limits=limits)
    thread.join()
    assert counts == [4, 3]
    assert sequences(spark, lake) == list(range(1, 8))
    assert read_manifest(lake).entries[0].path.startswith("batch=compact-")


def test_two_ingests_of_one_journal_are_refused(journal: Path, lake: Path) -> None:
    segment(journal, 1, rows(3))
    (lake / "_checkpoints").mkdir(parents=True)
    unused: Any = None
    with locked(lake / "_checkpoints" / "0123456789abcdef.lock"), pytest.raises(StateError, match="another process"):
        ingest(unused, journal, lake)


def test_ingest_is_refused_if_it_would_take_records_in_twice(journal: Path, lake: Path, tmp_path: Path) -> None:
    segment(journal, 1, rows(3))
    unused: Any = None
    with changed(lake) as change:
        change.manifest = Manifest(streams={"0123456789abcdef": Stream("query", 7, str(journal))})
    with pytest.raises(StateError, match="is not there any more"):
        ingest(unused, journal, lake)
    journal.rename(tmp_path / "moved")
    with pytest.raises(StateError, match=f"from {journal}: let that lead to it"):
        ingest(unused, tmp_path / "moved", lake)


def test_an_empty_journal_makes_an_empty_lake(spark: SparkSession, journal: Path, lake: Path) -> None:
    journal.mkdir()
    ingest(spark, journal, lake)
    assert read(spark, lake).count() == 0
    assert compact(spark, lake) == (0, 0)


def test_a_missing_lake_or_journal_is_an_error(journal: Path, lake: Path) -> None:
    unused: Any = None
    for call in (lambda: read(unused, lake), lambda: compact(unused, lake)):
        with pytest.raises(StateError, match="is no lake: sbus lake ingest makes one"):
            call()
    assert not lake.exists()
    with pytest.raises(JournalError, match="no such directory"):
        ingest(unused, journal, lake)


def test_swapped_places_of_journal_and_lake_are_refused(
    spark: SparkSession, journal: Path, lake: Path, tmp_path: Path
) -> None:
    """Neither directory is changed."""
    segment(journal, 1, rows(3, 0))
    with pytest.raises(JournalError, match="no such directory"):
        ingest(spark, tmp_path / "nothing", lake)
    assert not lake.exists()
    ingest(spark, journal, lake)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(JournalError, match="is a lake"):
        ingest(spark, lake, tmp_path / "other")
    with pytest.raises(JournalError, match="is a journal"):
        ingest(spark, journal, journal)
    for place in (str(lake), lake.as_uri()):
        with pytest.raises(JournalError, match="is a lake"):
            list_segments(place)
    assert sorted(tmp_path.rglob("*")) == before
