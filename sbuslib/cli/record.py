"""``sbus journal record``, ``replay``, ``seal`` and ``ingest``: recordings of a bus, as journals and Parquet files."""

from __future__ import annotations

import os
import signal
import threading
from argparse import Namespace
from contextlib import nullcontext
from time import monotonic

from . import jobs
from .arguments import Parser, add, add_address
from .console import advise, complain, explain, on_stop, progress, release_signals, show_status, yield_to_signals
from .journal import add_selection, add_skipping, selection, show_skipped

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import SparkSession

    from ..journal.client_recorder import ClientRecorder
    from ..journal.format.layout import Skipped
    from ..journal.read.sealing import Failure, Written
    from ..journal.replay import ColumnSender
    from ..wire.columns import Columns


def add_journal_record(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Record what a bus carries into a journal, a directory, until Ctrl-C or SIGTERM: everything, or what matches "
        "a pattern. Secrets are never recorded.\n\n"
        "Messages that are lost on the way are in the journal as a gap, with their number and a cause. The command "
        "ends with status 1 when the disk is full.\n\n"
        "With --last, it is a black box: it keeps so much time in memory, and records that when a message matches "
        "--on, or on SIGUSR1."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus journal record --max-bytes 10GB --max-age 30d /var/lib/sbus/journal\n"
        "  sbus journal record -p room/ -p log/ rooms          these keys only\n"
        "  sbus journal record --last 60s --on alarm/ crash    the minute before each alarm"
    )

    add(parser, "DIR", "the journal's directory, made where there is none", dest="directory")
    add_address(parser)
    add(parser, "-p --pattern PATTERN", "record what matches; may be repeated", action="append")
    what = "sync after each block of messages (the default), once a second, or never"
    add(parser, "--durability", what, choices=("block", "interval", "none"), default="block")
    add(parser, "--max-bytes SIZE", "delete the oldest files beyond this: 10GB")
    add(parser, "--max-age TIME", "delete files that are older: 12h, 30d")
    add(parser, "--no-seal", "leave sealing to sbus journal seal")
    add(parser, "--no-hold", "lose messages rather than have the hub hold publishers back")
    add(parser, "--last TIME", "keep only this time, in memory: 60s, 5m")
    add(parser, "--on PATTERN", "with --last: record when a message matches; may be repeated", action="append")
    add(parser, "--max-memory SIZE", "with --last: keep no more bytes (64MB)", default=64 << 20)
    parser.set_defaults(holds_signals=True)


def run_journal_record(arguments: Namespace) -> None:
    from ..errors import UsageError

    if arguments.on and arguments.last is None:
        raise UsageError("--on is for --last")
    with progress(lambda: "waiting for a hub"):
        recorder = _client_recorder(arguments)
    on_stop(recorder.stop)
    release_signals()
    kept = "" if arguments.last is None else f" the last {arguments.last:g} s of"
    show_status(f"recording{kept} {recorder.client.address} into {arguments.directory} (Ctrl-C ends it)")
    recorder.run()
    what = "recorded" if arguments.last is None else "received"
    show_status(f"{recorder.received:,} messages {what}, row {recorder.durable_sequence:,} is the last")


def _client_recorder(arguments: Namespace) -> ClientRecorder:
    from ..journal.black_box import BlackBox
    from ..journal.client_recorder import ClientRecorder

    options: Any = {
        "patterns": tuple(arguments.pattern or [b""]),
        "hold": not arguments.no_hold,
        "durability": arguments.durability,
        "keep_bytes": arguments.max_bytes,
        "keep_seconds": arguments.max_age,
        "seal": not arguments.no_seal,
    }
    if arguments.last is None:
        return ClientRecorder(arguments.address, arguments.directory, events=True, **options)
    box = BlackBox(
        arguments.address,
        arguments.directory,
        seconds=arguments.last,
        on=tuple(arguments.on or []),
        most_bytes=arguments.max_memory,
        on_written=lambda count: show_status(f"{count:,} messages recorded"),
        **options,
    )
    signal.signal(signal.SIGUSR1, lambda *_: box.trigger())
    return box


