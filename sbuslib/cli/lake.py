"""``sbus lake``: the journals of many hosts in one lake of Parquet files."""

from __future__ import annotations

import threading
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from . import jobs
from .console import advise, complain, explain, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..lake.sealing import Failure, Written

__all__ = ["add_arguments"]


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = "Keep the journals of many hosts together, as Parquet files, for reports."
    verbs = parser.add_subparsers(required=True, metavar="VERB", title="verbs")

    ingest = verbs.add_parser(
        "ingest",
        help="take what journals hold into a lake, each record once",
        description="Take the records of journals that a lake does not have into it, each once, however often this is "
        "interrupted or killed. A lake is a directory of Parquet files that never change, so other programs may read "
        "all of them at any time. For a single journal, see sbus seal.",
        epilog="examples:\n"
        "  sbus lake ingest /net/a/journal /net/b/journal lake             what there is now\n"
        "  sbus lake ingest --follow /net/a/journal /net/b/journal lake    and what is recorded from now on\n"
        "  sbus lake ingest --master spark://host:7077 s3://a s3://b s3://lake\n\n"
        "Java is needed with --master only. " + jobs.SPARK,
    )
    ingest.add_argument("journals", metavar="JOURNAL", nargs="+", help="directory of a journal, or its URI (s3://...)")
    ingest.add_argument("lake", metavar="LAKE", help="directory or URI of the lake, made where there is none")
    ingest.add_argument("--follow", action="store_true", help="go on with what is recorded, until Ctrl-C")
    ingest.add_argument(
        "--skip-corrupt",
        action="store_true",
        help="where a journal is damaged, take a gap in, which tells how many records are missing if anybody knows, "
        "and go on",
    )
    jobs.add_spark_arguments(ingest)
    ingest.set_defaults(run=_run)


def _run(arguments: Namespace) -> int:
    return jobs.run(arguments, _ingest)


def _ingest(arguments: Namespace) -> None:
    from ..errors import StateError

    try:
        with nullcontext() if arguments.master is None else jobs.spark(arguments) as session:
            _ingest_with(arguments, session)
    except ImportError as error:
        raise StateError(f"{error.name} is missing: pip install 'sbuslib[seal]'") from None


def _ingest_with(arguments: Namespace, spark: SparkSession | None) -> None:
    from ..errors import StateError
    from ..lake.sealing import ingest

    options: dict[str, Any] = {}
    if spark is not None:
        from ..spark.lake import on_spark

        options["run"] = on_spark(spark)
    rows = size = files = 0

    def show(written: Written) -> None:
        nonlocal rows, size, files
        rows, size, files = rows + written.rows, size + written.bytes, files + 1
        tell(f"{written.name}: {written.rows:,} rows, {written.bytes:,} bytes")

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
        progress=show,
        failed=fail if several else None,
        **options,
    )
    print(f"{arguments.lake}: {rows:,} new rows in {files:,} files, {size:,} bytes")
    if told and not arguments.follow:
        raise StateError(f"{len(told):,} of {len(arguments.journals):,} journals could not be taken in")
