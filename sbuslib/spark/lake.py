"""The lake: journals as Parquet by date and hub, each record once, however often the driver is killed.

Spark notes the offsets of a batch before it runs, and notes afterwards that it is done. A batch that was not noted as
done is run again over the same offsets. So each attempt at a batch writes into a directory of its own, as the Java of a
killed driver may still write into the earlier one. One step makes one of these directories count: see :mod:`.manifest`.
Spark's own file sink keeps a list of files as well, but rewriting small files would break that list.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet
from pyspark.sql import functions
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DateType

from ..errors import JournalError, StateError
from ..segments.directory import decode_header, sync_directory
from ..segments.layout import SEGMENT_HEADER_BYTES
from .decode import SCHEMA
from .limits import SparkLimits
from .manifest import (
    Entry,
    Manifest,
    Retired,
    Stream,
    changed,
    is_lake,
    locked,
    read_manifest,
)
from .places import absolute, list_segments, opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Progress", "compact", "ingest", "read"]

_BATCH = "batch="
"""The start of the names of batch directories. Spark takes it for the name of a column, which is dropped."""


class Progress(msgspec.Struct, frozen=True):
    """One batch: how many ``rows`` it has (messages and gaps), and the bytes of its files."""

    batch: int
    rows: int
    bytes: int


def read(spark: SparkSession, lake: str | os.PathLike[str]) -> DataFrame:
    """The lake as a frame: the columns of the data source, and ``date``, by which its files are partitioned.

    Gaps of unknown time are under 1970-01-01. Raises :exc:`~sbuslib.errors.StateError` when there is no lake.
    """
    schema = from_arrow_schema(SCHEMA).add("date", DateType())
    paths = [os.path.join(os.path.abspath(lake), entry.path) for entry in read_manifest(lake).entries]
    if not paths:
        return spark.createDataFrame([], schema)
    frame = spark.read.schema(schema).option("basePath", os.path.abspath(lake)).parquet(*paths)
    return frame.select(*schema.names)


# -- taking in ----------------------------------------------------------------------------------------


def _identity(place: str) -> str | None:
    """The identity of the journal at a place; ``None`` while it is empty. Raises as :func:`.places.list_segments`."""
    segments = list_segments(place)
    if not segments:
        return None
    with opened(segments[-1].path) as read_at:
        return decode_header(read_at(0, SEGMENT_HEADER_BYTES), segments[-1].path).journal


def _describe(directory: Path) -> Entry:
    """Make the Parquet files of a batch durable, and count what they hold."""
    files = sorted(directory.rglob("*.parquet"))
    rows = size = 0
    for file in files:
        rows += pyarrow.parquet.read_metadata(file).num_rows
        size += file.stat().st_size
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    for folder in {parent for file in files for parent in file.parents if parent.is_relative_to(directory)}:
        sync_directory(folder)
    sync_directory(directory.parent)
    return Entry(directory.name, rows, size, len(files))


class _Ingest:
    """Takes one journal into one lake."""

    def __init__(self, lake: str, journal: str, place: str, progress: Callable[[Progress], object]) -> None:
        self.lake = lake
        self.journal = journal
        self.place = place
        self.progress = progress

    def check(self) -> None:
        """Raise :exc:`~sbuslib.errors.StateError` if this would take records in twice."""
        with changed(self.lake) as change:
            known = change.manifest.streams.get(self.journal)
        if known is None:
            return
        if known.place != self.place:
            raise StateError(f"this journal was taken into {self.lake} from {known.place}: let that lead to it")
        if not os.path.exists(os.path.join(self.checkpoint, "metadata")):
            raise StateError(f"{self.lake} holds this journal already, but {self.checkpoint} is not there any more")

    @property
    def checkpoint(self) -> str:
        """The directory in which Spark notes its progress."""
        return os.path.join(self.lake, "_checkpoints", self.journal)

    def take(self, frame: DataFrame, batch: int) -> None:
        """Write a batch, unless it is in the lake already."""
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
        if self._counts(read_manifest(self.lake), query, batch):
            return
        directory = Path(self.lake, f"{_BATCH}{self.journal}-{batch:012d}-{os.urandom(4).hex()}")
        _write(frame, directory)
        entry = _describe(directory)
        with changed(self.lake) as change:
            manifest = change.manifest
            assert not self._counts(manifest, query, batch), "two processes take one journal in"
            change.manifest = msgspec.structs.replace(
                manifest,
                entries=(*manifest.entries, entry) if entry.rows else manifest.entries,
                streams={**manifest.streams, self.journal: Stream(query, batch, self.place)},
            )
        self.progress(Progress(batch, entry.rows, entry.bytes))

    def _counts(self, manifest: Manifest, query: str, batch: int) -> bool:
        """Whether a batch is in the lake. Raises :exc:`~sbuslib.errors.StateError` when that cannot be known."""
        known = manifest.streams.get(self.journal)
        if known is not None and known.query != query:
            raise StateError(f"{self.lake} holds this journal already, by another query than that of the checkpoint")
        return known is not None and batch <= known.batch

    def clean(self) -> None:
        """Delete the directories of attempts that failed."""
        manifest = read_manifest(self.lake)
        known = {one.path for one in manifest.entries} | {one.path for one in manifest.retired}
        for path in Path(self.lake).glob(f"{_BATCH}{self.journal}-*"):
            if path.name not in known:
                shutil.rmtree(path, ignore_errors=True)


_DATE = "coalesce(date_from_unix_date(cast(time_ns div 86400000000000 as int)), date'1970-01-01')"
"""The day in UTC, whatever the session's time zone is."""


