"""What every link of a tree of hubs would carry, and where a client would better sit.

A *link* is called by the hub below it. A message goes **up** it when it was published below the link, **down** it
otherwise. *Flooded*, every message crosses every link once, as with hubs that pass everything on. *By interest*, it
goes up when some client that is not below the link wants it, and down when some client below it does. That is what
relays do whose hubs announce what they want (:mod:`sbuslib.relay`) once they are at rest, as long as no link holds more
patterns than ``Limits.link_patterns``, without ``export=`` and ``import_=``.

**How it is counted.** Messages whose keys match the same patterns go the same ways, so keys are grouped by the set of
patterns that match them, their *class*. For each class *g* and each link *x*, two sums over what is below the link
decide: the messages published there, ``T(g, x)``, and the clients there that want them, ``n(g, x)``. Beside the totals
``T(g)`` and ``n(g)``: up goes ``T(g, x)`` where ``n(g) > n(g, x)``, and down goes ``T(g) - T(g, x)`` where
``n(g, x) > 0``. So the work grows with the rows times the depth of the tree, and never with rows times hubs.

**Moving a client.** With *n'* the counts without client *c*, a message crosses, because of *c* alone, the links
between where *c* sits and the nearest place where the message comes by anyway. Of a link *x* above which *c* would sit
or not, this is the difference: for messages of others that *c* wants, all those published on the other side where
nobody else below the link wants them, less those from below that nobody else above wants; for messages of its own,
those that somebody wants above, less those that somebody wants below. Summed up over the links between a hub and the
root, it compares that hub with the root, and so every hub with every other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..matcher import SEPARATOR
from .matching import is_message, packet_bytes, with_matches
from .topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Routed", "links", "placements", "published", "route"]


def published(rows: DataFrame, topology: Topology) -> DataFrame:
    """A recording as traffic in a tree: ``hub``, ``client`` (null: none of them), ``key``, ``messages``, ``bytes``.

    ``bytes`` are those of the packets on a link.

    :param rows: of these, ``kind``, ``hub``, ``key``, ``size``, ``sender`` and ``uid`` are used. A message that several
        hubs recorded counts as several.
    """
    from pyspark.sql import functions as f

    spark = rows.sparkSession
    packets = (
        rows.where(is_message())
        .withColumn("sender", f.col("sender").cast("string"))
        .groupBy(f.col("hub").alias("recorded"), "key", "sender", "uid")
        .agg(f.count(f.lit(1)).alias("messages"), f.sum(packet_bytes()).alias("bytes"))
    )
    patterns: dict[bytes, int] = {}
    marks: list[tuple[int, str, str, int, int | None, str | None]] = []
    for order, (name, client) in enumerate(topology.clients.items()):
        wanted = client.publishes or (("",) if client.uid is not None or client.sender else ())
        for pattern in wanted:
            number = patterns.setdefault(pattern.encode(), len(patterns))
            marks.append((order, name, client.hub, number, client.uid, client.sender or None))
    marked = spark.createDataFrame(
        marks, "order int, client string, hub string, number int, its_uid bigint, its_sender string"
    )
    groups = ["recorded", "key", "sender", "uid"]
    its = (
        with_matches(packets.select(*groups), list(patterns), topology.separator.encode())
        .select(*groups, f.explode("matched").alias("number"))
        .join(f.broadcast(marked), "number")
        .where("(its_uid is null or its_uid = uid) and (its_sender is null or its_sender = sender)")
        .groupBy(*groups)
        .agg(f.min(f.struct("order", "client", "hub")).alias("its"))
    )
    recorded = spark.createDataFrame(
        [(hub.recorded, name) for name, hub in topology.hubs.items() if hub.recorded], "recorded string, at string"
    )
    same = [packets[name].eqNullSafe(its[name]) for name in groups]
    return (
        packets.join(its, same, "left")
        .select(*(packets[name] for name in groups), "messages", "bytes", "its")
        .join(f.broadcast(recorded), "recorded", "left")
        .groupBy(
            f.coalesce("its.hub", "at", f.lit(topology.root)).alias("hub"), f.col("its.client").alias("client"), "key"
        )
        .agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))
    )


class Routed:
    """Traffic and interest by class, the first of which is kept by Spark, as it is used several times."""

    def __init__(self, flows: DataFrame, wants: DataFrame) -> None:
        self.flows = flows
        """``class`` (numbers of the patterns), ``hub``, ``client``, ``messages`` and ``bytes``."""
        self.wants = wants
        """``class``, ``hub`` and ``client``: who wants its messages; more than once where several patterns match."""

    def unpersist(self) -> None:
        """Keep it no longer."""
        self.flows.unpersist()


def route(traffic: DataFrame, interests: DataFrame, separator: bytes = SEPARATOR) -> Routed:
    """Match traffic (``hub``, ``client``, ``key``, ``messages``, ``bytes``) and interests (``hub``, ``client``,
    ``pattern``). The patterns, each once, must fit into this process and into every worker."""
    from pyspark.sql import functions as f

    table = interests.select("pattern").distinct().toArrow()
    patterns: list[bytes] = sorted(table.column("pattern").to_pylist())
    keys = with_matches(traffic.select("key").distinct(), patterns, separator).withColumnRenamed("matched", "class")
    flows = (
        traffic.join(keys, "key")
        .groupBy("class", "hub", "client")
        .agg(*(f.sum(name).alias(name) for name in _COUNTS))
        .persist()
    )
    wants = (
        flows.select("class")
        .distinct()
        .select("class", f.explode("class").alias("number"))
        .join(_numbered(traffic.sparkSession, patterns), "number")
        .join(interests, "pattern")
        .select("class", "hub", "client")
    )
    return Routed(flows, wants)


def _numbered(spark: SparkSession, patterns: list[bytes]) -> DataFrame:
    import pyarrow as pa

    numbers = pa.array(range(len(patterns)), pa.int32())
    return spark.createDataFrame(pa.table({"number": numbers, "pattern": pa.array(patterns, pa.binary())}))


_COUNTS = ("messages", "bytes")
_WANTING = "wanting"


def _sums(routed: Routed, hubs: DataFrame) -> DataFrame:
    """``T(g, x)`` and ``n(g, x)`` beside ``T(g)`` and ``n(g)``.

    ``class``, ``link``, ``messages``, ``bytes``, ``wanting``, and ``all_`` of each: of the whole class. Links are those
    with anything below them, and null once for each class: above the root, where all is below.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    zero, one = f.lit(0).cast("bigint"), f.lit(1).cast("bigint")
    both = routed.flows.select("class", "hub", *_COUNTS, zero.alias(_WANTING)).unionByName(
        routed.wants.distinct().select("class", "hub", *(zero.alias(name) for name in _COUNTS), one.alias(_WANTING))
    )
    names = (*_COUNTS, _WANTING)
    top = f.array(f.lit(None))
    ways = hubs.select("hub", f.concat("path", top).alias("way"))
    whole = Window.partitionBy("class")
    return (
        both.groupBy("class", "hub")
        .agg(*(f.sum(name).alias(name) for name in names))
        .join(ways, "hub")
        .select("class", f.explode("way").alias("link"), *names)
        .groupBy("class", "link")
        .agg(*(f.sum(name).alias(name) for name in names))
        .select(
            "class",
            "link",
            *names,
            *(f.max(f.when(f.col("link").isNull(), f.col(name))).over(whole).alias(f"all_{name}") for name in names),
        )
    )


