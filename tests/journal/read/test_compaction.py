"""Small files of a lake become one: each row is there once, whoever is killed and whoever reads meanwhile.

``SBUS_COMPACT_RUNS`` says how many compactions are killed, and ``SBUS_COMPACT_FILES`` of how many files.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import duckdb
import pytest
from journal.format.journals import START_NS, flip, rows, segment
from pyspark.sql.streaming.datasource import ReadMaxRows
from support import PATIENCE, ROOT, eventually

from sbuslib import read
from sbuslib.errors import CorruptJournalError, JournalError, JournalInUseError
from sbuslib.journal.format.directory import DirectoryLock
from sbuslib.journal.read.blocks import read_records
from sbuslib.journal.read.compaction import compact
from sbuslib.journal.read.journal_files import list_sealed, sealed_name
from sbuslib.journal.read.sealing import Written, ingest, seal
from sbuslib.journal.verify import verify
from sbuslib.reading import Engine
from sbuslib.spark.reader import Options
from sbuslib.spark.source import JournalSource
from sbuslib.spark.stream import JournalStreamReader

JOURNAL = "0123456789abcdef"
RUNS = int(os.environ.get("SBUS_COMPACT_RUNS", "10"))


def names(place: Path) -> list[tuple[int, int]]:
    return [(file.first, file.last) for file in list_sealed(str(place))]


def small_files(lake: Path, count: int, first: int = 1, of_each: int = 5, **header: Any) -> None:
    """Fill a lake with files of a few rows each, as an ingest each minute does."""
    for start in range(first, first + count * of_each, of_each):
        journal = lake.with_name(f"{lake.name}-{start}")
        segment(journal, start, rows(of_each, start), **header)
        ingest([journal], lake)


def numbers(lake: Path) -> list[int]:
    return sorted(read(lake, columns=["sequence"]).column("sequence").to_pylist())


def test_adjoining_small_files_become_one(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    small_files(lake, 12)
    before = read(lake)
    assert len(names(lake)) == 12
    made: list[Written] = []
    assert compact(lake, progress=made.append) == 12
    assert names(lake) == [(1, 60)]
    assert [written.rows for written in made] == [60]
    assert read(lake).equals(before)
    assert verify(lake).is_whole
    assert compact(lake, progress=made.append) == 0, "nothing is left to do"
    assert len(made) == 1


def test_small_files_become_one_on_their_way_into_another_lake(tmp_path: Path) -> None:
    lake, other = tmp_path / "lake", tmp_path / "other"
    small_files(lake, 12)
    for _ in range(2):
        ingest([lake], other)
        assert names(other) == [(1, 60)]
    assert read(other).equals(read(lake))
    small_files(lake, 3, 61)
    ingest([lake], other)
    assert names(other) == [(1, 60), (61, 75)]
    assert compact(other) == 2
    assert names(other) == [(1, 75)]


def test_files_of_other_hubs_days_and_journals_and_with_rows_between_stay_apart(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    small_files(lake, 2)
    small_files(lake, 2, 11, hub="hub-2")
    small_files(lake, 2, 31, hub="hub-2")
    small_files(lake, 2, 86_400 * 2, hub="hub-2")
    small_files(lake, 2, 86_410, journal="ffffffffffffffff")
    small_files(lake, 2, 86_400 * 2 + 10, hub="hub-2", separator=b".")
    before = read(lake)
    assert compact(lake) == 12
    far = 86_400 * 2
    assert names(lake) == [(1, 10), (11, 20), (31, 40), (far, far + 9), (far + 10, far + 19), (86_410, 86_419)]
    assert (
        read(lake)
        .sort_by([("journal", "ascending"), ("sequence", "ascending")])
        .equals(before.sort_by([("journal", "ascending"), ("sequence", "ascending")]))
    )


def test_a_large_file_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = tmp_path / "lake"
    small_files(lake, 2, of_each=2_000)
    large = max(file.size for file in list_sealed(str(lake)))
    small_files(lake, 3, 4_001)
    monkeypatch.setattr("sbuslib.journal.read.units.SMALL_BYTES", large)
    assert compact(lake) in (3, 4)
    assert names(lake)[-1][1] == 4_015
    assert (1, 2_000) in names(lake) or (2_001, 4_000) in names(lake)


def test_a_damaged_file_stays_and_all_others_are_joined(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    small_files(lake, 9)
    damaged = sorted(lake.glob("*.parquet"))[4]
    flip(damaged, damaged.stat().st_size // 4)
    with pytest.raises(CorruptJournalError, match=damaged.name):
        compact(lake)
    assert names(lake) == [(1, 20), (21, 25), (26, 45)]


def test_a_file_goes_only_if_the_larger_one_has_each_of_its_rows(tmp_path: Path) -> None:
    lake, other = tmp_path / "lake", tmp_path / "other"
    path = segment(tmp_path / "damaged", 1, rows(10), rows(10, 11), rows(10, 21))
    flip(path, path.stat().st_size // 2)
    ingest([tmp_path / "damaged"], lake, on_corrupt="skip")
    small_files(other, 6)
    for file in other.glob("*.parquet"):
        file.rename(lake / file.name)
    compact(lake)
    assert names(lake) == [(1, 30), (11, 15), (16, 20)]


def test_two_files_of_the_same_rows_stay(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    small_files(lake, 1)
    (path,) = lake.glob("*.parquet")
    data = path.read_bytes() + b"x"
    name = sealed_name(JOURNAL, 1, 5, (START_NS, START_NS), crc32(data))
    (lake / name).write_bytes(data)
    compact(lake)
    assert names(lake) == [(1, 5), (1, 5)]


def test_a_journal_that_is_taken_in_just_now_is_left_alone(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    small_files(lake, 3)
    small_files(lake, 3, 101, journal="ffffffffffffffff")
    lock = DirectoryLock(lake, f"_{JOURNAL}.lock")
    with pytest.raises(JournalInUseError, match=JOURNAL):
        compact(lake)
    lock.close()
    assert names(lake) == [(1, 5), (6, 10), (11, 15), (101, 115)]
    compact(lake)
    assert names(lake) == [(1, 15), (101, 115)]


def test_a_journal_is_not_compacted(tmp_path: Path, journal: Path) -> None:
    for first in (1, 11):
        segment(journal, first, rows(10, first))
    seal(journal)
    for place in (journal, journal / "sealed"):
        with pytest.raises(JournalError, match="no lake"):
            compact(place)


def test_what_a_killed_compaction_wrote_aside_is_removed(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    small_files(lake, 3)
    (lake / f"_{JOURNAL}-{6:020d}.new").write_bytes(b"half a file")
    compact(lake)
    assert sorted(path.name[:1] for path in lake.iterdir()) == ["0", "_"]  # the file, and the lock
    assert not [*lake.glob("*.new")]


@pytest.mark.parametrize("engine", ["polars", "duckdb"])
def test_a_frame_finds_the_rows_of_files_that_have_gone_since_or_names_one(tmp_path: Path, engine: Engine) -> None:
    lake = tmp_path / "lake"
    small_files(lake, 12)
    frame = read(lake, engine, columns=["sequence"])
    compact(lake)
    if engine == "polars":
        assert frame.collect()["sequence"].to_list() == [*range(1, 61)]
        assert frame.filter(frame.collect()["sequence"] > 57).limit(2).collect()["sequence"].to_list() == [58, 59]
    else:
        with pytest.raises(duckdb.IOException, match="No files found"):
            frame.fetchall()
        assert [row for (row,) in read(lake, engine, columns=["sequence"]).fetchall()] == [*range(1, 61)]


def test_a_listing_that_is_made_while_a_file_takes_the_place_of_others_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    small_files(lake, 4)
    scandir = os.scandir
    first = [True]

    def torn(place: str) -> Any:
        if str(place) == str(lake) and first:
            first.clear()
            names_then = {entry.name for entry in scandir(place)}
            compact_now()
            return _Entries([entry for entry in scandir(place) if entry.name in names_then])
        return scandir(place)

    def compact_now() -> None:
        monkeypatch.setattr(os, "scandir", scandir)
        compact(lake)
        monkeypatch.setattr(os, "scandir", torn)

    monkeypatch.setattr(os, "scandir", torn)
    assert [row.sequence for row in read_records(lake)] == [*range(1, 21)]
    assert not first


class _Entries:
    def __init__(self, entries: list[Any]) -> None:
        self.entries = entries

    def __enter__(self) -> list[Any]:
        return self.entries

    def __exit__(self, *_: object) -> None:
        pass


# -- kills -------------------------------------------------------------------------------------------------

FILES, ROWS = int(os.environ.get("SBUS_COMPACT_FILES", "150")), 5


def fill(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a lake of many small files, of ten days."""
    spacing = 10 * 86_400 * 1_000_000_000 // (FILES * ROWS)
    messages = [row._replace(time_ns=START_NS + number * spacing) for number, row in enumerate(rows(FILES * ROWS))]
    for at in range(0, len(messages), ROWS):
        segment(lake.with_name("journal"), at + 1, messages[at : at + ROWS])
    with monkeypatch.context() as patch:
        patch.setattr("sbuslib.journal.read.units.UNIT_BYTES", 1)
        ingest([lake.with_name("journal")], lake)
    assert len(names(lake)) == FILES


