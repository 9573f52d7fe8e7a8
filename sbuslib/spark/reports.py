"""The reports: their tables, and the page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..matcher import SEPARATOR
from . import completeness as completeness_job
from . import plots
from . import subscriptions as subscriptions_job
from . import traffic as traffic_job
from .matching import by_key
from .page import Kind, Page, duration, figure, heading, human, table
from .plots import BARS
from .tables import table_of

if TYPE_CHECKING:
    import pyarrow
    from markupsafe import Markup
    from pyspark.sql import DataFrame


__all__ = ["Report", "completeness", "subscriptions", "traffic"]

_ROWS = 500
"""Rows of a table in a page: as many as are worth a search. The page shows the first 25, and the rest when asked."""


_Column: TypeAlias = "tuple[str, str, Kind]"
"""A column in a page: its name in the table, its heading, and how it is shown."""


class Report(NamedTuple):
    """A report: its ``tables`` by name, and ``page``, which makes the HTML."""

    tables: dict[str, pyarrow.Table]
    page: Callable[[], str]


def _show(whole: pyarrow.Table, *columns: _Column, barred: str | None = None) -> Markup:
    """The first rows of a table."""
    names = [name for name, _, _ in columns]
    rows = [*zip(*(whole[name][:_ROWS].to_pylist() for name in names), strict=True)]
    more, bars = whole.num_rows > _ROWS, None if barred is None else names.index(barred)
    return table(rows, *((heading, kind) for _, heading, kind in columns), more=more, barred=bars)


def _sum(whole: pyarrow.Table, name: str) -> int:
    from pyarrow import compute

    return compute.sum(whole[name]).as_py() or 0


def _where(whole: pyarrow.Table, name: str, compare: str, value: int) -> pyarrow.Table:
    """The rows whose column compares so with a value; ``compare`` is the name of a function of Arrow."""
    from pyarrow import compute

    return whole.filter(getattr(compute, compare)(whole[name], value))


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
    tables = traffic_job.summaries(rows, period)
    tables["by_level"] = traffic_job.by_level(by_key(rows), levels, separator).toArrow()
    return Report(tables, lambda: _traffic_page(tables, covered, period, levels))


def _traffic_page(tables: dict[str, pyarrow.Table], covered: traffic_job.Span, period: int, levels: int) -> str:
    times, by_level = tables["over_time"].to_pylist(), tables["by_level"]
    messages, payload, lost = (_sum(tables["over_time"], name) for name in ("messages", "bytes", "lost"))
    busiest = max((row["messages"] for row in times), default=0)
    page = Page(
        "Traffic",
        f"Recorded from {_when(covered.first_ns)} to {_when(covered.last_ns)} UTC, "
        f"{duration(max(1, covered.last_ns - covered.first_ns))} in all.",
    )
    page.tile(human(messages), "messages")
    page.tile(human(payload, "B"), "of payloads")
    page.tile(human(messages / max(covered.seconds, 1e-3)), "messages a second")
    page.tile(human(busiest / period), f"a second in the busiest {_period(period).removeprefix('1 ')}")
    page.tile(human(_sum(_where(by_level, "level", "equal", 1), "keys")), "distinct keys")
    page.tile(human(lost), "lost before they were recorded", bad=lost > 0)
    page.section(
        "Over time",
        f"Each point is {_period(period)}. Losses are those that the recorded hub knew of.",
        figure(plots.rates(times, period)),
    )
    page.section("By key", "A row that ends in the separator counts all keys below it.", *_levels(by_level, levels))
    columns: tuple[_Column, ...] = (("messages", "messages", "count"), ("bytes", "payloads", "bytes"))
    page.section(
        "By sender",
        "Each sender's whole path. The recording hub vouches for the first step after its own prefix.",
        _show(tables["by_sender"], ("sender", "sender", "text"), ("uid", "user", "user"), *columns, barred="messages"),
        heading("By user"),
        _show(tables["by_user"], ("uid", "user", "user"), ("gid", "group", "group"), *columns),
    )
    page.section(
        "Sizes",
        "Each bar counts payloads of at most so many bytes, and more than half of it.",
        figure(plots.sizes(tables["sizes"].to_pylist())),
    )
    if tables["gaps"].num_rows:
        text = (
            "Messages that the recorder knows it did not receive. Where nobody knows how many, the number is missing."
        )
        what: tuple[_Column, ...] = (("hub", "hub", "text"), ("cause", "cause", "text"))
        count: tuple[_Column, ...] = (("gaps", "gaps", "count"), ("lost", "messages", "count"))
        when: tuple[_Column, ...] = (("first", "first", "text"), ("last", "last", "text"))
        page.section("Lost", text, _show(tables["gaps"], *what, *count, *when))
    else:
        page.section("Lost", "The recorder knows of no loss.")
    return page.html()


def _levels(by_level: pyarrow.Table, levels: int) -> list[Markup]:
    """A plot of the first segments of keys, and a table for each number of segments."""
    parts = []
    for level in range(1, levels + 1):
        rows = _where(by_level, "level", "equal", level)
        if not rows.num_rows:
            break
        if level == 1:
            parts.append(figure(plots.volumes(rows[:BARS].to_pylist(), "prefix")))
        parts.append(heading("First segment" if level == 1 else f"First {level} segments"))
        parts.append(
            _show(
                rows,
                ("prefix", "keys below", "text"),
                ("messages", "messages", "count"),
                ("bytes", "payloads", "bytes"),
                ("keys", "keys", "count"),
                ("largest", "longest", "bytes"),
                barred="messages",
            )
        )
    return parts


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
    found = subscriptions_job.received(by_key(rows), patterns, separator).toArrow()
    covered = dict(zip(patterns, subscriptions_job.coverage(patterns, separator), strict=True))
    by = _covered(found["pattern"].to_pylist(), covered)
    tables = {"patterns": found.append_column("covered_by", by)}
    return Report(tables, lambda: _subscriptions_page(tables["patterns"]))


def _covered(patterns: list[bytes], covered: dict[bytes, list[bytes]]) -> pyarrow.Array:
    import pyarrow as pa

    return pa.array([covered[pattern] for pattern in patterns], pa.list_(pa.binary()))


def _subscriptions_page(patterns: pyarrow.Table) -> str:
    from pyarrow import compute

    patterns = patterns.append_column("others", compute.list_value_length(patterns["covered_by"]))
    idle, busy = (_where(patterns, "messages", compare, 0) for compare in ("equal", "greater"))
    covered = _where(patterns, "others", "greater", 0)
    page = Page("Subscriptions", "What a client with each pattern would have received of the recorded messages.")
    page.tile(human(patterns.num_rows), "patterns")
    page.tile(human(idle.num_rows), "match nothing", bad=idle.num_rows > 0)
    page.tile(human(covered.num_rows), "are covered by others")
    columns: tuple[_Column, ...] = (("pattern", "pattern", "text"), ("messages", "messages", "count"))
    page.section(
        "The busiest",
        "Patterns that match most messages.",
        *([figure(plots.volumes(busy[:BARS].to_pylist(), "pattern"))] if busy.num_rows else []),
        _show(busy, *columns, ("bytes", "payloads", "bytes"), ("keys", "keys", "count"), barred="messages"),
    )
    page.section(
        "Nothing",
        "Patterns that match no recorded message: typing errors, old patterns, or rare events.",
        _show(idle.sort_by("pattern"), columns[0]),
    )
    page.section(
        "Covered",
        "Another pattern matches every key that these match. A client that holds both needs only the other. The empty "
        "pattern, which matches everything, does not count here.",
        _show(covered, *columns, ("covered_by", "covered by", "text"), ("others", "others", "count")),
    )
    return page.html()


# -- completeness -----------------------------------------------------------------------------------

_COUNTS = ("published", "routed", "delivered", "queued", "recorded", "lost", "unknown")
_ACCOUNTS = {"kind": "string", "name": "string"} | dict.fromkeys(_COUNTS, "int64")
_LOSSES = {"kind": "string", "name": "string", "cause": "string", "lost": "int64", "unknown": "int64"}


def completeness(ledger: completeness_job.Ledger) -> Report:
    """What journals, hubs and links had and lost: see :mod:`sbuslib.spark.completeness`."""
    tables = {"accounts": table_of(ledger.accounts, _ACCOUNTS), "losses": table_of(ledger.losses, _LOSSES)}
    return Report(tables, lambda: _completeness_page(tables, ledger))


def _completeness_page(tables: dict[str, pyarrow.Table], ledger: completeness_job.Ledger) -> str:
    verdict = ledger.verdict()
    page = Page("Completeness", f"{verdict[0].upper()}{verdict[1:]}.")
    page.tile("yes" if ledger.complete else "no", "every message is accounted for", bad=not ledger.complete)
    for name in ("recorded", "lost"):
        page.tile(
            human(_sum(tables["accounts"], name)), name, bad=name == "lost" and _sum(tables["accounts"], name) > 0
        )
    who: tuple[_Column, ...] = (("kind", "what", "text"), ("name", "name", "text"))
    page.section(
        "Accounts",
        "What each journal, hub and link had. Hubs count from their start on, and links from when they were made. "
        "Unknown: how many times nobody knows how many messages are missing, and how many were on a link that broke.",
        _show(tables["accounts"], *who, *((name, name, "count") for name in _COUNTS)),
    )
    page.section(
        "Lost",
        "By whom, and why.",
        _show(
            tables["losses"],
            *who,
            ("cause", "cause", "text"),
            ("lost", "lost", "count"),
            ("unknown", "unknown", "count"),
        ),
    )
    return page.html()