def links(routed: Routed, hubs: DataFrame) -> DataFrame:
    """What every link would carry: ``hub`` (below it), ``above``, and messages and bytes up and down.

    ``flooded_up``, ``flooded_down``, ``up``, ``down``, and with ``_bytes`` after each; the last two, by interest. The
    busiest first.

    :param hubs: ``hub``, ``above`` and ``path``, as :func:`~sbuslib.spark.topology.hubs_frame` gives them.
    """
    from pyspark.sql import functions as f

    goes_up = f.col("all_wanting") > f.col(_WANTING)
    goes_down = f.col(_WANTING) > 0

    def where(condition: Column, value: Column) -> Column:
        return f.coalesce(f.sum(f.when(condition, value)), f.lit(0))

    summed = (
        _sums(routed, hubs)
        .where("link is not null")
        .groupBy("link")
        .agg(
            *(where(goes_up, f.col(name)).alias(f"up_{name}") for name in _COUNTS),
            *(where(goes_down, f.col(f"all_{name}") - f.col(name)).alias(f"down_{name}") for name in _COUNTS),
            *(f.sum(name).alias(f"flooded_{name}") for name in _COUNTS),
        )
    )
    everything = routed.flows.agg(*(f.coalesce(f.sum(name), f.lit(0)).alias(f"all_{name}") for name in _COUNTS))
    columns: list[Column] = []
    for name, suffix in (("messages", ""), ("bytes", "_bytes")):
        flooded = f.coalesce(f.col(f"flooded_{name}"), f.lit(0))
        columns += [
            flooded.alias(f"flooded_up{suffix}"),
            (f.col(f"all_{name}") - flooded).alias(f"flooded_down{suffix}"),
            f.coalesce(f.col(f"up_{name}"), f.lit(0)).alias(f"up{suffix}"),
            f.coalesce(f.col(f"down_{name}"), f.lit(0)).alias(f"down{suffix}"),
        ]
    return (
        hubs.where("above is not null")
        .join(summed, f.col("hub") == f.col("link"), "left")
        .crossJoin(f.broadcast(everything))
        .select("hub", "above", *columns)
        .orderBy(f.desc(f.col("up") + f.col("down")), "hub")
    )


