"""How long replies took: joins requests and replies by their correlation id, and gives percentiles for each key.

The programs that talk to each other choose where the id stands: in a segment of the key, in a member of a JSON payload,
or in the first bytes of the payload. :class:`CorrelationId` names that place. Some patterns match requests, others
replies.

A request is answered by the first reply with its id that the same hub recorded after it, and before the next request
with that id. Both times come from the clock of that hub.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..errors import UsageError
from ..matcher import SEPARATOR, check_separator
from .matching import is_message, with_matches

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["CorrelationId", "Totals", "by_request", "exchanges", "histogram", "totals"]

_ACCURACY = 10_000
"""The accuracy of percentiles: the rank of the value that is found is wrong by at most one part in so many."""


class CorrelationId(NamedTuple):
    """The place of the id in a request and in its reply.

    ``("segment", "2")`` is the second segment of the key, and ``"-1"`` the last. ``("json", "id")`` is the member
    ``id`` of the payload, a JSON object, and ``"head.id"`` a member of a member. ``("prefix", "16")`` is the first 16
    bytes of the payload. A message without an id, or with an empty one, is ignored.
    """

    where: Literal["segment", "json", "prefix"]
    what: str

    @classmethod
    def parse(cls, text: str) -> CorrelationId:
        """From ``segment:N``, ``json:NAME`` or ``prefix:N``. Raises :exc:`~sbuslib.errors.UsageError`."""
        where, _, what = text.partition(":")
        digits = what.removeprefix("-")
        number = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 5 else 0
        if where == "json" and all(part.isidentifier() for part in what.split(".")):
            return cls("json", what)
        if where == "prefix" and number and what == digits:
            return cls("prefix", what)
        if where == "segment" and number:
            return cls("segment", what)
        raise UsageError(f"the place of an id is segment:N, json:NAME or prefix:N, not {text!r}")

    def columns(self, separator: bytes = SEPARATOR) -> tuple[Column, Column]:
        """Two columns: the id of a row (binary, null if it has none), and its key with ``*`` in place of the id."""
        from pyspark.sql import functions as f

        if self.where == "json":
            return f.get_json_object(f.col("payload").cast("string"), f"$.{self.what}").cast("binary"), f.col("key")
        if self.where == "prefix":
            size = int(self.what)
            return f.when(f.length("payload") >= size, f.substring("payload", 1, size)), f.col("key")
        # A binary taken for a text keeps its bytes in substring_index; to split it would decode them.
        number, text, key = int(self.what), check_separator(separator).decode(), f.col("key").cast("string")
        part = f.substring_index(key, text, number)
        one = f.substring_index(part, text, -1 if number > 0 else 1).cast("binary")
        part = part.cast("binary")
        start = f.length(part) - f.length(one) if number > 0 else f.length("key") - f.length(part)
        name = f.concat(
            f.substring(f.col("key"), f.lit(1), start),
            f.lit(b"*"),
            f.substring(f.col("key"), start + f.length(one) + 1, f.length("key")),
        )
        segments = f.length("key") - f.length(f.replace(key, f.lit(text), f.lit("")).cast("binary")) + 1
        return f.when(segments >= abs(number), one), name


def exchanges(
    rows: DataFrame,
    requests: Sequence[bytes],
    replies: Sequence[bytes],
    correlation: CorrelationId,
    separator: bytes = SEPARATOR,
) -> DataFrame:
    """Each request with its reply: ``hub``, ``id``, ``request``, ``time_ns``, ``latency_ns``, ``replies``.

    ``request`` is its key, with ``*`` in place of an id in it, and ``time_ns`` when it was recorded. ``latency_ns`` is
    null for a request without reply, and ``replies`` counts all that came. Replies to no request that was recorded are
    counted, by id, in rows whose ``request`` is null.

    :param rows: of these, ``kind``, ``hub``, ``time_ns``, ``sequence``, ``key`` and, where the id stands in it,
        ``payload`` are used.
    :param requests: patterns of requests. What matches these and ``replies`` is a request.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if not requests or not replies:
        raise UsageError("patterns of requests and of replies are needed")
    patterns = [*requests, *replies]
    messages = rows.where(is_message())
    keys = (
        with_matches(messages.select("key").distinct(), patterns, separator)
        .where(f.size("matched") > 0)
        .select("key", (f.array_min("matched") < len(requests)).alias("asks"))
    )
    number, name = correlation.columns(separator)
    found = (
        messages.join(keys, "key")
        .select("hub", "time_ns", "sequence", "asks", number.alias("id"), f.when(f.col("asks"), name).alias("name"))
        .where(f.length("id") > 0)
    )
    in_order = Window.partitionBy("hub", "id").orderBy("time_ns", "sequence")
    replied = f.min(f.when(~f.col("asks"), f.col("time_ns")))
    asked = f.min(f.when(f.col("asks"), f.col("time_ns")))
    return (
        found.withColumn("round", f.sum(f.col("asks").cast("int")).over(in_order))
        .groupBy("hub", "id", "round")
        .agg(
            f.min("name").alias("request"),
            asked.alias("time_ns"),
            (replied - asked).alias("latency_ns"),
            f.count(f.when(~f.col("asks"), 1)).alias("replies"),
        )
        .drop("round")
    )


def by_request(exchanges: DataFrame) -> DataFrame:
    """Percentiles for each request's key, those asked most first: ``request``, ``requests``, ``answered``, and times.

    Times are in nanoseconds: ``p50``, ``p90``, ``p99`` and ``longest``; null where nothing was answered.

    :param exchanges: what :func:`exchanges` gives.
    """
    from pyspark.sql import functions as f

    percentiles = f.percentile_approx("latency_ns", [0.5, 0.9, 0.99], _ACCURACY)
    return (
        exchanges.where("request is not null")
        .groupBy("request")
        .agg(
            f.count(f.lit(1)).alias("requests"),
            f.count("latency_ns").alias("answered"),
            percentiles.alias("percentiles"),
            f.max("latency_ns").alias("longest"),
        )
        .select(
            "request",
            "requests",
            "answered",
            *(f.col("percentiles")[at].alias(name) for at, name in enumerate(("p50", "p90", "p99"))),
            "longest",
        )
        .orderBy(f.desc("requests"), "request")
    )


def histogram(exchanges: DataFrame) -> DataFrame:
    """How many replies took how long: ``microseconds_to``, a power of two, and ``replies`` up to it and above half."""
    from pyspark.sql import functions as f

    power = f.expr("case when us <= 1 then 1L else shiftleft(1L, length(bin(us - 1))) end")
    return (
        exchanges.where("latency_ns is not null")
        .select(f.ceil(f.col("latency_ns") / 1_000).alias("us"))
        .groupBy(power.alias("microseconds_to"))
        .agg(f.count(f.lit(1)).alias("replies"))
        .orderBy("microseconds_to")
    )


class Totals(NamedTuple):
    """All exchanges together; ``strays`` are replies without a recorded request. Times are in nanoseconds."""

    requests: int
    answered: int
    strays: int
    p50: int | None
    p99: int | None


def totals(exchanges: DataFrame) -> Totals:
    """What all exchanges come to. It runs a job of Spark at once."""
    from pyspark.sql import functions as f

    *counts, percentiles = exchanges.agg(
        f.count("request"),
        f.count("latency_ns"),
        f.coalesce(f.sum(f.when(f.col("request").isNull(), f.col("replies"))), f.lit(0)),
        f.percentile_approx("latency_ns", [0.5, 0.99], _ACCURACY),
    ).collect()[0]
    return Totals(*counts, *(percentiles or (None, None)))