class Streaming(threading.Thread):
    """Reads a lake as a stream, in small batches and from its start, again and again."""

    def __init__(self, lake: Path) -> None:
        super().__init__(daemon=True)
        self._options = Options.read({"path": str(lake), "maxRecordsPerBatch": "100"})
        self.stopping = threading.Event()
        self.passes = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                assert self.read_once() == [*range(1, FILES * ROWS + 1)]
                self.passes += 1
        except BaseException as error:  # the test has to hear of any
            self.error = error

    def read_once(self) -> list[int]:
        stream, sequences = JournalStreamReader(self._options, JournalSource({}).schema()), list[int]()
        start: dict[str, int] = {}
        end = stream.latestOffset({}, ReadMaxRows(100))
        while start != end:
            for partition in stream.partitions(start, end):
                for batch in stream.read(partition):
                    sequences += batch.column("sequence").to_pylist()
            start, end = end, stream.latestOffset(end, ReadMaxRows(100))
        return sequences


def listing(lake: Path) -> set[str]:
    return set(os.listdir(lake))


def compact_until(lake: Path, changes: int) -> bool:
    """Compact in another process, and kill it once so many files have come or gone. Returns whether it was killed."""
    before = listing(lake)
    command = [sys.executable, "-m", "sbuslib", "journal", "compact", "-q", str(lake)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.002)
            if len(before ^ listing(lake)) >= changes:
                process.kill()
    return process.returncode == -signal.SIGKILL


