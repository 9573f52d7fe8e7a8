"""``sbus seal``: the ended segments of a journal as Parquet files. It needs no Java, and never loads gevent."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from . import jobs
from .console import EXIT_SUCCESS, advise, complain, explain, tell
from .values import seconds, size

__all__ = ["add_arguments"]

_NICENESS = 10
"""Of this process: the recorder and the hub go first."""


def add_arguments(parser: ArgumentParser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Rewrite the ended segments of a journal as Parquet files that never change, for DuckDB, pandas, Polars and "
        "Spark. Rows that are not sealed yet stay in segments, where sbus and sbuslib.read find them. It may be killed "
        "at any time, and goes on where it was."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus seal /var/lib/sbus/journal                     what has ended by now, into journal/sealed\n"
        "  sbus seal --follow --keep-seconds 90d journal       and what ends from now on\n"
        "  sbus seal --follow --to s3://bucket/bus journal     into another place\n\n"
        "This needs pip install 'sbuslib[seal]'."
    )
    parser.add_argument("directory", metavar="DIR", help="the journal's directory")
    parser.add_argument("--follow", action="store_true", help="go on with segments that end, until Ctrl-C")
    parser.add_argument(
        "--to", metavar="URI", help="directory or URI of the files; else DIR/sealed. It is noted in DIR for readers"
    )
    parser.add_argument(
        "--keep-bytes", type=size, metavar="BYTES", help="delete the oldest files while all together are larger"
    )
    parser.add_argument("--keep-seconds", type=seconds, metavar="SECONDS", help="delete files whose rows are older")
    parser.add_argument(
        "--skip-corrupt", action="store_true", help="where the journal is damaged, write a gap row, and go on"
    )
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> int:
    from ..errors import SbusError

    try:
        from ..lake.sealing import FOLLOW_SECONDS, Sealing, Written
    except ImportError as error:
        return complain("sbus", f"{error.name} is missing: pip install 'sbuslib[seal]'")
    rows = files = 0

    def show(written: Written) -> None:
        nonlocal rows, files
        rows, files = rows + written.rows, files + 1
        tell(f"{written.name}: {written.rows:,} rows, {written.bytes:,} bytes")

    try:
        os.nice(_NICENESS)
        sealing = Sealing(
            arguments.directory,
            arguments.to,
            on_corrupt="skip" if arguments.skip_corrupt else "error",
            keep_bytes=arguments.keep_bytes,
            keep_seconds=arguments.keep_seconds,
            progress=show,
        )
        stop = jobs.stop_event() if arguments.follow else None
        sealing.run()
        while stop is not None and not stop.wait(FOLLOW_SECONDS):
            sealing.run()
    except (SbusError, OSError) as error:
        return complain("sbus", explain(error) + advise(error, arguments))
    print(f"{sealing.target}: {rows:,} rows sealed, in {files:,} files")
    return EXIT_SUCCESS