def add_journal_replay(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Publish again what was recorded, in a journal or a lake: in order, and at the pace at which it came."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus journal replay journal -a /tmp/bus --speed 10 --pattern 'room/*/temp'\n"
        "  sbus journal replay lake -a /tmp/bus --flat-out --start 2026-01-31T12:00 --end 2026-01-31T13:00\n"
        "  sbus journal replay journal -a /tmp/bus --loop --remap room/=demo/room/\n"
        "\n"
        "A time is as in ISO 8601, local unless it says, or @ and seconds since the epoch."
    )

    add(parser, "JOURNAL|LAKE", "directory of a journal, or of a lake", dest="recording")
    add_address(parser, required=True)
    add_selection(parser, "publish")
    pace = parser.add_mutually_exclusive_group()
    add(pace, "--speed FACTOR", "factor of the speed of the recording", default=1.0)
    add(pace, "--flat-out", "as fast as the hub takes it")
    add_skipping(parser, "skip damaged rows, and count their bytes")
    what = "let keys begin with NEW that begin with OLD; may be repeated, the first that fits counts"
    add(parser, "--remap OLD=NEW", what, action="append", default=[])
    add(parser, "--loop", "start over at the end, until Ctrl-C")


def run_journal_replay(arguments: Namespace) -> None:
    from ..blocking import Client
    from ..journal.replay import Renaming, from_journal, replay

    yield_to_signals()
    count, clock = _Count(), _Clock()
    signal.signal(signal.SIGTSTP, clock.pause)
    speed, wanted = None if arguments.flat_out else arguments.speed, selection(arguments)
    try:
        with Client(arguments.address) as client, progress(count.__str__):
            count.publisher = client
            publisher = Renaming(count, arguments.remap, client.hub.separator) if arguments.remap else count
            while True:
                before = count.published
                runs = from_journal(arguments.recording, wanted, on_corrupt=arguments.on_corrupt, on_skip=count.skip)
                count.lost += replay(runs, publisher, speed=speed, clock=clock).lost
                if not arguments.loop or count.published == before:
                    break
            client.sync()
    except BaseException:
        if count.published:
            show_status(str(count))  # and then the error
        raise
    show_status(str(count))


class _Clock:
    """Clock that stands still while Ctrl-Z has stopped this process: messages that were due then come later."""

    def __init__(self) -> None:
        self._paused = 0.0  # seconds

    def __call__(self) -> float:
        return monotonic() - self._paused

    def pause(self, *_: object) -> None:
        """Stop this process, as the signal does by itself, until it goes on."""
        since = monotonic()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._paused += monotonic() - since


class _Count:
    """Publisher that counts messages, and the rows that were lost or are damaged in the recording."""

    publisher: ColumnSender

    def __init__(self) -> None:
        #: Messages published, and lost when they were recorded; rows and bytes that are damaged.
        self.published = self.lost = self._rows = self._bytes = 0

    def publish_many(self, columns: Columns, /) -> None:
        """Send messages in order, waiting for room."""
        self.publisher.publish_many(columns)
        self.published += len(columns)

    def skip(self, path: str, skipped: Skipped) -> None:
        """Print and count a damaged part of the journal."""
        show_skipped(path, skipped)
        self._rows += skipped.rows or 0
        self._bytes += skipped.length

    def __str__(self) -> str:
        more = f"; {self.lost:,} were lost when it was recorded" if self.lost else ""
        more += f"; {self._rows:,} rows and more, of {self._bytes:,} bytes, were damaged" if self._bytes else ""
        return f"{self.published:,} messages published{more}"


class _Made:
    """Prints each file that is written, and counts."""

    def __init__(self) -> None:
        self.rows = self.bytes = self.files = 0  # of all that were written

    def add(self, written: Written) -> None:
        self.rows, self.bytes, self.files = self.rows + written.rows, self.bytes + written.bytes, self.files + 1
        show_status(f"{written.name}: {written.rows:,} rows, {written.bytes:,} bytes")


