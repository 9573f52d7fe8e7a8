"""The reports: the tables of a job, and the page that shows them.

A :class:`Report` is lazy: Spark runs almost nothing for it until its page is made or its tables are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from ..matcher import SEPARATOR
from . import latency as latency_job
from . import plan as plan_job
from . import plots
from . import subscriptions as subscriptions_job
from . import traffic as traffic_job
from .matching import by_key
from .page import Kind, Page, duration, figure, human, table
from .page import shown as text_of
from .plots import BARS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from .latency import CorrelationId

__all__ = ["Report", "latency", "plan", "subscriptions", "traffic"]

_ROWS = 25
"""Rows of a table in a page: as many as people read."""


class Report(NamedTuple):
    """A report: its ``tables`` by name, and ``page``, which makes the HTML."""

    tables: dict[str, DataFrame]
    page: Callable[[], str]


def _top(frame: DataFrame, count: int = _ROWS) -> tuple[list[Row], bool]:
    """The first rows, and whether there are more."""
    rows = frame.limit(count + 1).collect()
    return rows[:count], len(rows) > count


def _show(frame: DataFrame, *columns: tuple[str, Kind], barred: int | None = None) -> str:
    rows, more = _top(frame)
    return table(rows, *columns, more=more, barred=barred)


def _when(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")


# -- traffic ----------------------------------------------------------------------------------------


def traffic(
    rows: DataFrame, *, seconds: int | None = None, levels: int = 3, separator: bytes = SEPARATOR
) -> Report | None:
    """What a bus carried: see :mod:`sbuslib.spark.traffic`. ``None`` when there are no rows.

    :param seconds: the length of a period; by default one that suits the time covered.
    :param levels: how many segments of the keys are counted.
    """
    covered = traffic_job.span(rows)
    if covered is None:
        return None
    period = seconds or traffic_job.period(covered.seconds)
    keys = by_key(rows).persist()
    digest = traffic_job.digest(rows, period).persist()
    tables = {
        "over_time": traffic_job.over_time(digest),
        "by_level": traffic_job.by_level(keys, levels, separator),
        "by_sender": traffic_job.by_sender(digest),
        "by_user": traffic_job.by_user(digest),
        "sizes": traffic_job.sizes(digest),
        "gaps": traffic_job.gaps(rows),
    }
    return Report(tables, lambda: _traffic_page(tables, keys, covered, period, levels))


def _traffic_page(
    tables: dict[str, DataFrame], keys: DataFrame, covered: traffic_job.Span, period: int, levels: int
) -> str:
    times = tables["over_time"].collect()
    messages, payload = sum(row.messages for row in times), sum(row.bytes for row in times)
    lost = sum(row.lost for row in times)
    busiest = max((row.messages for row in times), default=0)
    page = Page(
        "Traffic",
        f"Recorded from {_when(covered.first_ns)} to {_when(covered.last_ns)} UTC, "
        f"{duration(max(1, covered.last_ns - covered.first_ns))} in all.",
    )
    page.tile(human(messages), "messages")
    page.tile(human(payload, "B"), "of payloads")
    page.tile(human(messages / max(covered.seconds, 1e-3)), "messages a second")
    page.tile(human(busiest / period), f"a second in the busiest {_period(period).removeprefix('1 ')}")
    page.tile(human(keys.count()), "distinct keys")
    page.tile(human(lost), "lost before they were recorded", bad=lost > 0)
    page.section(
        "Over time",
        f"Each point is {_period(period)}. Losses are those that the recorded hub knew of.",
        figure(plots.rates(times, period)),
    )
    page.section(
        "By key", "A row that ends in the separator counts all keys below it.", *_levels(tables["by_level"], levels)
    )
    _add_senders(page, tables)
    page.section(
        "Sizes",
        "Each bar counts payloads of at most so many bytes, and more than half of it.",
        figure(plots.sizes(tables["sizes"].collect())),
    )
    _add_gaps(page, tables["gaps"], lost)
    return page.html()


def _levels(by_level: DataFrame, levels: int) -> list[str]:
    """A plot of the first segments of keys, and a table for each number of segments."""
    every, _ = _top(by_level.where(f"level <= {levels}"), 10_000)
    parts = []
    for level in range(1, levels + 1):
        rows = [row for row in every if row.level == level]
        if not rows:
            break
        if level == 1:
            parts.append(figure(plots.volumes(rows, "prefix")))
        parts.append(f"<h2>{'First segment' if level == 1 else f'First {level} segments'}</h2>")
        parts.append(
            table(
                [row[1:] for row in rows[:BARS]],
                ("keys below", "text"),
                ("messages", "count"),
                ("payloads", "bytes"),
                ("keys", "count"),
                ("longest", "bytes"),
                more=len(rows) > BARS,
                barred=1,
            )
        )
    return parts


def _add_senders(page: Page, tables: dict[str, DataFrame]) -> None:
    page.section(
        "By sender",
        "Each sender's whole path. The recording hub vouches for the first step after its own prefix.",
        _show(tables["by_sender"], ("sender", "text"), ("messages", "count"), ("payloads", "bytes"), barred=1),
        "<h2>By user</h2>",
        _show(
            tables["by_user"],
            ("user", "id"),
            ("group", "id"),
            ("messages", "count"),
            ("payloads", "bytes"),
        ),
    )


def _add_gaps(page: Page, gaps: DataFrame, lost: int) -> None:
    page.section(
        "Lost",
        "Messages that the recorder knows it did not receive." if lost else "The recorder knows of no loss.",
        *(
            [
                _show(
                    gaps,
                    ("hub", "text"),
                    ("cause", "text"),
                    ("gaps", "count"),
                    ("messages", "count"),
                    ("first", "text"),
                    ("last", "text"),
                )
            ]
            if lost
            else []
        ),
    )


def _period(seconds: int) -> str:
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds % size == 0:
            return f"{seconds // size} {name}{'s' * (seconds > size)}"
    return f"{seconds} second{'s' * (seconds > 1)}"


# -- subscriptions ----------------------------------------------------------------------------------


def subscriptions(rows: DataFrame, patterns: Sequence[bytes], separator: bytes = SEPARATOR) -> Report:
    """What each pattern would have received: see :mod:`sbuslib.spark.subscriptions`.

    The one table, ``patterns``, has ``pattern``, ``messages``, ``bytes``, ``keys`` and ``covered_by``.
    """
    counted = subscriptions_job.received(by_key(rows), patterns, separator)
    covered = subscriptions_job.coverage(rows.sparkSession, patterns, separator)
    joined = (
        counted.join(covered, "pattern").orderBy(counted.messages.desc(), counted.bytes.desc(), "pattern").persist()
    )
    return Report({"patterns": joined}, lambda: _subscriptions_page(joined, len(patterns)))


def _subscriptions_page(patterns: DataFrame, count: int) -> str:
    from pyspark.sql import functions as f

    idle = patterns.where("messages = 0")
    covered = patterns.where(f.size("covered_by") > 0)
    idle_count, covered_count = idle.count(), covered.count()
    page = Page("Subscriptions", "What a client with each pattern would have received of the recorded messages.")
    page.tile(human(count), "patterns")
    page.tile(human(idle_count), "match nothing", bad=idle_count > 0)
    page.tile(human(covered_count), "are covered by others")
    busiest, more = _top(patterns.where("messages > 0").drop("covered_by"))
    columns: tuple[tuple[str, Kind], ...] = (
        ("pattern", "text"),
        ("messages", "count"),
        ("payloads", "bytes"),
        ("keys", "count"),
    )
    drawn = [figure(plots.volumes(busiest, "pattern"))] if busiest else []
    page.section(
        "The busiest", "Patterns that match most messages.", *drawn, table(busiest, *columns, more=more, barred=1)
    )
    page.section(
        "Nothing",
        "Patterns that match no recorded message: typing errors, old patterns, or rare events.",
        _show(idle.select("pattern").orderBy("pattern"), ("pattern", "text")),
    )
    page.section(
        "Covered",
        "Another pattern matches every key that these match. A client that holds both needs only the other.",
        _show(
            covered.select("pattern", f.slice("covered_by", 1, 5), f.size("covered_by"), "messages"),
            ("pattern", "text"),
            ("covered by", "text"),
            ("others", "count"),
            ("messages", "count"),
        ),
    )
    return page.html()


# -- latency ----------------------------------------------------------------------------------------


def latency(
    rows: DataFrame,
    requests: Sequence[bytes],
    replies: Sequence[bytes],
    correlation: CorrelationId,
    separator: bytes = SEPARATOR,
) -> Report:
    """How long replies took: see :mod:`sbuslib.spark.latency`."""
    found = latency_job.exchanges(rows, requests, replies, correlation, separator).persist()
    tables = {"by_request": latency_job.by_request(found), "histogram": latency_job.histogram(found)}
    return Report(tables, lambda: _latency_page(tables, found))


def _latency_page(tables: dict[str, DataFrame], exchanges: DataFrame) -> str:
    from pyspark.sql import functions as f

    asked, answered, strays, percentiles = exchanges.agg(
        f.count("request"),
        f.count("latency_ns"),
        f.coalesce(f.sum(f.when(f.col("request").isNull(), f.col("replies"))), f.lit(0)),
        f.percentile_approx("latency_ns", [0.5, 0.99], 10_000),
    ).collect()[0]
    p50, p99 = percentiles or (None, None)
    page = Page("Latency", "The time from a request to the first reply with its id, by the clock of the recording hub.")
    page.tile(human(asked), "requests")
    page.tile(f"{100 * answered / asked:.2f} %" if asked else text_of(None), "of them answered", bad=answered < asked)
    page.tile(duration(p50) if p50 is not None else text_of(None), "half of the replies took no longer")
    page.tile(duration(p99) if p99 is not None else text_of(None), "99 of 100 took no longer")
    page.tile(human(strays), "replies without a recorded request")
    found = {row.microseconds_to: row.replies for row in tables["histogram"].collect()}
    if found:
        page.section("How long", "All requests together.", figure(plots.latencies(found)))
    page.section(
        "By request",
        "A * in a key stands for the id.",
        _show(
            tables["by_request"],
            ("request", "text"),
            ("requests", "count"),
            ("answered", "count"),
            ("median", "time"),
            ("90 %", "time"),
            ("99 %", "time"),
            ("longest", "time"),
            barred=1,
        ),
    )
    return page.html()


# -- plan -------------------------------------------------------------------------------------------


def plan(routed: plan_job.Routed, hubs: DataFrame, *, place: bool = True) -> Report:
    """The load of every link of a tree: see :mod:`sbuslib.spark.plan`.

    :param place: also try every client at every hub.
    """
    tables = {"links": plan_job.links(routed, hubs).persist()}
    if place:
        tables["placements"] = plan_job.placements(routed, hubs).persist()
    return Report(tables, lambda: _plan_page(tables))


def _plan_page(tables: dict[str, DataFrame]) -> str:
    from pyspark.sql import functions as f

    links = tables["links"]
    names = ("flooded_up", "flooded_down", "up", "down")
    count, *sums = links.agg(
        f.count(f.lit(1)),
        *(f.coalesce(f.sum(name + suffix), f.lit(0)) for suffix in ("", "_bytes") for name in names),
    ).collect()[0]
    flooded, wanted = sums[0] + sums[1], sums[2] + sums[3]
    flooded_bytes, wanted_bytes = sums[4] + sums[5], sums[6] + sums[7]
    page = Page(
        "Plan",
        "The load of every link of the tree if hubs pass every message on (flooded), and if they pass on only wanted "
        "messages, as relays do (by interest).",
    )
    page.tile(human(count + 1), "hubs")
    page.tile(human(flooded), f"messages over links, flooded ({human(flooded_bytes, 'B')})")
    page.tile(human(wanted), f"by interest ({human(wanted_bytes, 'B')})")
    page.tile(f"{100 * (1 - wanted / flooded):.1f} %" if flooded else text_of(None), "of the messages saved")
    rows, more = _top(links)
    drawn = []
    if rows:
        drawn.append(figure(plots.busiest_links(rows)))
    if count > BARS:
        drawn.append(figure(plots.all_links(links, count)))
    page.section(
        "Links",
        "A link has the name of the hub below it.",
        *drawn,
        table(
            [
                (row.hub, row.above, *(row[name] for name in names), *(row[f"{name}_bytes"] for name in names[2:]))
                for row in rows
            ],
            ("hub", "text"),
            ("above it", "text"),
            ("flooded up", "count"),
            ("flooded down", "count"),
            ("up", "count"),
            ("down", "count"),
            ("up", "bytes"),
            ("down", "bytes"),
            more=more,
        ),
    )
    if "placements" in tables:
        _add_placements(page, tables["placements"])
    return page.html()


def _add_placements(page: Page, placements: DataFrame) -> None:
    page.section(
        "Clients",
        "The best hub for each client, if all others stay, and how many messages over links the move would save.",
        _show(
            placements.where("saved > 0"),
            ("client", "text"),
            ("now at", "text"),
            ("better at", "text"),
            ("messages saved", "count"),
            ("bytes saved", "bytes"),
        ),
    )
