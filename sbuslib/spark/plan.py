"""The load of every link in a tree of hubs, and the best hub for each client.

A *link* has the name of the hub below it. A message goes **up** a link if it was published below the link, and else
**down**. If hubs *flood*, every message crosses every link once. *By interest*, a message goes up if a client that is
not below the link wants it, and down if a client below the link wants it. Relays do the latter once their hubs have
announced what they want (:mod:`sbuslib.relay`), as long as no link holds more patterns than ``Limits.link_patterns``,
and without ``export=`` and ``import_=``.

**The load of links.** Messages whose keys match the same patterns take the same links, so keys are grouped by the set
of patterns that match them, their *class*. For each class *g* and each link *x*, ``T(g, x)`` is the number of messages
published below the link, and ``n(g, x)`` the number of clients below the link that want them. ``T(g)`` and ``n(g)`` are
the totals of the tree. ``T(g, x)`` messages go up if ``n(g) > n(g, x)``, and ``T(g) - T(g, x)`` go down if
``n(g, x) > 0``. So the work grows with the rows times the depth of the tree, and not with the rows times the hubs.

**The best hub for a client.** The *weight* of link *x* for client *c* is what the link carries because of *c* if *c* is
below it, less what it carries because of *c* if *c* is above it. For messages of others that *c* wants, these are the
messages from above that no other client below wants, less the messages from below that no other client above wants. For
messages that *c* publishes, these are the messages that a client above wants, less those that a client below wants.
The sum of the weights on the way from a hub to the root compares that hub with the root, and so all hubs with each
other.
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
    """A recording as traffic in a tree: ``hub``, ``client``, ``key``, ``messages`` and ``bytes``.

    ``client`` is null for messages of none of the topology's clients. ``bytes`` are those of packets on a link.

    :param rows: rows with ``kind``, ``hub``, ``key``, ``size``, ``sender`` and ``uid``. A message that several hubs
        recorded counts several times.
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
    """Traffic and interest by class. Spark keeps the traffic in memory, as it is used several times."""

    def __init__(self, flows: DataFrame, wants: DataFrame) -> None:
        self.flows = flows
        """``class`` (numbers of the patterns), ``hub``, ``client``, ``messages`` and ``bytes``."""
        self.wants = wants
        """``class``, ``hub`` and ``client``: the clients that want a class, once for each pattern that matches."""


def route(traffic: DataFrame, interests: DataFrame, separator: bytes = SEPARATOR) -> Routed:
    """Match traffic (``hub``, ``client``, ``key``, ``messages``, ``bytes``) with interests (``hub``, ``client``,
    ``pattern``). The distinct patterns must fit into the memory of this process and of every worker."""
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

    The columns are ``class``, ``link``, ``messages``, ``bytes`` and ``wanting``, and the last three again as ``all_``
    for the whole class. Links with nothing of a class below them have no row. Each class also has a row with a null
    link, which stands for the whole tree.
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
    """The load of every link, the busiest first: ``hub`` (below the link), ``above``, and messages and bytes.

    The messages are ``flooded_up``, ``flooded_down``, and by interest ``up`` and ``down``. The bytes have the same
    names with ``_bytes`` at the end.

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
    """The best hub for each client, if all other clients stay where they are.

    The columns are ``client``, its ``hub``, the ``better`` hub, and what moving the client there would save: ``saved``
    messages over links, by interest, and ``saved_bytes``, which is negative if fewer but longer messages would cross
    links. For a client that is at its best hub, ``better`` is that hub, and both are 0. The largest savings come first.
    Every client is tried at every hub, so this is for trees of a few hubs, not for a hundred thousand.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    each = _clients_by_link(routed, hubs)
    weights = each.groupBy("client", "now", "link").agg(*(_weight(name) for name in _COUNTS))
    # The cost of a hub, compared with the root, is the weight of all links above the hub.
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
            # Only fewer messages are worth a move; fewer bytes alone are not.
            f.when(f.col("saved_messages") > 0, f.col("better")).otherwise(f.col("now")).alias("better"),
            f.col("saved_messages").alias("saved"),
            f.when(f.col("saved_messages") > 0, f.col("saved_bytes")).otherwise(f.lit(0)).alias("saved_bytes"),
        )
        .orderBy(f.desc("saved"), "client")
    )


def _clients_by_link(routed: Routed, hubs: DataFrame) -> DataFrame:
    """Every client with every link, and with null for the root, and what it receives and publishes of each class."""
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
    # Every client with every link, also links with nothing of the class below them.
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
    """The weight of a link for a client, in messages or bytes."""
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