@pytest.mark.promise(
    "spark.md",
    "Beside a compaction, `sbuslib.read`, streams and all other readers of this library give each row once",
)
@pytest.mark.seconds(120 + FILES // 4 + 6 * RUNS)
def test_each_row_is_streamed_once_while_compactions_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, moments, kills = tmp_path / "lake", random.Random(), 0
    fill(lake, monkeypatch)
    before = read(lake)
    streaming = Streaming(lake)
    streaming.start()
    try:
        for number in range(RUNS):  # at first while files are joined, then while they are deleted
            kills += compact_until(
                lake, 1 + 2 * number if number < RUNS // 2 else moments.randint(12, 12 + FILES // RUNS)
            )
            assert read(lake).equals(before)
        passes = streaming.passes
        assert compact(lake) > 0
        eventually(lambda: streaming.passes > passes + 1 or streaming.error)
    finally:
        streaming.stopping.set()
        streaming.join(PATIENCE)
    assert not streaming.is_alive()
    assert streaming.error is None, streaming.error

    # Every day is one file, and nothing else is left.
    assert read(lake).equals(before)
    assert verify(lake).is_whole
    assert len(names(lake)) == 11  # days, of which the first and the last are not whole
    assert kills >= RUNS - 1
    print(f"{kills} kills, {streaming.passes} passes of the stream")
