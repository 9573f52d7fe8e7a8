"""Report on subscriptions: messages of each pattern, patterns that match nothing, and patterns covered by others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import KeyFormatError, UsageError
from ..matcher import SEPARATOR
from ..wire.packets import check_key
from .by_key import by_key, by_pattern, coverage
from .exports import Table
from .html import Column, HtmlPage, Report, human, show
from .sql import Recorded

_COLUMNS = {"pattern": "binary", "messages": "int64", "bytes": "int64", "keys": "int64", "covered_by": "keys"}


def read_patterns(path: str) -> list[bytes]:
    """Read the patterns in a file, one a line, in order and without duplicates.

    Empty lines and lines that begin with ``#`` are left out. The empty pattern, which matches everything, is written
    ``""``. Raises :exc:`~sbuslib.errors.UsageError`, with the number of the line, for a wrong pattern, and
    :exc:`OSError`.
    """
    patterns: dict[bytes, None] = {}
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        pattern = b"" if line == b'""' else line
        if line and not line.startswith(b"#"):
            try:
                check_key(pattern, "pattern")
            except KeyFormatError as error:
                raise UsageError(f"{path}, line {number}: {error}") from None
            patterns[pattern] = None
    return list(patterns)


def subscriptions(recorded: Recorded, patterns: Sequence[bytes], separator: bytes = SEPARATOR) -> Report:
    """Make the report. Its one table, ``patterns``, has a row for every pattern.

    :param patterns: distinct patterns.
    """
    covered = coverage(patterns, separator)
    rows = by_pattern(by_key(recorded), patterns, separator)
    table = Table(_COLUMNS, [(*row, covered[row[0]]) for row in rows])
    return Report({"patterns": table}, lambda: _page(table, recorded.engine))


def _page(patterns: Table, engine: str) -> str:
    idle, busy, covered = (
        patterns._replace(rows=rows)
        for rows in (
            sorted(row for row in patterns.rows if not row[1]),
            [row for row in patterns.rows if row[1]],
            [row for row in patterns.rows if row[4]],
        )
    )
    lead = "What a client with each pattern would have received of the recorded messages."
    page = HtmlPage("Subscriptions", lead, engine)
    page.tile(human(len(patterns.rows)), "patterns")
    page.tile(human(len(idle.rows)), "match nothing", bad=bool(idle.rows))
    page.tile(human(len(covered.rows)), "are covered by others")

    columns: Sequence[Column] = (("pattern", "pattern", "text"), ("messages", "messages", "count"))
    page.section(
        "The busiest",
        "Patterns that match most messages.",
        show(busy, *columns, ("bytes", "payloads", "bytes"), ("keys", "keys", "count"), barred="messages"),
    )
    page.section(
        "Nothing",
        "Patterns that match no recorded message: typing errors, old patterns, or rare events.",
        show(idle, columns[0]),
    )
    page.section(
        "Covered",
        "Another pattern matches every key that these match. A client that holds both needs only the other. The empty "
        "pattern, which matches everything, does not count here.",
        show(covered, columns[0], ("covered_by", "covered by", "text"), columns[1]),
    )
    return page.html()
