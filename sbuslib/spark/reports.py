"""The reports: the tables of a job, and the page that shows them.

A :class:`Report` is lazy: Spark runs nothing for it until its page is made or its tables are written. The module is
long because it holds all four reports, which share a few small functions; each report stands alone below its heading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from ..matcher import SEPARATOR
from . import latency as latencies
from . import plan as plans
from . import subscriptions as held
from . import traffic as carried
from .matching import by_key
from .page import (
    COLOURS,
    Kind,
    Page,
    bars,
    duration,
    figure,
    human,
    plot,
    table,
)
from .page import shown as text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from .latency import CorrelationId

__all__ = ["Report", "latency", "plan", "subscriptions", "traffic"]

_ROWS = 25
"""Rows of a table in a page: what a reader looks at."""
_BARS = 12


class Report(NamedTuple):
    """A report: its ``tables`` by name, and ``page``, which makes the HTML."""

    tables: dict[str, DataFrame]
    page: Callable[[], str]


def _top(frame: DataFrame, count: int = _ROWS) -> tuple[list[Row], bool]:
    """The first rows, and whether there are more."""
    rows = frame.limit(count + 1).collect()
    return rows[:count], len(rows) > count


def _show(frame: DataFrame, *columns: tuple[str, Kind], barred: int | None = None, count: int = _ROWS) -> str:
    rows, more = _top(frame, count)
    return table(rows, *columns, more=more, barred=barred)


def _when(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")


# -- traffic ----------------------------------------------------------------------------------------


def traffic(
    rows: DataFrame, *, seconds: int | None = None, levels: int = 3, separator: bytes = SEPARATOR
) -> Report | None:
    """What a bus carried: see :mod:`sbuslib.spark.traffic`. ``None`` when ``rows`` has none.

    :param seconds: how long a period is; what is fit for the time covered, unless given.
    :param levels: how many segments of the keys are looked at.
    """
    covered = carried.span(rows)
    if covered is None:
        return None
    period = seconds or carried.period(covered.seconds)
    keys = by_key(rows).persist()
    digest = carried.digest(rows, period).persist()
    tables = {
        "over_time": carried.over_time(digest),
        "by_level": carried.by_level(keys, levels, separator),
        "by_sender": carried.by_sender(digest),
        "by_user": carried.by_user(digest),
        "sizes": carried.sizes(digest),
        "gaps": carried.gaps(rows),
    }
    return Report(tables, lambda: _traffic_page(tables, keys, covered, period, levels))


def _traffic_page(
    tables: dict[str, DataFrame], keys: DataFrame, covered: carried.Span, period: int, levels: int
) -> str:
    times = tables["over_time"].collect()
    messages, payload = sum(row.messages for row in times), sum(row.bytes for row in times)
    lost = sum(row.lost for row in times)
    busiest = max((row.messages for row in times), default=0)
    page = Page(
        "Traffic",
        f"What was recorded from {_when(covered.first_ns)} to {_when(covered.last_ns)} UTC, "
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
        f"Each point of time is {_period(period)}; what was lost is told by the hub that was recorded.",
        figure(_over_time(times, period)),
    )
    page.section(
        "By key", "What ends in the separator stands for all keys below it.", *_levels(tables["by_level"], levels)
    )
    _add_senders(page, tables)
    page.section(
        "Sizes",
        "How long payloads are: up to so many bytes, and longer than half.",
        figure(_sizes(tables["sizes"].collect())),
    )
    _add_gaps(page, tables["gaps"], lost)
    return page.html()


def _levels(by_level: DataFrame, levels: int) -> list[str]:
    """A picture of the first segments of keys, and a table for each number of segments."""
    every, _ = _top(by_level.where(f"level <= {levels}"), 10_000)
    parts = []
    for level in range(1, levels + 1):
        rows = [row for row in every if row.level == level]
        if not rows:
            break
        if level == 1:
            parts.append(figure(_volumes(rows)))
        parts.append(f"<h2>{'First segment' if level == 1 else f'First {level} segments'}</h2>")
        parts.append(
            table(
                [row[1:] for row in rows[:_BARS]],
                ("keys below", "text"),
                ("messages", "count"),
                ("payloads", "bytes"),
                ("keys", "count"),
                ("longest", "bytes"),
                more=len(rows) > _BARS,
                barred=1,
            )
        )
    return parts


def _add_senders(page: Page, tables: dict[str, DataFrame]) -> None:
    page.section(
        "By sender",
        "The whole path of each sender's credentials; the kernel vouches for as much of it as the hub could ask it.",
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
        "What the recorder was told that it did not get."
        if lost
        else "Nothing was lost that the recorder was told of.",
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


def _over_time(rows: Sequence[Row], period: int) -> list[str]:
    rows = [row for row in rows if row.start is not None]
    if not rows:
        return []
    step = timedelta(seconds=period)
    hubs = list(dict.fromkeys(row.hub for row in rows))
    first, last = min(row.start for row in rows), max(row.start for row in rows)
    starts = [first + n * step for n in range(int((last - first) / step) + 1)]
    if len(starts) == 1:  # of which no line can be drawn
        starts.append(first + step)
    with plot(2.8, columns=2) as (axes, picture):
        for at, hub in enumerate(hubs[: len(COLOURS) - 1]):
            colour = COLOURS[at if at < 4 else at + 1]
            found = {row.start: row for row in rows if row.hub == hub}
            for axis, name, scale in ((axes[0], "messages", 1), (axes[1], "bytes", 1_024)):
                rates = [getattr(found[start], name) / period / scale if start in found else 0.0 for start in starts]
                axis.fill_between(starts, rates, step="post", color=colour, alpha=0.12, linewidth=0)
                axis.step(starts, rates, where="post", color=colour, linewidth=1.3, label=text_of(hub))
        lost: dict[datetime, int] = {}
        for row in rows:
            if row.lost:
                lost[row.start] = lost.get(row.start, 0) + row.lost
        if lost:
            axes[0].plot(list(lost), [count / period for count in lost.values()], "v", color=COLOURS[4], label="lost")
        axes[0].set_title("messages a second")
        axes[1].set_title("KiB of payloads a second")
        for axis in axes:
            axis.set_ylim(bottom=0)
            axis.margins(x=0)
        if len(hubs) > 1 or lost:
            axes[0].legend(fontsize=8, loc="best")
    return picture


def _volumes(rows: Sequence[Row]) -> list[str]:
    rows = rows[:_BARS]
    with plot(0.7 + 0.24 * len(rows), columns=2) as (axes, picture):
        bars(axes[0], [row.prefix for row in rows], [row.messages for row in rows])
        axes[0].set_title("messages")
        by_bytes = sorted(rows, key=lambda row: -row.bytes)
        bars(axes[1], [row.prefix for row in by_bytes], [row.bytes / 1_024 for row in by_bytes], COLOURS[1])
        axes[1].set_title("KiB of payloads")
    return picture


def _sizes(rows: Sequence[Row]) -> list[str]:
    with plot(2.4, columns=2) as (axes, picture):
        names = [human(row.size_to, "B") for row in rows]
        for axis, values, colour, title in (
            (axes[0], [row.messages for row in rows], COLOURS[0], "messages"),
            (axes[1], [row.bytes / 1_024 for row in rows], COLOURS[1], "KiB"),
        ):
            axis.bar(range(len(rows)), values, color=colour, width=0.75)
            axis.set_xticks(range(len(rows)), names, rotation=45, ha="right")
            axis.grid(axis="x", visible=False)
            axis.set_title(title)
    return picture


# -- subscriptions ----------------------------------------------------------------------------------


def subscriptions(rows: DataFrame, patterns: Sequence[bytes], separator: bytes = SEPARATOR) -> Report:
    """What each pattern would have received: see :mod:`sbuslib.spark.subscriptions`.

    The one table, ``patterns``, has ``pattern``, ``messages``, ``bytes``, ``keys`` and ``covered_by``.
    """
    counted = held.received(by_key(rows), patterns, separator)
    covered = held.coverage(rows.sparkSession, patterns, separator)
    joined = (
        counted.join(covered, "pattern").orderBy(counted.messages.desc(), counted.bytes.desc(), "pattern").persist()
    )
    return Report({"patterns": joined}, lambda: _subscriptions_page(joined, len(patterns)))


def _subscriptions_page(patterns: DataFrame, count: int) -> str:
    from pyspark.sql import functions as f

    idle = patterns.where("messages = 0")
    covered = patterns.where(f.size("covered_by") > 0)
    idle_count, covered_count = idle.count(), covered.count()
    page = Page("Subscriptions", "What each pattern would have brought its holder, of all that was recorded.")
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
    drawn = []
    if busiest:
        rows = busiest[:_BARS]
        with plot(0.7 + 0.24 * len(rows), columns=2) as (axes, picture):
            bars(axes[0], [row.pattern for row in rows], [row.messages for row in rows])
            axes[0].set_title("messages")
            bars(axes[1], [row.pattern for row in rows], [row.bytes / 1_024 for row in rows], COLOURS[1])
            axes[1].set_title("KiB of payloads")
        drawn.append(figure(picture))
    page.section("The busiest", "Patterns that bring most.", *drawn, table(busiest, *columns, more=more, barred=1))
    page.section(
        "Nothing",
        "Patterns that matched no message: typing errors, things of the past, or rare events.",
        _show(idle.select("pattern").orderBy("pattern"), ("pattern", "text")),
    )
    page.section(
        "Covered",
        "Whatever these match, another one matches too: a client that holds both needs only the other.",
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
    """From request to reply: see :mod:`sbuslib.spark.latency`."""
    found = latencies.exchanges(rows, requests, replies, correlation, separator).persist()
    tables = {"by_request": latencies.by_request(found), "histogram": latencies.histogram(found)}
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
    page = Page("Latency", "The time from a request to the first reply with its id, as the recording hub saw both.")
    page.tile(human(asked), "requests")
    page.tile(f"{100 * answered / asked:.2f} %" if asked else text_of(None), "of them answered", bad=answered < asked)
    page.tile(duration(p50) if p50 is not None else text_of(None), "half of the replies took no longer")
    page.tile(duration(p99) if p99 is not None else text_of(None), "99 of 100 took no longer")
    page.tile(human(strays), "replies to nothing that was recorded")
    found = {row.microseconds_to: row.replies for row in tables["histogram"].collect()}
    if found:
        limits = [1 << power for power in range(min(found).bit_length() - 1, max(found).bit_length())]
        with plot(2.6) as (axes, picture):
            axes.bar(range(len(limits)), [found.get(limit, 0) for limit in limits], color=COLOURS[0], width=0.8)
            axes.set_xticks(range(len(limits)), [duration(limit * 1e3) for limit in limits])
            axes.grid(axis="x", visible=False)
            axes.set_title("replies that took up to so long, and more than half of it")
        page.section("How long", "All requests together.", figure(picture))
    page.section(
        "By request",
        "Where an id stands in the key, there is a * for it.",
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


def plan(routed: plans.Routed, hubs: DataFrame, *, place: bool = True) -> Report:
    """Every link of a tree: see :mod:`sbuslib.spark.plan`.

    :param place: also try every client at every hub.
    """
    tables = {"links": plans.links(routed, hubs).persist()}
    if place:
        tables["placements"] = plans.placements(routed, hubs).persist()
    return Report(tables, lambda: _plan_page(tables, hubs))


def _plan_page(tables: dict[str, DataFrame], hubs: DataFrame) -> str:
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
        "What every link of the tree would carry: flooded, as hubs do that pass everything on, and by interest, "
        "as relays do.",
    )
    page.tile(human(count + 1), "hubs")
    page.tile(human(flooded), f"messages over links, flooded ({human(flooded_bytes, 'B')})")
    page.tile(human(wanted), f"by interest ({human(wanted_bytes, 'B')})")
    page.tile(f"{100 * (1 - wanted / flooded):.1f} %" if flooded else text_of(None), "of the messages spared")
    rows, more = _top(links)
    drawn = []
    if rows:
        drawn.append(figure(_busy_links(rows[:_BARS])))
    if count > _BARS:
        drawn.append(figure(_all_links(links, count)))
    page.section(
        "Links",
        "A link is called by the hub below it.",
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
        "Where a client would better sit, all others staying, and how many messages over links that would spare.",
        _show(
            placements.where("saved > 0"),
            ("client", "text"),
            ("now at", "text"),
            ("better at", "text"),
            ("messages spared", "count"),
            ("bytes spared", "bytes"),
        ),
    )


def _busy_links(rows: Sequence[Row]) -> list[str]:
    with plot(0.9 + 0.34 * len(rows)) as (axes, picture):
        places: list[Any] = list(range(len(rows)))
        flooded = [row.flooded_up + row.flooded_down for row in rows]
        axes.barh([at - 0.2 for at in places], flooded, height=0.36, color="#c9d3dd", label="flooded")
        axes.barh([at + 0.2 for at in places], [row.up for row in rows], height=0.36, color=COLOURS[0], label="up")
        axes.barh(
            [at + 0.2 for at in places],
            [row.down for row in rows],
            left=[row.up for row in rows],
            height=0.36,
            color=COLOURS[1],
            label="down",
        )
        axes.set_yticks(places, [f"{text_of(row.hub)[:24]} \N{EN DASH} {text_of(row.above)[:24]}" for row in rows])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_title("messages over the busiest links, by interest, beside flooding")
        axes.legend(fontsize=8, ncols=3, loc="lower right")
    return picture


def _all_links(links: DataFrame, count: int) -> list[str]:
    """How load is spread over all links, as percentiles: few numbers, however many links."""
    from pyspark.sql import functions as f

    shares = [n / 100 for n in range(101)]
    flooded, wanted = links.agg(
        f.percentile_approx(f.col("flooded_up") + f.col("flooded_down"), shares, 10_000),
        f.percentile_approx(f.col("up") + f.col("down"), shares, 10_000),
    ).collect()[0]
    with plot(2.4) as (axes, picture):
        percent = list(range(101))
        axes.plot(percent, flooded, color="#8b98a6", linewidth=1.4, label="flooded")
        axes.plot(percent, wanted, color=COLOURS[0], linewidth=1.8, label="by interest")
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
        axes.set_xlabel("% of the links carry no more than")
        axes.set_title(f"messages over each of {human(count)} links")
        axes.legend(fontsize=8)
    return picture
