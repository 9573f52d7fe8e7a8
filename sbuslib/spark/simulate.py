"""A synthetic tree of hubs of any size with traffic and interest, for :mod:`sbuslib.spark.plan`.

Hub 0 is the root, and hub *i* is below hub *(i - 1) // fan_out*. So everything about a hub follows from its number, and
no task needs data of another. A *site* is a hub of the second level with all hubs below it. Each hub has one client,
which

* publishes its figures under ``site/<site>/<hub>/state``;
* receives orders under ``hub/<hub>/set/power``: from the hub of its site, but one client in ten from a distant hub;
* receives ``news/``, which the root publishes.

One hub in :data:`WATCHERS` receives all figures of its site.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["FAN_OUT", "WATCHERS", "interests", "traffic", "tree"]

FAN_OUT = 8
"""How many hubs are directly below a hub."""

WATCHERS = 100
"""One hub in so many receives all figures of its site."""

_FIGURES, _ORDERS, _NEWS = 60, 3, 10
_FIGURE_BYTES, _ORDER_BYTES, _NEWS_BYTES = 220, 90, 500
_SCATTER = 2_654_435_761
"""A prime near the golden section of 2**32, which spreads its multiples evenly (Knuth's multiplicative hash)."""


def check_tree(hubs: int, fan_out: int) -> None:
    """Raise :exc:`~sbuslib.errors.UsageError` unless there is such a tree."""
    if hubs < 1 or fan_out < 2:
        raise UsageError(f"a tree has one hub or more and a fan-out of two or more, not {hubs} and {fan_out}")


def tree(spark: SparkSession, hubs: int, fan_out: int = FAN_OUT) -> DataFrame:
    """``hub``, ``above`` (null at the root) and ``path`` (the links up to the root, the hub's own first).

    Hubs and links are ``bigint``. Raises :exc:`~sbuslib.errors.UsageError`.
    """
    from pyspark.sql import functions as f

    check_tree(hubs, fan_out)
    # The hub j levels above i is (i - (F**j - 1) / (F - 1)) / F**j, rounded down.
    ups: list[Column] = []
    power, passed = 1, 0
    while passed < hubs:
        ups.append(f.expr(f"(hub - {passed}) div {power}"))
        passed += power
        power *= fan_out
    return (
        spark.range(hubs)
        .select(f.col("id").alias("hub"))
        .select(
            "hub",
            f.when(f.col("hub") > 0, f.expr(f"(hub - 1) div {fan_out}")).alias("above"),
            f.filter(f.array(*ups), lambda link: link > 0).alias("path"),
        )
    )


def _site() -> Column:
    from pyspark.sql import functions as f

    return f.when(f.size("path") >= 2, f.element_at("path", -2)).otherwise(f.col("hub"))


def _key(*parts: str | Column) -> Column:
    from pyspark.sql import functions as f

    return f.concat(*(f.lit(part) if isinstance(part, str) else part.cast("string") for part in parts)).cast("binary")


def interests(tree: DataFrame) -> DataFrame:
    """``hub``, ``client`` and ``pattern`` (binary). A client has the number of its hub."""
    from pyspark.sql import functions as f

    hub = f.col("hub")
    patterns = f.array(
        _key("news/"),
        _key("hub/", hub, "/set/"),
        f.when(hub % WATCHERS == WATCHERS - 1, _key("site/", _site(), "/")),
    )
    return tree.select("hub", hub.alias("client"), f.explode(f.array_compact(patterns)).alias("pattern"))


def traffic(tree: DataFrame) -> DataFrame:
    """What the clients of the tree publish: ``hub``, ``client``, ``key``, ``messages`` and ``bytes`` (of packets)."""
    from pyspark.sql import functions as f

    hub = f.col("hub")
    hubs = tree.agg(f.count(f.lit(1)).alias("hubs"))
    far = f.pmod(hub * _SCATTER, f.col("hubs"))
    kinds = f.array(
        _flow(hub, _key("site/", _site(), "/", hub, "/state"), _FIGURES, _FIGURE_BYTES),
        _flow(f.when(hub % 10 == 0, far).otherwise(_site()), _key("hub/", hub, "/set/power"), _ORDERS, _ORDER_BYTES),
        f.when(hub == 0, _flow(hub, _key("news/today"), _NEWS, _NEWS_BYTES)),
    )
    return (
        tree.crossJoin(f.broadcast(hubs))
        .select(f.explode(f.array_compact(kinds)).alias("flow"))
        .select("flow.*")
        .select(
            "hub",
            f.col("hub").alias("client"),
            "key",
            "messages",
            (f.col("messages") * (f.length("key") + 5 + f.col("size"))).alias("bytes"),
        )
    )


def _flow(hub: Column, key: Column, messages: int, size: int) -> Column:
    from pyspark.sql import functions as f

    return f.struct(
        hub.alias("hub"),
        key.alias("key"),
        f.lit(messages).cast("bigint").alias("messages"),
        f.lit(size).cast("bigint").alias("size"),
    )