def _write(frame: DataFrame, directory: Path) -> None:
    writer = frame.withColumn("date", functions.expr(_DATE)).write.partitionBy("date", "hub")
    writer.mode("errorifexists").parquet(str(directory))


def check_places(journal: str | os.PathLike[str], lake: str | os.PathLike[str]) -> tuple[str, str, str | None]:
    """The places of a journal and a lake, in a form that means the same to every worker, and the journal's identity.

    The identity is ``None`` while the journal is empty. Raises :exc:`~sbuslib.errors.JournalError` if there is no
    journal at ``journal``, or if there is one at ``lake``.
    """
    place, lake = absolute(os.fspath(journal)), os.path.abspath(lake)
    identity = _identity(place)
    if not is_lake(lake) and os.path.isdir(lake) and list_segments(lake):
        raise JournalError(f"{lake} is a journal, and no lake")
    return place, lake, identity


def ingest(
    spark: SparkSession,
    journal: str | os.PathLike[str],
    lake: str | os.PathLike[str],
    *,
    follow: bool = False,
    stop: threading.Event | None = None,
    on_corrupt: str = "error",
    progress: Callable[[Progress], object] = lambda progress: None,
    limits: SparkLimits | None = None,
) -> None:
    """Take the rows of a journal that the lake does not hold yet into the lake. A lake that is not there is made.

    :param journal: its directory, or the URI of one.
    :param lake: its directory. On a cluster, every worker has to see it under this path.
    :param follow: go on with rows that are recorded later, until ``stop`` is set, and compact now and then.
    :param on_corrupt: ``"skip"`` takes in a gap row for each damaged part, instead of failing.
    :param progress: called after each batch.

    Raises :exc:`~sbuslib.errors.JournalError`, :exc:`~sbuslib.errors.StateError`, and what Spark raises.
    """
    limits = limits if limits is not None else SparkLimits()
    stop = stop if stop is not None else threading.Event()
    place, lake, identity = check_places(journal, lake)
    with changed(lake):
        pass  # make it: an empty journal makes an empty lake
    while identity is None:
        if not follow or stop.wait(limits.follow_seconds):
            return
        identity = _identity(place)
    job = _Ingest(lake, identity, place, progress)
    os.makedirs(job.checkpoint, exist_ok=True)
    with locked(f"{job.checkpoint}.lock", wait=False):
        job.check()
        job.clean()
        _run(spark, job, follow, stop, on_corrupt, limits)


def _run(
    spark: SparkSession, job: _Ingest, follow: bool, stop: threading.Event, on_corrupt: str, limits: SparkLimits
) -> None:
    failed: list[Exception] = []
    at_work = threading.Lock()

    def take(frame: DataFrame, batch: int) -> None:
        with at_work:
            if stop.is_set():
                raise StateError("a batch was to begin after the stop")
            try:
                job.take(frame, batch)
                if follow and batch % limits.compact_batches == limits.compact_batches - 1:
                    compact(spark, job.lake, limits=limits)
            except Exception as error:  # Spark hands on its text only
                failed.append(error)
                raise

    source = spark.readStream.format("sbus").option("onCorrupt", on_corrupt)
    source = source.option("maxRecordsPerBatch", str(limits.ingest_rows))
    writer = source.load(job.place).writeStream.foreachBatch(take).option("checkpointLocation", job.checkpoint)
    if follow:
        writer = writer.trigger(processingTime=f"{limits.follow_seconds} seconds")
    else:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    try:
        while not query.awaitTermination(limits.stop_seconds):
            if stop.is_set():
                with at_work:  # ``query.stop`` would interrupt a batch that is being written
                    break
    except Exception:
        if stop.is_set() and not failed:
            return
        if failed and isinstance(failed[0], (JournalError, StateError)):
            raise failed[0] from None
        raise
    finally:
        query.stop()


