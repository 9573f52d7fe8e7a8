"""Report on traffic: volume over time, by level of the key, by sender and user, by size, and losses.

The rows are read four times: for their span, for all summaries together, for the keys, and for outages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ..errors import UsageError
from ..matcher import SEPARATOR
from .by_key import by_key, by_level
from .curves import curves
from .exports import Table
from .html import Column, HtmlPage, Report, duration, heading, human, losses, show
from .outages import Outage, outages
from .sql import Recorded

_PERIODS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 86_400, 604_800)
_POINTS = 240
"""Most periods in a curve: as many as a screen can show, and few enough to draw quickly."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Span(NamedTuple):
    """First and last time of a recording, in nanoseconds since the epoch, and the number of its rows."""

    first_ns: int
    last_ns: int
    rows: int

    @property
    def seconds(self) -> float:
        """The time from the first row to the last."""
        return (self.last_ns - self.first_ns) / 1e9


def span(recorded: Recorded) -> Span | None:
    """Find the span of the rows; ``None`` when there are none. Gaps of unknown time only count as rows."""
    ((first, last, count),) = recorded.query("SELECT MIN(time_ns), MAX(time_ns), COUNT(*) FROM sbus_recorded")
    return None if not count else Span(first or 0, last or 0, count)


def period(seconds: float) -> int:
    """Choose a round number of seconds so that 240 or fewer periods cover the span.

    >>> period(60), period(3_600), period(86_400)
    (1, 15, 600)
    """
    return next((period for period in _PERIODS if seconds / period <= _POINTS), _PERIODS[-1])


# First one row for each distinct combination, then the sums of these by each of five sets: the rows are read once.
# Gaps of no message are events. The period of a time before 1970 is that before it, though % rounds towards 0.
_SUMMARIES = """
WITH classed AS (
  SELECT hub, time_ns, time_ns - (time_ns % {step} + {step}) % {step} AS start_ns, kind = 'message' AS message,
    size, sender, gid, uid, lost, cause,
    CASE WHEN kind <> 'message' THEN NULL WHEN size <= 1 THEN size
      ELSE CAST(1 AS BIGINT) << length(bin(size - 1)) END AS size_to
  FROM sbus_recorded WHERE lost IS NULL OR lost > 0
), digest AS (
  SELECT hub, start_ns, sender, gid, uid, size_to, cause,
    COUNT(*) FILTER (WHERE message) AS messages, SUM(size) FILTER (WHERE message) AS bytes,
    COUNT(*) FILTER (WHERE NOT message) AS gaps, SUM(lost) AS lost,
    COUNT(*) FILTER (WHERE NOT message AND lost IS NULL) AS unknown,
    MIN(time_ns) AS first_ns, MAX(time_ns) AS last_ns
  FROM classed GROUP BY hub, start_ns, sender, gid, uid, size_to, cause
)
SELECT CASE WHEN GROUPING(start_ns) = 0 THEN 'over_time' WHEN GROUPING(sender) = 0 THEN 'by_sender'
    WHEN GROUPING(gid) = 0 THEN 'by_user' WHEN GROUPING(size_to) = 0 THEN 'sizes' ELSE 'gaps' END,
  hub, start_ns, sender, gid, uid, size_to, cause,
  CAST(SUM(messages) AS BIGINT), CAST(COALESCE(SUM(bytes), 0) AS BIGINT), CAST(SUM(gaps) AS BIGINT),
  CAST(CASE WHEN SUM(gaps) = 0 THEN 0 ELSE SUM(lost) END AS BIGINT), CAST(SUM(unknown) AS BIGINT),
  MIN(first_ns), MAX(last_ns)
FROM digest
GROUP BY GROUPING SETS ((hub, start_ns), (sender, uid), (uid, gid), (size_to), (hub, cause))
"""

_COLUMNS = {
    "hub": "string",
    "start": "time",
    "sender": "binary",
    "gid": "int64",
    "uid": "int64",
    "size_to": "int64",
    "cause": "string",
    "messages": "int64",
    "bytes": "int64",
    "gaps": "int64",
    "lost": "int64",
    "unknown": "int64",
    "first": "time",
    "last": "time",
}
"""The columns of the answer to :data:`_SUMMARIES` after the first, which names the table."""


class _Summary(NamedTuple):
    """A table out of the answer: its ``columns``, which count is not 0 in it, and its order."""

    columns: str
    counted: str
    order: str
    """The columns that order it, those with a minus descending. Nulls come last, and count as 0 if descending."""


_TABLES = {
    "over_time": _Summary("hub start messages bytes lost unknown", "", "hub start"),
    "by_sender": _Summary("sender uid messages bytes", "messages", "-messages -bytes sender uid"),
    "by_user": _Summary("uid gid messages bytes", "messages", "-messages -bytes uid gid"),
    "sizes": _Summary("size_to messages bytes", "messages", "size_to"),
    "gaps": _Summary("hub cause gaps lost unknown first last", "gaps", "-lost -unknown hub cause"),
}


def summaries(recorded: Recorded, seconds: int) -> dict[str, Table]:
    """The tables of the report but ``by_level``.

    ``lost`` is the sum of the known counts, null where none is known, and ``unknown`` the number of gaps without a
    count.

    :param seconds: the length of a period.
    """
    if seconds < 1:
        raise UsageError(f"a period is one second or more, not {seconds}")
    rows_by_table: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _TABLES}
    for name, *values in recorded.query(_SUMMARIES.format(step=seconds * 1_000_000_000)):
        rows_by_table[name].append(tuple(values))
    return {name: _table(rows, _TABLES[name]) for name, rows in rows_by_table.items()}


