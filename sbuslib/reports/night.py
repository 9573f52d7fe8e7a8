"""Report of some hours, in order of time: events of hubs, missing messages, users that flooded the bus, and keys that
fell silent.

The first two stand in the recording: events and gaps. The others are counted from its messages, so they hold for the
recorded messages and keys only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ..kernel.users import name_of_user
from ..wire.events import event_of, shown
from .curves import curves
from .exports import Table
from .html import Column, HtmlPage, Report, duration, human, losses, show
from .outages import AWAY, Outage, outages
from .sql import Recorded
from .traffic import Span, period, second, span, summaries, time_of

_SECOND: Final = 1_000_000_000

_WINDOW: Final = 10
"""Seconds of a window in which the rates of users are counted."""

_FLOOD: Final = 1_000
"""Fewest messages of one user in such a window that are a flood..."""

_TIMES: Final = 10
"""...if they are so many times as many as usual: as in half of all windows, those without any message included."""

_REGULAR: Final = 20
"""Fewest messages under a key that can fall silent..."""

_STEADY: Final = 600
"""...and fewest seconds from the first to the last: a key that was used once for a moment is none."""

_LONGER: Final = 3
"""A key has fallen silent when nothing came for so many times its longest pause until then."""

_KEYS: Final = 20
"""Keys that are named."""

_MINUTE: Final = 60 * _SECOND
"""Seconds: gaps of one cause that are no farther apart are reported together."""


class NightEntry(NamedTuple):
    """Something that happened, from ``time_ns`` on, in nanoseconds since the epoch."""

    time_ns: int
    kind: str
    text: str


def night(recorded: Recorded) -> Report | None:
    """The report. Its table ``night`` has a row for each moment, in order of time. ``None`` when there are no rows."""
    covered = span(recorded)
    if covered is None:
        return None
    away = outages(recorded, covered.first_ns)
    found = [
        *_events(recorded),
        *map(_outage, away),
        *_missing(recorded, covered),
        *_floods(recorded, covered),
        *_silent(recorded, covered),
    ]
    rows = [(time_of(moment.time_ns), moment.kind, moment.text) for moment in sorted(found)]
    tables = {"night": Table({"time": "time", "kind": "string", "text": "string"}, rows)}
    return Report(tables, lambda: _page(tables["night"], recorded, covered, away))


def _events(recorded: Recorded) -> Iterator[NightEntry]:
    """A recorder that joined its hub again may have recorded some twice."""
    for (cause,) in recorded.query("SELECT DISTINCT cause FROM sbus_recorded WHERE lost = 0"):
        event = event_of(cause, 0)
        if event is not None:
            yield NightEntry(int(event.time * _SECOND), event.kind, event.text)


def _outage(outage: Outage) -> NightEntry:
    """No time of day is in the text: pages show UTC, and the shell local time."""
    if outage.end_ns is None:
        lasting = "to the end"
    elif outage.end_ns < outage.first_ns:
        lasting = "for a time that nobody knows, as the clock was set back"
    else:
        lasting = f"for {duration((outage.end_ns - outage.first_ns) / _SECOND)}"
    return NightEntry(outage.first_ns, "outage", f"nothing was recorded {lasting}: {shown(outage.cause)}")


def _missing(recorded: Recorded, covered: Span) -> Iterator[NightEntry]:
    """Messages that the recorder did not get. Those of a minute come as one row, and adjoining minutes are reported
    together.
    """
    causes = ", ".join(f"'{cause}'" for cause in AWAY)
    rows = recorded.query(
        "SELECT hub, cause, MIN(time_ns), MAX(time_ns), CAST(SUM(lost) AS BIGINT), COUNT(*) FILTER (WHERE lost IS NULL)"
        " FROM sbus_recorded WHERE kind = 'gap' AND (lost > 0 OR lost IS NULL AND COALESCE(cause, '') NOT"
        f" IN ({causes})) GROUP BY hub, cause, time_ns - time_ns % {_MINUTE}"
    )
    merged: list[list[Any]] = []
    for hub, cause, first, last, lost, unknown in sorted(rows, key=lambda row: (row[0] or "", row[1], row[2] or 0)):
        first, last = first or covered.first_ns, last or covered.first_ns
        before = merged[-1] if merged else None
        if before and before[:2] == [hub, cause] and first - before[3] <= _MINUTE:
            before[3:] = [last, (before[4] or 0) + (lost or 0), before[5] + unknown]
        else:
            merged.append([hub, cause, first, last, lost, unknown])

    for _, cause, first, last, lost, unknown in merged:
        figure = " and ".join([f"{lost:,}"] * bool(lost) + ["nobody knows how many"] * bool(unknown))
        time = duration((last - first) / _SECOND)
        text = f"messages that are not recorded, in {time}: {figure}: {shown(str(cause))}"
        yield NightEntry(first, "missing", text)


_FLOODS = """
WITH windows AS (
  SELECT COALESCE(uid, -1) AS user, time_ns - time_ns % {window} AS start_ns, COUNT(*) AS n, MIN(time_ns) AS first_ns
  FROM sbus_recorded WHERE kind = 'message' GROUP BY 1, 2
), ranked AS (
  SELECT user, n, ROW_NUMBER() OVER (PARTITION BY user ORDER BY n) AS place, COUNT(*) OVER (PARTITION BY user) AS active
  FROM windows
), usual AS (
  SELECT user, n AS most FROM ranked WHERE place = {half} - ({all} - active)
)
SELECT windows.user, start_ns, n, COALESCE(most, 0), first_ns FROM windows LEFT JOIN usual ON windows.user = usual.user
WHERE n >= {flood} AND n >= {times} * COALESCE(most, 0)
"""


def _floods(recorded: Recorded, covered: Span) -> Iterator[NightEntry]:
    """Users that published far more than usual; adjoining windows are reported together."""
    count = (covered.last_ns - covered.first_ns) // (_WINDOW * _SECOND) + 1
    values = {"window": _WINDOW * _SECOND, "all": count, "half": (count + 1) // 2, "flood": _FLOOD, "times": _TIMES}
    floods: list[list[int]] = []
    for user, start, messages, usual, first in sorted(recorded.query(_FLOODS.format(**values))):
        if floods and floods[-1][0] == user and start == floods[-1][2]:
            floods[-1][2:4] = [start + _WINDOW * _SECOND, floods[-1][3] + messages]
        else:
            floods.append([user, start, start + _WINDOW * _SECOND, messages, usual, first])

    for user, start, end, messages, usual, first in floods:
        seconds = (end - start) // _SECOND
        who = f"user {shown(name_of_user(user))} ({user})" if user >= 0 else "users that are unknown here"
        rates = f"{human(messages / seconds)} a second, usually {human(usual / _WINDOW)}"
        yield NightEntry(first, "flood", f"{who} published {messages:,} in {seconds} s: {rates}")


_SILENT = """
WITH regular AS (
  SELECT key FROM sbus_recorded WHERE key IS NOT NULL GROUP BY key
  HAVING COUNT(*) >= {regular} AND MAX(time_ns) - MIN(time_ns) >= {steady}
), paused AS (
  SELECT key, time_ns, time_ns - LAG(time_ns) OVER (PARTITION BY key ORDER BY time_ns) AS pause
  FROM sbus_recorded WHERE key IN (SELECT key FROM regular)
)
SELECT COUNT(*), key, MAX(time_ns), MAX(pause) FROM paused GROUP BY key
HAVING {end} - MAX(time_ns) > {longer} * MAX(pause)
"""


def _silent(recorded: Recorded, covered: Span) -> Iterator[NightEntry]:
    """Keys under which messages came regularly, and then no more. Those with most messages are named."""
    values = {"regular": _REGULAR, "steady": _STEADY * _SECOND, "longer": _LONGER, "end": covered.last_ns}
    keys = sorted(recorded.query(_SILENT.format(**values)), key=lambda row: (-row[0], row[1]))
    for count, key, last, pause in keys[:_KEYS]:
        text = f"nothing came under {shown(key)} after that; before, {count:,} messages"
        yield NightEntry(last, "silent", f"{text}, {duration(pause / _SECOND)} apart at most")
    if more := keys[_KEYS:]:
        yield NightEntry(covered.last_ns, "silent", f"likewise {len(more):,} more keys")


def _page(moments: Table, recorded: Recorded, covered: Span, away: Sequence[Outage]) -> str:
    times = f"From {second(covered.first_ns)} to {second(covered.last_ns)} UTC, {duration(covered.seconds)} in all."
    page, length = HtmlPage("What happened", times, recorded.engine), period(covered.seconds)
    over_time = summaries(recorded, length)["over_time"]
    kinds = Counter(moments.column("kind"))
    page.tile(human(over_time.total("messages")), "messages")
    page.tile(*losses(over_time.total("lost"), over_time.total("unknown"), "lost before they were recorded"))
    for kind, what in (("outage", "outages"), ("flood", "floods"), ("silent", "keys fell silent")):
        page.tile(human(kinds[kind]), what, bad=kinds[kind] > 0)

    columns: Sequence[Column] = (("time", "time (UTC)", "moment"), ("kind", "what", "text"), ("text", "more", "text"))
    page.section("In order of time", "", show(moments, *columns))
    legend = "Red: messages are missing; striped: nobody knows how many."
    page.section("Messages", legend, *curves(over_time, length, away))
    return page.html()
