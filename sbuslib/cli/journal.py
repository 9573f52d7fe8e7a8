"""``sbus journal``: what a journal holds, whether it is whole, and consumers. It never loads gevent."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from .arguments import Parser, add
from .console import EXIT_FAILURE, EXIT_SUCCESS, advise, begin_to_show, complain, explain, progress, yield_to_ctrl_c
from .sub import add_forms, wants_senders
from .tables import columns, show_json

if TYPE_CHECKING:
    from ..journal.consume import Consumer
    from ..journal.format.layout import Record, Skipped
    from ..journal.read.selection import Selection


def add_journal_info(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.epilog = "examples:\n  sbus journal info /var/lib/sbus/journal"
    _add_directories(parser, "+")
    add(parser, "--json", "a line of JSON for each; times are nanoseconds since 1970")


def add_journal_cat(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.epilog = (
        "examples:\n"
        "  sbus journal cat journal -p 'room/*/temp' --start 2026-01-31T12:00 --timestamps\n"
        "  sbus journal cat journal --json | sbus pub --json      publish them, as fast as it goes"
    )
    _add_directories(parser, "+")
    add_selection(parser, "show")
    add(parser, "-n --count N", "exit after N messages")
    add_skipping(parser, "skip damaged rows, and print how many bytes")
    add_forms(parser)


def add_journal_verify(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.epilog = "examples:\n  sbus journal verify journal      ends with status 1 if anything is damaged or missing"
    _add_directories(parser, "+")
    add(parser, "--json", "a JSON object a line for each journal")


def add_journal_query(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.epilog = (
        "examples:\n"
        "  sbus journal query journal 'SELECT key, count(*) AS n FROM journal GROUP BY key ORDER BY n DESC LIMIT 9'\n"
        "  sbus journal query journal 'DESCRIBE journal'          its columns\n"
        "  sbus journal query journal \"SELECT try(decode(payload) ->> '$.temp.value') FROM journal\"    of JSON\n\n"
        "The table is called journal. This needs pip install 'sbuslib[query]'."
    )
    _add_directories(parser, None)
    add(parser, "SQL", "the question, about the table journal")
    add(parser, "--json", "a line of JSON for each row")


def add_selection(parser: Parser, verb: str) -> None:
    """Add the options that select recorded messages."""
    add(parser, "-p --pattern PATTERN", f"{verb} what matches; may be repeated", action="append")
    add(parser, "--start WHEN", "leave out earlier messages")
    add(parser, "--end WHEN", "leave out messages from then on")


def add_skipping(parser: Parser, help: str) -> None:
    """Add the option for damaged data: ``on_corrupt`` is ``"error"`` or ``"skip"``."""
    parser.add_argument(
        "--skip-corrupt", dest="on_corrupt", action="store_const", const="skip", default="error", help=help
    )


def _add_directories(parser: Parser, many: str | None) -> None:
    parser.add_argument("directory", metavar="DIR", nargs=many, help="directory or URI of a journal, or of a lake")


def _each(arguments: Namespace, verb: Callable[[str], bool]) -> int:
    """Call ``verb`` for each directory. After an error, which is printed, the others go on. Returns the exit status."""
    from ..errors import SbusError

    good = True
    for directory in arguments.directory:
        try:
            good &= verb(directory)
        except (SbusError, OSError) as error:
            complain("sbus", explain(error) + advise(error, arguments))
            good = False
    return EXIT_SUCCESS if good else EXIT_FAILURE


def when(time_ns: int | None) -> str:
    """Format a time as ISO 8601, in local time."""
    if time_ns is None:
        return "?"
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().isoformat(timespec="milliseconds")


def run_journal_info(arguments: Namespace) -> int:
    begin_to_show()
    return _each(arguments, partial(_show_info, as_json=arguments.json))


def _show_info(directory: str, as_json: bool) -> bool:
    from ..journal.summary import summarize

    for found in summarize(directory):
        if as_json:
            show_json(found)
            continue
        files = found.files
        times = [file.latest for file in files if file.latest is not None]
        missing = f", {found.missing:,} rows between them are missing" if found.missing else ""
        lines = {
            "journal": found.journal or "?",
            "hub": found.hub or "?",
            "separator": found.separator or "?",
            "files": f"{len(files):,}, {sum(file.bytes for file in files):,} bytes",
            "rows": f"{sum(file.rows for file in files):,}, the first is row {files[0].first_row:,}{missing}",
            "begun": when(files[0].begun),
            "latest": when(max(times, default=None)),
            "recorder": "at work" if found.recorded else "none at work",
        }
        for name, value in lines.items():
            print(f"{name:<10} {value}")
        for file in files:
            state = f"{when(file.begun)}  {file.state}"
            print(f"{file.name}  {file.bytes:>12,} bytes  {file.rows:>10,} rows  {state}")
    return True


def selection(arguments: Namespace) -> Selection:
    """Return the selection of rows by the options of :func:`add_selection`."""
    from ..journal.read.selection import Selection

    patterns = tuple(arguments.pattern) if arguments.pattern else None
    return Selection(arguments.start, arguments.end, patterns=patterns)


def run_journal_cat(arguments: Namespace) -> int:
    from ..journal.read.blocks import read_records

    begin_to_show()
    wanted, show, left = selection(arguments), _shower(arguments), arguments.count

    def cat(directory: str) -> bool:
        nonlocal left
        for row in read_records(directory, wanted, on_corrupt=arguments.on_corrupt, on_skip=show_skipped):
            if left == 0:
                break
            if row.key is None:
                show_gap(row)
                continue
            show(row)
            left = None if left is None else left - 1
        sys.stdout.flush()
        return True

    return _each(arguments, cat)


def show_gap(row: Record) -> None:
    """Print on standard error how many messages are missing, and why, or what happened to the hub."""
    from ..wire.events import event_of

    if (event := event_of(row.cause, row.lost)) is not None:
        complain("sbus", f"row {row.sequence:,}: {event.text}")
        return
    lost = "an unknown number of" if row.lost is None else f"{row.lost:,}"
    complain("sbus", f"row {row.sequence:,}: {lost} messages were lost: {row.cause}")


def run_journal_query(arguments: Namespace) -> None:
    begin_to_show()
    import duckdb  # first of all: the error for it names the extra that brings Arrow, too

    from ..errors import UsageError
    from ..journal.read.readers import journal_error
    from ..reading import read

    connection = duckdb.connect(config={"enable_external_access": "true"})
    read(arguments.directory, "duckdb", connection=connection).create_view("journal")
    try:
        found = connection.sql(arguments.sql)
        rows = found.fetchall() if found is not None else []
    except duckdb.Error as error:
        raise journal_error(error) or UsageError(" ".join(str(error).split())) from None
    names = list(found.columns) if found is not None else []
    shown = [[_plain(value) for value in row] for row in rows]
    if arguments.json:
        for row in shown:
            show_json(dict(zip(names, row, strict=True)))
    else:
        print("\n".join(columns([names, *shown])))


def _plain(value: object) -> object:
    """Convert a value of DuckDB to a number or to text."""
    from ..wire.text import printable

    if isinstance(value, bytes):
        return printable(value)
    return value if isinstance(value, (int, float)) else "" if value is None else str(value)


def show_skipped(path: str, skipped: Skipped) -> None:
    """Print on standard error which bytes of a journal are skipped because they are damaged."""
    complain("sbus", f"{path}: {skipped.length:,} bytes at {skipped.position:,} skipped")


def run_journal_verify(arguments: Namespace) -> int:
    begin_to_show()
    return _each(arguments, partial(_verify_one, as_json=arguments.json))


def _verify_one(directory: str, *, as_json: bool) -> bool:
    import msgspec

    from ..journal.verify import Check, verify

    damages: list[dict[str, object]] = []

    def on_damage(path: str, skipped: Skipped) -> None:
        if as_json:
            fields = {"position": skipped.position, "bytes": skipped.length, "rows": skipped.rows}
            damages.append({"path": path, "reason": skipped.reason, **fields})
            return
        rows = "" if skipped.rows is None else f", {skipped.rows:,} rows"
        print(f"{path}: byte {skipped.position:,}: {skipped.reason} ({skipped.length:,} bytes{rows})")

    def so_far() -> str:
        return f"{check.messages:,} messages in {check.files:,} files read"

    # 1. Every byte is read, and damage is printed.
    check = Check()
    with progress(so_far):
        verify(directory, on_damage, check)

    if as_json:
        counts = msgspec.to_builtins(check) | {"damages": damages, "is_whole": check.is_whole}
        show_json({"journal": directory, **counts, "verdict": check.verdict()})
        return check.is_whole

    # 2. The summary: present, damaged and missing rows.
    whole = "all of it is whole" if check.is_whole else f"{check.damages:,} places are damaged"
    if not check.damages and not check.is_whole:
        whole = "rows are missing"
    begun = f" from row {check.first_row:,} on" if check.first_row else ""
    read = f"{check.messages:,} messages{begun}, in {check.files:,} files"
    print(f"{directory}: {read}: {whole}")
    if check.frames:
        print(f"{directory}: {check.frames:,} of them name frames, files or descriptors, which are not recorded")
    for cause in sorted({*check.lost, *check.unknown}):
        lost, times = check.lost[cause], check.unknown[cause]
        if lost or times:
            print(f"{directory}: {lost:,} lost{f', and {times:,} times nobody knows how many' * bool(times)}: {cause}")
    print(check.verdict())
    return check.is_whole


_ACKNOWLEDGED_AT_ONCE = 1_000
"""Messages that are acknowledged together: each acknowledgement is written to a file."""


_LONGEST_VARIABLE = 65_536
"""Bytes of the longest key or sender in a command's environment. Linux starts no program with one of 128 KiB."""