def _table(rows: list[tuple[Any, ...]], summary: _Summary) -> Table:
    at = {name: number for number, name in enumerate(_COLUMNS)}
    if summary.counted:
        rows = [row for row in rows if row[at[summary.counted]]]

    def order(row: tuple[Any, ...]) -> list[Any]:
        names = summary.order.split()
        return [
            -(row[at[name[1:]]] or 0) if name[0] == "-" else (row[at[name]] is None, row[at[name]]) for name in names
        ]

    columns = {name: _COLUMNS[name] for name in summary.columns.split()}
    chosen = [(at[name], kind == "time") for name, kind in columns.items()]
    return Table(
        columns, [tuple(time_of(row[n]) if timed else row[n] for n, timed in chosen) for row in sorted(rows, key=order)]
    )


def time_of(nanoseconds: int | None) -> datetime | None:
    """A time in whole microseconds, as the rows have it."""
    return None if nanoseconds is None else _EPOCH + timedelta(microseconds=nanoseconds // 1_000)


def traffic(
    recorded: Recorded, *, seconds: int | None = None, levels: int = 3, separator: bytes = SEPARATOR
) -> Report | None:
    """The report. ``None`` when there are no rows.

    :param seconds: the length of a period; by default one that suits the time covered.
    :param levels: how many segments of the keys are counted.
    """
    covered = span(recorded)
    if covered is None:
        return None
    length = seconds or period(covered.seconds)
    tables = summaries(recorded, length)
    levelled = by_level(by_key(recorded), levels, separator)
    columns = dict.fromkeys(("messages", "bytes", "keys", "largest"), "int64")
    tables["by_level"] = Table({"level": "int32", "prefix": "binary", **columns}, [*levelled])
    away = outages(recorded, covered.first_ns)
    return Report(tables, lambda: _page(tables, covered, away, length, levels, recorded.engine))


# -- the page ---------------------------------------------------------------------------------------

_COUNTS: Sequence[Column] = (("messages", "messages", "count"), ("bytes", "payloads", "bytes"))


def _page(
    tables: dict[str, Table], covered: Span, away: Sequence[Outage], length: int, levels: int, engine: str
) -> str:
    over_time, by_first = tables["over_time"], [row for row in tables["by_level"].rows if row[0] == 1]
    messages = over_time.total("messages")
    page = HtmlPage(
        "Traffic",
        f"Recorded from {second(covered.first_ns)} to {second(covered.last_ns)} UTC, "
        f"{duration(covered.seconds)} in all.",
        engine,
    )

    page.tile(human(messages), "messages")
    page.tile(human(over_time.total("bytes"), "B"), "of payloads")
    page.tile(human(messages / max(covered.seconds, 1e-3)), "messages a second")
    by_start = Counter[datetime | None]()
    for _, start, count, *_ in over_time.rows:
        by_start[start] += count
    page.tile(human(max(by_start.values()) / length), f"a second in the busiest {_period(length).removeprefix('1 ')}")
    page.tile(human(sum(row[4] for row in by_first)), "distinct keys")
    page.tile(*losses(over_time.total("lost"), over_time.total("unknown"), "lost before they were recorded"))

    page.section(
        "Over time",
        f"Each step is {_period(length)}. Red: the recorder knows that messages are missing; striped: nobody knows how "
        "many.",
        *curves(over_time, length, away),
    )
    page.section(
        "By key", "A row that ends in the separator counts all keys below it.", *_levels(tables["by_level"], levels)
    )
    page.section(
        "By sender",
        "Each sender's whole path. The recording hub vouches for the first step after its own prefix.",
        show(tables["by_sender"], ("sender", "sender", "text"), ("uid", "user", "user"), *_COUNTS, barred="messages"),
        heading("By user"),
        show(tables["by_user"], ("uid", "user", "user"), ("gid", "group", "group"), *_COUNTS, barred="messages"),
    )
    page.section(
        "Sizes",
        "A row counts payloads of at most so many bytes, and more than half of it.",
        show(tables["sizes"], ("size_to", "up to", "bytes"), *_COUNTS, barred="messages"),
    )
    page.section("Lost", *_lost(tables["gaps"]))
    return page.html()


def _levels(table: Table, levels: int) -> list[Any]:
    """Make a table for each number of segments."""
    parts = []
    for level in range(1, levels + 1):
        rows = [row for row in table.rows if row[0] == level]
        if not rows:
            break
        parts.append(heading("First segment" if level == 1 else f"First {level} segments"))
        columns: Sequence[Column] = (*_COUNTS, ("keys", "keys", "count"), ("largest", "longest", "bytes"))
        parts.append(show(table._replace(rows=rows), ("prefix", "keys below", "text"), *columns, barred="messages"))
    return parts


def _lost(gaps: Table) -> tuple[Any, ...]:
    if not gaps.rows:
        return ("The recorder knows of no loss.",)

    text = (
        "Messages that were published and are not recorded, as far as the recorder knows. Gaps of unknown size do not "
        "say how many messages are missing: the number of messages is without them."
    )
    columns: Sequence[Column] = (
        ("hub", "hub", "text"),
        ("cause", "cause", "text"),
        ("lost", "messages", "count"),
        ("gaps", "gaps", "count"),
        ("unknown", "of unknown size", "count"),
        ("first", "first", "moment"),
        ("last", "last", "moment"),
    )
    return text, show(gaps, *columns)


def second(nanoseconds: int) -> str:
    """A time as text, to the second, in UTC."""
    return (_EPOCH + timedelta(seconds=nanoseconds // 1_000_000_000)).strftime("%Y-%m-%d %H:%M:%S")


def _period(seconds: int) -> str:
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds % size == 0:
            return f"{seconds // size} {name}{'s' * (seconds > size)}"
    return f"{seconds} second{'s' * (seconds > 1)}"