def placements(routed: Routed, hubs: DataFrame) -> DataFrame:
    """Where each client would better sit, all others staying.

    ``client``, its ``hub``, the ``better`` one, and what moving it there would spare: ``saved`` messages over links, by
    interest, and ``saved_bytes`` (less than nothing where a few long messages stand against many short ones). A client
    that sits as well as it can has its own hub there, and zeros. Those that save most come first. Every client is
    tried at every hub, so this is for trees of a few hubs, not for a hundred thousand.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    each = _clients_by_link(routed, hubs)
    weights = each.groupBy("client", "now", "link").agg(*(_weight(name) for name in _COUNTS))
    # Compared with the root, each hub costs what the links above it weigh.
    ways = hubs.select("hub", f.explode(f.concat("path", f.array(f.lit(None)))).alias("link"))
    costs = (
        weights.join(f.broadcast(ways), weights.link.eqNullSafe(ways.link))
        .groupBy("client", "now", "hub")
        .agg(*(f.sum(name).alias(name) for name in _COUNTS))
    )
    one = Window.partitionBy("client")
    stays = f.col("hub") == f.col("now")
    return (
        costs.withColumn("place", f.row_number().over(one.orderBy("messages", "bytes", f.desc(stays), "hub")))
        .groupBy("client", "now")
        .agg(
            f.min(f.when(f.col("place") == 1, f.col("hub"))).alias("better"),
            *(
                (f.min(f.when(stays, f.col(name))) - f.min(f.when(f.col("place") == 1, f.col(name)))).alias(
                    f"saved_{name}"
                )
                for name in _COUNTS
            ),
        )
        .select(
            "client",
            f.col("now").alias("hub"),
            # To another hub only for messages: as many of fewer bytes are not worth the trouble.
            f.when(f.col("saved_messages") > 0, f.col("better")).otherwise(f.col("now")).alias("better"),
            f.col("saved_messages").alias("saved"),
            f.when(f.col("saved_messages") > 0, f.col("saved_bytes")).otherwise(f.lit(0)).alias("saved_bytes"),
        )
        .orderBy(f.desc("saved"), "client")
    )


def _clients_by_link(routed: Routed, hubs: DataFrame) -> DataFrame:
    """Every client beside every link, and beside null for the root, with what it takes and publishes of each class."""
    from pyspark.sql import functions as f

    own = (
        routed.flows.where("client is not null")
        .groupBy("class", "hub", "client")
        .agg(*(f.sum(name).alias(f"own_{name}") for name in _COUNTS))
    )
    part = (
        routed.wants.distinct()
        .withColumn("takes", f.lit(1))
        .join(own, ["class", "hub", "client"], "full")
        .na.fill(0, ["takes", *(f"own_{name}" for name in _COUNTS)])
        .withColumnRenamed("hub", "now")
    )
    # Every client against every link, also where nothing of the class is below, and against null for the root.
    names = (*_COUNTS, _WANTING)
    sums = _sums(routed, hubs)
    totals = sums.where("link is null").select("class", *(f.col(f"all_{name}") for name in names))
    below = sums.where("link is not null").select("class", "link", *names)
    places = hubs.select(f.col("hub").alias("now"), f.col("path").alias("its_path"))
    links_ = hubs.select(f.when(f.col("above").isNotNull(), f.col("hub")).alias("link"))
    inside = f.coalesce(f.col("inside").cast("bigint"), f.lit(0))
    return (
        part.join(totals, "class")
        .join(f.broadcast(places), "now")
        .crossJoin(f.broadcast(links_))
        .withColumn("inside", f.array_contains("its_path", f.col("link")))
        .drop("its_path")
        .join(below, ["class", "link"], "left")
        .na.fill(0, [*names])
        .withColumn("others_below", f.col(_WANTING) - f.col("takes") * inside)
        .withColumn("others_above", f.col("all_wanting") - f.col("takes") - f.col("others_below"))
    )


def _weight(name: str) -> Column:
    """What a client costs on a link, in messages or bytes, compared with the client at the root."""
    from pyspark.sql import functions as f

    inside = f.coalesce(f.col("inside").cast("bigint"), f.lit(0))
    below = f.col(name) - f.col(f"own_{name}") * inside
    above = f.col(f"all_{name}") - f.col(f"own_{name}") - below
    own_ = f.col(f"own_{name}")
    zero = f.lit(0)
    comes = f.when(f.col("others_below") == 0, above).otherwise(zero)
    came = f.when(f.col("others_above") == 0, below).otherwise(zero)
    goes = f.when(f.col("others_above") > 0, own_).otherwise(zero)
    went = f.when(f.col("others_below") > 0, own_).otherwise(zero)
    weighs = f.col("takes") * (comes - came) + goes - went
    return f.sum(f.when(f.col("link").isNotNull(), weighs).otherwise(zero)).alias(name)