# -- compacting ---------------------------------------------------------------------------------------


def _small(lake: str, entries: Iterable[Entry], limits: SparkLimits) -> tuple[list[Entry], int, int]:
    """The entries with small files, the number of their files, and of the pairs of date and hub."""
    small: list[Entry] = []
    files = 0
    folders: set[Path] = set()
    for entry in entries:
        found = list(Path(lake, entry.path).rglob("*.parquet"))
        if any(file.stat().st_size < limits.file_bytes // 2 for file in found):
            small.append(entry)
            files += len(found)
            folders |= {file.parent.relative_to(Path(lake, entry.path)) for file in found}
    return small, files, len(folders)


def compact(spark: SparkSession, lake: str | os.PathLike[str], *, limits: SparkLimits | None = None) -> tuple[int, int]:
    """Rewrite small files as large ones, in the order of recording. Returns the numbers of files before and after.

    Readers are not disturbed: a later call deletes the replaced files, some time after they were replaced. It may run
    while journals are taken in. Raises :exc:`~sbuslib.errors.StateError` when there is no lake, or when another process
    compacts it.
    """
    limits = limits if limits is not None else SparkLimits()
    lake = os.path.abspath(lake)
    read_manifest(lake)  # raises if there is none; cleaning would make one
    _clean(lake, limits)
    manifest = read_manifest(lake)
    before = sum(entry.files for entry in manifest.entries)
    small, files, folders = _small(lake, manifest.entries, limits)
    tasks = -(-sum(entry.bytes for entry in small) // limits.file_bytes)
    if files <= max(1, folders + tasks - 1):
        return before, before
    directory = Path(lake, f"{_BATCH}compact-{os.urandom(8).hex()}")
    chosen = {entry.path for entry in small}
    paths = [os.path.join(lake, path) for path in chosen]
    schema = from_arrow_schema(SCHEMA).add("date", DateType())
    frame = spark.read.schema(schema).option("basePath", lake).parquet(*paths).select(*schema.names)
    order = ["date", "hub", "journal", "sequence"]
    ordered = frame.repartitionByRange(tasks, *order).sortWithinPartitions(*order)
    ordered.write.mode("errorifexists").partitionBy("date", "hub").parquet(str(directory))
    entry = _describe(directory)
    if entry.rows != sum(one.rows for one in small):
        raise StateError(f"{lake}: {sum(one.rows for one in small)} rows became {entry.rows}, so nothing was replaced")
    with changed(lake) as change:
        manifest = change.manifest
        if not chosen <= {one.path for one in manifest.entries}:
            raise StateError(f"{lake}: another process has compacted it meanwhile")
        kept = [one for one in manifest.entries if one.path not in chosen]
        change.manifest = msgspec.structs.replace(
            manifest,
            entries=(entry, *kept),
            retired=(*manifest.retired, *(Retired(path, time.time()) for path in sorted(chosen))),
        )
    return before, sum(one.files for one in (entry, *kept))


def _clean(lake: str, limits: SparkLimits) -> None:
    """Delete files that were replaced long ago, and those of a compaction that was killed."""
    long_ago = time.time() - limits.retired_seconds
    with changed(lake) as change:
        manifest: Manifest = change.manifest
        over = [retired for retired in manifest.retired if retired.since < long_ago]
        known = {entry.path for entry in manifest.entries} | {retired.path for retired in manifest.retired}
        left = [
            path.name
            for path in Path(lake).glob(f"{_BATCH}compact-*")
            if path.name not in known and path.stat().st_mtime < long_ago
        ]
        for name in [*(retired.path for retired in over), *left]:
            shutil.rmtree(os.path.join(lake, name), ignore_errors=True)
        change.manifest = msgspec.structs.replace(
            manifest, retired=tuple(retired for retired in manifest.retired if retired not in over)
        )
