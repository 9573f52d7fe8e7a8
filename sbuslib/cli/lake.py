"""``sbus lake``: journals into Parquet, and small files into large ones."""

from __future__ import annotations

import threading
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from . import jobs
from .console import tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..spark.lake import Progress

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = "Keep journals as Parquet files, by date and hub, for reports and plans."
    verbs = parser.add_subparsers(required=True, metavar="VERB", title="verbs")

    ingest = verbs.add_parser(
        "ingest",
        help="take what a journal holds into a lake, each record once",
        description="Take the records of a journal that a lake does not have into it, each once, however often this is "
        "interrupted or killed.",
        epilog="examples:\n"
        "  sbus lake ingest /var/lib/sbus/journal lake             what there is now\n"
        "  sbus lake ingest --follow /var/lib/sbus/journal lake    and what is recorded from now on\n\n" + jobs.SPARK,
    )
    ingest.add_argument("journal", metavar="JOURNAL", help="directory of the journal, or its URI (s3://...)")
    ingest.add_argument("lake", metavar="LAKE", help="directory of the lake, made where there is none")
    ingest.add_argument("--follow", action="store_true", help="go on with what is recorded, until Ctrl-C")
    ingest.add_argument(
        "--skip-corrupt",
        action="store_true",
        help="where the journal is damaged, take a gap in, which tells how many records are missing if anybody knows, "
        "and go on",
    )
    jobs.add_spark_arguments(ingest)
    ingest.set_defaults(run=lambda arguments: jobs.run(arguments, _ingest))

    compact = verbs.add_parser(
        "compact",
        help="rewrite small files of a lake into large ones",
        description="Rewrite small files of a lake into large ones. Readers and writers of the lake are not disturbed.",
        epilog="examples:\n  sbus lake compact lake\n\n" + jobs.SPARK,
    )
    compact.add_argument("lake", metavar="LAKE", help="directory of the lake")
    jobs.add_spark_arguments(compact)
    compact.set_defaults(run=lambda arguments: jobs.run(arguments, _compact))


def _ingest(arguments: Namespace) -> jobs.Work:
    from ..spark.lake import check_places

    check_places(arguments.journal, arguments.lake)
    return lambda spark: _ingest_with(spark, arguments)


def _ingest_with(spark: SparkSession, arguments: Namespace) -> None:
    from ..spark.lake import ingest

    stop = jobs.stop_event() if arguments.follow else threading.Event()
    rows = size = 0

    def show(progress: Progress) -> None:
        nonlocal rows, size
        rows += progress.rows
        size += progress.bytes
        tell(f"batch {progress.batch}: {progress.rows:,} rows, {progress.bytes:,} bytes")

    tell(f"reading {arguments.journal} ...")
    ingest(
        spark,
        arguments.journal,
        arguments.lake,
        follow=arguments.follow,
        stop=stop,
        on_corrupt="skip" if arguments.skip_corrupt else "error",
        progress=show,
    )
    print(f"{arguments.lake}: {rows:,} new rows in {size:,} bytes")


def _compact(arguments: Namespace) -> jobs.Work:
    from ..spark.lake import compact
    from ..spark.manifest import read_manifest

    read_manifest(arguments.lake)

    def work(spark: SparkSession) -> None:
        tell(f"compacting {arguments.lake} ...")
        before, after = compact(spark, arguments.lake)
        print(f"{arguments.lake}: {before:,} files are {after:,} now" if before != after else "nothing to compact")

    return work
