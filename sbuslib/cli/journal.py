"""``sbus journal``: what a journal holds, and whether it is whole. It needs no Spark, and never loads gevent."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from .arguments import Parser
from .console import EXIT_FAILURE, EXIT_SUCCESS, advise, complain, explain, progress, tell, yield_to_signals
from .sub import add_forms
from .values import count, moment

if TYPE_CHECKING:
    from ..segments.directory import Piece
    from ..segments.layout import Record, Skipped

__all__ = ["add_arguments", "add_selection", "is_sealed", "tell_gap", "tell_skipped"]


def add_arguments(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = "Look into a journal, the directory that sbus record fills."
    verbs = parser.add_subparsers(required=True, metavar="VERB", title="verbs")
    _add(verbs, "info", _info, "what a journal holds, from when to when", "  sbus journal info /var/lib/sbus/journal")
    _add(verbs, "list", _list, "the segments of a journal, a line each", "  sbus journal list journal")
    cat = _add(
        verbs,
        "cat",
        _cat,
        "show the recorded messages, as sbus sub shows those of a bus",
        "  sbus journal cat journal -p 'room/*/temp' --start 2026-01-31T12:00 --timestamps\n"
        "  sbus journal cat journal --json | sbus pub --json      publish them, as fast as it goes",
    )
    add_selection(cat, "show")
    cat.add_argument("-n", "--count", type=count, metavar="N", help="exit after N messages")
    cat.add_argument("--skip-corrupt", action="store_true", help="go on after what is damaged, and tell it")
    add_forms(cat)
    _add(
        verbs,
        "verify",
        _verify,
        "read every byte of a journal, and tell what is damaged or missing",
        "  sbus journal verify journal                            ends with status 1 if anything is",
    )
    query = _add(
        verbs,
        "query",
        _query,
        "answer a question in SQL about what was recorded, with DuckDB",
        "  sbus journal query journal 'SELECT key, count(*) AS n FROM journal GROUP BY key ORDER BY n DESC LIMIT 9'\n"
        "  sbus journal query journal 'SELECT * FROM journal WHERE cause IS NOT NULL' --json\n\n"
        "The table is called journal; its columns are those of docs/spark.md. This needs pip install 'sbuslib[query]'.",
    )
    query.add_argument("sql", metavar="SQL", help="the question, about the table journal")
    query.add_argument("--json", action="store_true", help="a line of JSON for each row")


def add_selection(parser: ArgumentParser, verb: str) -> None:
    """Add the options that say which recorded messages are meant."""
    parser.add_argument(
        "-p", "--pattern", action="append", metavar="PATTERN", help=f"{verb} what matches; may be repeated"
    )
    parser.add_argument("--start", type=moment, metavar="TIME", help="leave out earlier messages")
    parser.add_argument("--end", type=moment, metavar="TIME", help="leave out messages from then on")


def _add(verbs: Any, name: str, run: Callable[[Namespace], int], help: str, examples: str) -> Parser:
    verb: Parser = verbs.add_parser(
        name, help=help, description=f"{help[0].upper()}{help[1:]}.", epilog=f"examples:\n{examples}"
    )
    verb.add_argument("directory", metavar="DIR", help="the journal's directory")
    if name in ("info", "list"):
        verb.add_argument("--json", action="store_true", help="as JSON; times are nanoseconds since 1970")
    verb.set_defaults(run=partial(_run, run))
    return verb


def _run(verb: Callable[[Namespace], int], arguments: Namespace) -> int:
    from ..errors import SbusError

    yield_to_signals()
    try:
        return verb(arguments)
    except (SbusError, OSError) as error:
        return complain("sbus", explain(error) + advise(error, arguments))


def _when(time_ns: int | None) -> str:
    if time_ns is None:
        return "?"
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().isoformat(timespec="milliseconds")


def _info(arguments: Namespace) -> int:
    import msgspec

    from ..journal.inspection import summarize

    found = summarize(arguments.directory)
    if arguments.json:
        print(msgspec.json.encode(found).decode())
        return EXIT_SUCCESS
    segments = found.segments
    rows = sum(segment.rows for segment in segments)
    times = [segment.latest for segment in segments if segment.latest is not None]
    lines = {
        "journal": found.journal or "?",
        "hub": found.hub or "?",
        "separator": found.separator or "?",
        "segments": f"{len(segments):,}, {sum(segment.bytes for segment in segments):,} bytes",
        "rows": f"{rows:,}, the first is row {segments[0].first_row:,}",
        "begun": _when(segments[0].created),
        "latest": _when(max(times, default=None)),
        "recorder": "at work" if found.recorded else "none at work",
    }
    for name, value in lines.items():
        print(f"{name:<10} {value}")
    for segment in segments:
        if segment.damage:
            complain("sbus", f"{segment.name}: {segment.damage}")
    return EXIT_SUCCESS


def _list(arguments: Namespace) -> int:
    import msgspec

    from ..journal.inspection import summarize

    for segment in summarize(arguments.directory).segments:
        if arguments.json:
            print(msgspec.json.encode(segment).decode())
            continue
        state = segment.damage or ("sealed" if segment.sealed else "open")
        print(
            f"{segment.name}  {segment.bytes:>12,} bytes  {segment.rows:>10,} rows  {_when(segment.created)}  {state}"
        )
    return EXIT_SUCCESS


def _cat(arguments: Namespace) -> int:
    from ..journal.inspection import rows
    from ..journal.replay import Selection
    from ..wire.packets import Message
    from .messages import shower

    if is_sealed(arguments.directory):
        tell("rows whose segments were sealed and deleted are not shown: sbus journal query shows them")
    selection = Selection(map(os.fsencode, arguments.pattern or [""]), arguments.start, arguments.end)
    show, left = shower(arguments), arguments.count
    out = sys.stdout.buffer
    for row in rows(
        arguments.directory,
        selection,
        on_corrupt="skip" if arguments.skip_corrupt else "error",
        on_skip=tell_skipped,
    ):
        if row.key is None or row.payload is None:
            tell_gap(row)
            continue
        sender = row.sender if arguments.senders or arguments.format else None
        out.write(show(Message(row.key, row.payload, sender), row.time_ns))
        if left is not None:
            left -= 1
            if not left:
                break
    out.flush()
    return EXIT_SUCCESS


def tell_gap(row: Record) -> None:
    """Tell on standard error how many messages are missing, and why."""
    lost = "an unknown number of" if row.lost is None else f"{row.lost:,}"
    complain("sbus", f"row {row.sequence:,}: {lost} messages were lost: {row.cause}")


def _query(arguments: Namespace) -> int:
    from ..errors import StateError, UsageError
    from ..reading import read

    try:
        import duckdb
    except ImportError:
        raise StateError("duckdb is missing: pip install 'sbuslib[query]'") from None
    from .tables import columns, show_json

    connection = duckdb.connect(config={"enable_external_access": "true"})
    read(arguments.directory, "duckdb", connection=connection).create_view("journal")
    try:
        found = connection.sql(arguments.sql)
        rows = found.fetchall() if found is not None else []
    except duckdb.Error as error:
        raise UsageError(" ".join(str(error).split())) from None
    names = list(found.columns) if found is not None else []
    if arguments.json:
        for row in rows:
            show_json(dict(zip(names, map(_plain, row), strict=True)))
        return EXIT_SUCCESS
    for line in columns([names, *([_plain(value) for value in row] for row in rows)]):
        print(line)
    return EXIT_SUCCESS


def _plain(value: object) -> object:
    """A value of DuckDB as a number or as text."""
    from ..wire.text import printable

    if isinstance(value, bytes):
        return printable(value)
    return value if isinstance(value, (int, float)) else "" if value is None else str(value)


def is_sealed(directory: str) -> bool:
    """Whether rows of a journal may be in sealed files only."""
    return any(os.path.exists(os.path.join(directory, name)) for name in ("sealed", "sealed.to"))


def tell_skipped(piece: Piece) -> None:
    """Tell on standard error what is left out of a journal because it is damaged."""
    skipped = piece.block
    complain("sbus", f"{piece.segment.path}: {skipped.length:,} bytes at {skipped.position:,} skipped")


def _verify(arguments: Namespace) -> int:
    from ..journal.inspection import Check, verify

    def on_damage(path: str, skipped: Skipped) -> None:
        rows = "" if skipped.rows is None else f", {skipped.rows:,} rows"
        print(f"{path}: byte {skipped.position:,}: {skipped.reason} ({skipped.length:,} bytes{rows})")

    def so_far() -> str:
        return f"{check.rows:,} rows in {check.segments:,} segments read"

    check = Check()
    with progress(so_far):
        verify(arguments.directory, on_damage, check)
    print(
        f"{check.rows:,} rows in {check.segments:,} segments: {check.messages:,} messages, and gaps of {check.lost:,}; "
        + (f"{check.damages:,} places are damaged" if check.damages else "all of it is whole")
    )
    return EXIT_FAILURE if check.damages else EXIT_SUCCESS