def add_journal_consume(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Show the messages that a journal has and gets, or run a command for each, from the first on that was not done "
        "under this NAME before. What could not be shown, or a command did not manage, comes again the next time. "
        "Messages that are missing are reported on standard error."
    )
    parser.epilog = (
        "examples:\n"
        "  sbus journal consume alarms /var/lib/sbus/journal 'room/*/alarm'\n"
        "  sbus journal consume billing journal order/ -x ./bill    for each; its standard input is the payload\n"
        "  sbus journal consume nightly journal --once --json       what has come since the last night\n"
        "\n"
        "The command is run by sh(1), for one message at a time, with SBUS_KEY, SBUS_SENDER and SBUS_ROW in its "
        "environment. If its status is not 0, this command ends with status 1."
    )

    add(parser, "NAME", "letters, digits and ._-; one consumer at a time has it")
    add(parser, "DIR", "the journal's directory", dest="directory")
    add(parser, "[PATTERN...]", "pattern of routing keys; else everything")
    add(parser, "-x --execute COMMAND", "run this for each message, and show none")
    add(parser, "--once", "end where the journal ends, rather than wait for more")
    add(parser, "-n --count N", "end after N messages")
    add(parser, "--timeout TIME", "end with status 1 when nothing comes for TIME")
    add(parser, "--positions DIR", "keep the position in this folder, not in the journal's")
    add_skipping(parser, "skip damaged rows, and print how many bytes")
    add_forms(parser)