def add_journal_ingest(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Take the records of journals that a lake does not have into it, each once, however often this is interrupted "
        "or killed. A lake is a directory of Parquet files that never change, so other programs may read all of them "
        "at any time. Small files are joined. For a single journal, see sbus journal seal."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus journal ingest /net/a/journal /net/b/journal lake             what there is now\n"
        "  sbus journal ingest --follow /net/a/journal /net/b/journal lake    and what is recorded from now on\n"
        "  sbus journal ingest --master spark://host:7077 s3://a s3://b s3://lake\n\n"
        "Java is needed with --master only. " + jobs.SPARK
    )

    add(parser, "JOURNAL...", "directory of a journal, or its URI (s3://...)")
    add(parser, "LAKE", "directory or URI of the lake, made where there is none")
    add(parser, "--follow", "wait for new records, until Ctrl-C")
    add_skipping(parser, "where a journal is damaged, write a gap row, and go on")
    jobs.add_spark_arguments(parser)


def run_journal_ingest(arguments: Namespace) -> None:
    with nullcontext() if arguments.master is None else jobs.spark(arguments) as session:
        _ingest_with(arguments, session)


def _ingest_with(arguments: Namespace, spark: SparkSession | None) -> None:
    from ..errors import StateError
    from ..journal.read.sealing import ingest

    options: dict[str, Any] = {}
    if spark is not None:
        from ..spark.lake import on_spark

        options["run"] = on_spark(spark)
    made = _Made()

    def fail(failure: Failure) -> None:
        if shown.get(failure.place) != str(failure.error):  # with --follow, once
            shown[failure.place] = str(failure.error)
            complain("sbus", explain(failure.error) + advise(failure.error, arguments))

    shown, several = dict[str, str](), arguments.follow or len(arguments.journals) > 1
    ingest(
        arguments.journals,
        arguments.lake,
        follow=arguments.follow,
        stop=jobs.stop_event() if arguments.follow else threading.Event(),
        on_corrupt=arguments.on_corrupt,
        progress=made.add,
        failed=fail if several else None,
        **options,
    )
    print(f"{arguments.lake}: {made.rows:,} new rows in {made.files:,} files, {made.bytes:,} bytes")
    if shown and not arguments.follow:
        raise StateError(f"{len(shown):,} of {len(arguments.journals):,} journals could not be taken in")


def add_journal_compact(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Join small files of a lake that adjoin, of one hub and one day, and delete them. It may be killed at any "
        "time, and goes on where it was. sbus and sbuslib.read read each row once meanwhile; other programs, which "
        "read all files that they find, may read a row twice until it has ended."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus journal compact lake               in place\n"
        "  sbus journal ingest lake new-lake       into another lake, and lake stays as it is\n\n"
        "This needs pip install 'sbuslib[seal]'."
    )

    add(parser, "LAKE", "directory or URI of the lake")


def run_journal_compact(arguments: Namespace) -> None:
    from ..journal.read.compaction import compact

    made = _Made()
    os.nice(_NICENESS)
    deleted = compact(arguments.lake, progress=made.add)
    print(f"{arguments.lake}: {made.files:,} new files in place of {deleted:,}, {made.rows:,} rows")


_NICENESS = 10
"""Of this process: the recorder and the hub go first."""


def add_journal_seal(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Rewrite the ended segments of a journal as Parquet files that never change, for DuckDB, pandas, Polars and "
        "Spark. Rows that are not sealed yet stay in segments, where sbus and sbuslib.read find them. It may be killed "
        "at any time, and goes on where it was."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus journal seal /var/lib/sbus/journal      what has ended by now, into journal/sealed\n\n"
        "This needs pip install 'sbuslib[seal]'."
    )

    add(parser, "DIR", "the journal's directory", dest="directory")
    add_skipping(parser, "where the journal is damaged, write a gap row, and go on")


def run_journal_seal(arguments: Namespace) -> None:
    from ..journal.read.journal_files import absolute, sealed_of
    from ..journal.read.sealing import seal

    made = _Made()
    os.nice(_NICENESS)
    seal(arguments.directory, on_corrupt=arguments.on_corrupt, progress=made.add)
    print(f"{sealed_of(absolute(arguments.directory))}: {made.rows:,} rows sealed, in {made.files:,} files")
