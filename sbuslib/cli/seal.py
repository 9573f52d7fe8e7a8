"""``sbus journal seal``: the ended segments of a journal as Parquet files. It needs no Java, and never loads gevent."""

from __future__ import annotations

import os
from argparse import Namespace

from . import jobs
from .arguments import Parser
from .console import tell
from .record import add_retention

__all__ = ["add_journal_seal"]

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
    from ..lake.sealing import FOLLOW_SECONDS, Sealing, Written

    rows = files = 0

    def show(written: Written) -> None:
        nonlocal rows, files
        rows, files = rows + written.rows, files + 1
        tell(f"{written.name}: {written.rows:,} rows, {written.bytes:,} bytes")

    os.nice(_NICENESS)
    sealing = Sealing(
        arguments.directory,
        arguments.into,
        on_corrupt="skip" if arguments.skip_corrupt else "error",
        keep_bytes=arguments.max_bytes,
        keep_seconds=arguments.max_age,
        progress=show,
    )
    stop = jobs.stop_event() if arguments.follow else None
    sealing.run()
    while stop is not None and not stop.wait(FOLLOW_SECONDS):
        sealing.run()
    print(f"{sealing.target}: {rows:,} rows sealed, in {files:,} files")