def run_journal_consume(arguments: Namespace) -> None:
    from ..errors import StateError
    from ..journal.consume import consume

    do: Callable[[Record], None]
    if arguments.execute is None:
        begin_to_show()
        do, most = _shower(arguments), _ACKNOWLEDGED_AT_ONCE
    else:
        yield_to_ctrl_c()  # a command need not read its standard input to the end
        do, most = partial(_execute, arguments.execute), 1
    try:
        with consume(
            arguments.name,
            arguments.patterns or [b""],
            arguments.directory,
            positions=arguments.positions,
            follow=not arguments.once,
            on_corrupt=arguments.on_corrupt,
        ) as consumer:
            _work(consumer, do, most, arguments)
    except subprocess.CalledProcessError as error:
        raise StateError(f"the command ended with status {error.returncode}, and gets this message again") from None


def _work(consumer: Consumer, do: Callable[[Record], None], most: int, arguments: Namespace) -> None:
    """Call ``do`` for each row, and acknowledge up to ``most`` rows at a time."""
    waiting, left = 0, arguments.count
    while left != 0:
        try:
            row = consumer.get(0 if waiting else arguments.timeout)
        except TimeoutError:
            if not waiting:
                raise
        except StopIteration:
            break
        else:
            if row.key is None:
                show_gap(row)
            else:
                do(row)
                left = None if left is None else left - 1
            waiting += 1
            if waiting < most and left != 0:
                continue

        # Enough rows, or none for now. What was printed leaves this process before its rows count as done.
        sys.stdout.flush()
        consumer.acknowledge()
        waiting = 0
    sys.stdout.flush()
    consumer.acknowledge()


def _shower(arguments: Namespace) -> Callable[[Record], None]:
    from ..wire.packets import Message
    from .messages import shower

    show, out = shower(arguments), sys.stdout.buffer
    with_sender = wants_senders(arguments)

    def do(row: Record) -> None:
        assert row.key is not None
        assert row.payload is not None
        out.write(show(Message(row.key, row.payload, row.sender if with_sender else None), row.time_ns))

    return do


def _execute(command: str, row: Record) -> None:
    variables = {b"SBUS_ROW": b"%d" % row.sequence, b"SBUS_SENDER": row.sender or b"", b"SBUS_KEY": row.key or b""}
    variables = {name: value for name, value in variables.items() if len(value) <= _LONGEST_VARIABLE}
    subprocess.run(["sh", "-c", command], input=row.payload, env={**os.environb, **variables}, check=True)
