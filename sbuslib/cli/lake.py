"""``sbus journal seal`` and ``ingest``: journals as Parquet files, and those of many hosts in one lake."""

from __future__ import annotations

import os
import threading
from argparse import Namespace
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from . import jobs
from .arguments import Parser
from .console import advise, complain, explain, tell
from .record import add_retention

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..lake.sealing import Failure, Written

__all__ = ["add_journal_ingest", "add_journal_seal"]


class _Made:
    """Tells each file that is written, and counts."""

    def __init__(self) -> None:
        self.rows = self.bytes = self.files = 0

    def add(self, written: Written) -> None:
        self.rows, self.bytes, self.files = self.rows + written.rows, self.bytes + written.bytes, self.files + 1
        tell(f"{written.name}: {written.rows:,} rows, {written.bytes:,} bytes")


def add_journal_ingest(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Take the records of journals that a lake does not have into it, each once, however often this is interrupted "
        "or killed. A lake is a directory of Parquet files that never change, so other programs may read all of them "
        "at any time. For a single journal, see sbus journal seal."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus journal ingest /net/a/journal /net/b/journal lake             what there is now\n"
        "  sbus journal ingest --follow /net/a/journal /net/b/journal lake    and what is recorded from now on\n"
        "  sbus journal ingest --master spark://host:7077 s3://a s3://b s3://lake\n\n"
        "Java is needed with --master only. " + jobs.SPARK
    )
    parser.add_argument("journals", metavar="JOURNAL", nargs="+", help="directory of a journal, or its URI (s3://...)")
    parser.add_argument("lake", metavar="LAKE", help="directory or URI of the lake, made where there is none")
    parser.add_argument("--follow", action="store_true", help="go on with what is recorded, until Ctrl-C")
    parser.add_argument(
        "--skip-corrupt",
        action="store_true",
        help="where a journal is damaged, take a gap in, which tells how many records are missing if anybody knows, "
        "and go on",
    )
    jobs.add_spark_arguments(parser)
    parser.set_defaults(run=_ingest)


def _ingest(arguments: Namespace) -> None:
    with nullcontext() if arguments.master is None else jobs.spark(arguments) as session:
        _ingest_with(arguments, session)


def _ingest_with(arguments: Namespace, spark: SparkSession | None) -> None:
    from ..errors import StateError
    from ..lake.sealing import ingest

    options: dict[str, Any] = {}
    if spark is not None:
        from ..spark.lake import on_spark

        options["run"] = on_spark(spark)
    made = _Made()

    def fail(failure: Failure) -> None:
        if told.get(failure.place) != str(failure.error):  # with --follow, once
            told[failure.place] = str(failure.error)
            complain("sbus", explain(failure.error) + advise(failure.error, arguments))

    told, several = dict[str, str](), arguments.follow or len(arguments.journals) > 1
    ingest(
        arguments.journals,
        arguments.lake,
        follow=arguments.follow,
        stop=jobs.stop_event() if arguments.follow else threading.Event(),
        on_corrupt="skip" if arguments.skip_corrupt else "error",
        progress=made.add,
        failed=fail if several else None,
        **options,
    )
    print(f"{arguments.lake}: {made.rows:,} new rows in {made.files:,} files, {made.bytes:,} bytes")
    if told and not arguments.follow:
        raise StateError(f"{len(told):,} of {len(arguments.journals):,} journals could not be taken in")


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
        "  sbus journal seal /var/lib/sbus/journal                     what has ended by now, into journal/sealed\n"
        "  sbus journal seal --follow --max-age 90d journal       and what ends from now on\n"
        "  sbus journal seal --follow --into s3://bucket/bus journal     into another place\n\n"
        "This needs pip install 'sbuslib[seal]'."
    )
    parser.add_argument("directory", metavar="DIR", help="the journal's directory")
    parser.add_argument("--follow", action="store_true", help="go on with segments that end, until Ctrl-C")
    parser.add_argument(
        "--into", metavar="DIR", help="directory or URI of the files; else DIR/sealed. It is noted in DIR for readers"
    )
    parser.hide("--into", "--to")
    add_retention(parser)
    parser.add_argument(
        "--skip-corrupt", action="store_true", help="where the journal is damaged, write a gap row, and go on"
    )
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    from ..lake.sealing import FOLLOW_SECONDS, Sealing

    made = _Made()
    os.nice(_NICENESS)
    sealing = Sealing(
        arguments.directory,
        arguments.into,
        on_corrupt="skip" if arguments.skip_corrupt else "error",
        keep_bytes=arguments.max_bytes,
        keep_seconds=arguments.max_age,
        progress=made.add,
    )
    stop = jobs.stop_event() if arguments.follow else None
    sealing.run()
    while stop is not None and not stop.wait(FOLLOW_SECONDS):
        sealing.run()
    print(f"{sealing.target}: {made.rows:,} rows sealed, in {made.files:,} files")
