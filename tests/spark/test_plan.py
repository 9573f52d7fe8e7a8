"""The load of the links in a tree, who published it, and the best hub for each client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from spark.frames import gap, message, recording, rows_of
from support import PATIENCE, ROOT

from sbuslib import matches
from sbuslib.spark import plan
from sbuslib.spark.topology import Client, Hub, Topology, hubs_frame, interests_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TREE = Topology(
    {"root": Hub(), "left": Hub("root"), "right": Hub("root"), "deep": Hub("left"), "far": Hub("deep")},
    {
        "lamp": Client("far", ("lamp/*/set", "all")),
        "switch": Client("far", ("lamp/*/state", "all")),
        "panel": Client("root", ("lamp/", "room/*/temp")),
        "meter": Client("right", ("*/1/state",)),
        "heating": Client("deep", ("room/*/temp",)),
        "mute": Client("right"),
    },
)

TRAFFIC = [
    ("far", "switch", b"lamp/1/set", 5, 50),
    ("far", "lamp", b"lamp/1/state", 5, 500),
    ("far", "lamp", b"lamp/2/state", 3, 30),
    ("right", "mute", b"room/7/temp", 100, 1_000),
    ("root", "panel", b"lamp/2/set", 2, 20),
    ("left", None, b"all", 1, 7),
    ("left", None, b"nobody/wants/it", 1_000, 10_000),
    ("deep", "heating", b"room/7/temp", 40, 400),
]
COLUMNS = "hub string, client string, key binary, messages bigint, bytes bigint"


class Load(NamedTuple):
    """The load of one link, counted message by message as the definition says."""

    flooded_up: int
    flooded_down: int
    up: int
    down: int


def loads(
    topology: Topology, traffic: list[tuple[str, str | None, bytes, int, int]], by_bytes: bool
) -> dict[str, Load]:
    found = {}
    for link in topology.hubs:
        if link == topology.root:
            continue
        counts = [0, 0, 0, 0]
        for hub, _, key, messages, size in traffic:
            weight = size if by_bytes else messages
            from_below = link in topology.path(hub)
            wanting = {
                client.hub
                for client in topology.clients.values()
                if any(matches(pattern.encode(), key) for pattern in client.subscribes)
            }
            counts[0 if from_below else 1] += weight
            if any((link in topology.path(at)) is not from_below for at in wanting):
                counts[2 if from_below else 3] += weight
        found[link] = Load(*counts)
    return found


def frames(spark: SparkSession, topology: Topology) -> tuple[DataFrame, plan.Routed]:
    traffic = spark.createDataFrame(TRAFFIC, COLUMNS)
    return hubs_frame(spark, topology), plan.route(traffic, interests_frame(spark, topology))


def test_the_load_of_links_equals_the_definition(spark: SparkSession) -> None:
    hubs, routed = frames(spark, TREE)
    found = {row.hub: row for row in plan.links(routed, hubs).collect()}
    assert set(found) == {"left", "right", "deep", "far"}
    for suffix, by_bytes in (("", False), ("_bytes", True)):
        expected = loads(TREE, TRAFFIC, by_bytes)
        got = {link: Load(*(row[name + suffix] for name in Load._fields)) for link, row in found.items()}
        assert got == expected
    assert found["far"].above == "deep"
    assert any(load.up for load in loads(TREE, TRAFFIC, False).values())


def test_all_links_are_listed_with_the_busiest_first(spark: SparkSession) -> None:
    hubs = hubs_frame(spark, TREE)
    traffic = spark.createDataFrame([("right", None, b"room/1/temp", 3, 3)], COLUMNS)
    found = rows_of(plan.links(plan.route(traffic, interests_frame(spark, TREE)), hubs), "hub", "up", "down")
    assert found == [("deep", 0, 3), ("left", 0, 3), ("right", 3, 0), ("far", 0, 0)]


def test_links_carry_nothing_by_interest_without_traffic_or_clients(spark: SparkSession) -> None:
    hubs = hubs_frame(spark, TREE)
    nothing = plan.route(spark.createDataFrame([], COLUMNS), interests_frame(spark, TREE))
    assert {row[2:] for row in rows_of(plan.links(nothing, hubs))} == {(0,) * 8}
    nobody = plan.route(
        spark.createDataFrame(TRAFFIC, COLUMNS),
        spark.createDataFrame([], "hub string, client string, pattern binary"),
    )
    assert {row.up + row.down for row in plan.links(nobody, hubs).collect()} == {0}


def moved(client: str, hub: str) -> tuple[Topology, list[tuple[str, str | None, bytes, int, int]]]:
    clients = TREE.clients | {client: msgspec.structs.replace(TREE.clients[client], hub=hub)}
    traffic = [(hub if who == client else at, who, *rest) for at, who, *rest in TRAFFIC]
    return Topology(TREE.hubs, clients), traffic  # type: ignore[return-value]


def total(topology: Topology, traffic: list[tuple[str, str | None, bytes, int, int]], by_bytes: bool = False) -> int:
    return sum(load.up + load.down for load in loads(topology, traffic, by_bytes).values())


def test_the_best_hub_for_a_client_has_the_least_load_of_all(spark: SparkSession) -> None:
    """The saving is the load by the definition before the move, less the load after it."""
    hubs, routed = frames(spark, TREE)
    found = {row.client: row for row in plan.placements(routed, hubs).collect()}
    assert set(found) == set(TREE.clients)
    for client, at in TREE.clients.items():
        costs = {hub: total(*moved(client, hub)) for hub in TREE.hubs}
        row = found[client]
        assert row.hub == at.hub
        assert row.saved == costs[at.hub] - min(costs.values()), client
        assert costs[row.better] == min(costs.values()), client
        assert row.saved_bytes == total(TREE, TRAFFIC, True) - total(*moved(client, row.better), True), client
        if not row.saved:
            assert row.better == at.hub
    assert found["mute"].saved > 0


def test_real_relays_forward_what_the_plan_says(spark: SparkSession, folder: str) -> None:
    """Each message has another power of two as its size, so the bytes over a link tell which messages crossed it.

    A client at every hub receives the marks, so real relays pass them on as hubs would that flood.
    """
    messages = [(client or hub, hub, key) for hub, client, key, _, _ in TRAFFIC]
    messages += [("meter", "right", b"x/1/state"), ("right", "right", b"lamp/9/set"), ("deep", "deep", b"all")]
    told = {
        "hubs": {name: hub.above for name, hub in TREE.hubs.items()},
        "clients": {name: (client.hub, client.subscribes) for name, client in TREE.clients.items()},
        "messages": [(who, key.decode()) for who, _, key in messages],
    }
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "spark" / "real_tree.py", folder],
        input=json.dumps(told),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    carried = json.loads(done.stdout)

    traffic = spark.createDataFrame(
        [(hub, None, key, 1, 1 << number) for number, (_, hub, key) in enumerate(messages)], COLUMNS
    )
    routed = plan.route(traffic, interests_frame(spark, TREE))
    planned = {row.hub: row for row in plan.links(routed, hubs_frame(spark, TREE)).collect()}

    crossed = 0
    for link, row in planned.items():
        for way, (wanted, flooded) in enumerate((("up", "flooded_up"), ("down", "flooded_down"))):
            real = [one["message"][link][way] for one in carried]
            assert [row[f"{wanted}_bytes"] >> number & 1 for number in range(len(messages))] == real, (link, wanted)
            assert row[wanted] == sum(real)
            marks = [one["mark"][link][way] for one in carried]
            assert [row[f"{flooded}_bytes"] >> number & 1 for number in range(len(messages))] == marks, (link, flooded)
            crossed += sum(real)
    assert 0 < crossed < sum(sum(sum(way) for way in one["mark"].values()) for one in carried)


def test_recorded_messages_are_attributed_to_clients_and_hubs(spark: SparkSession) -> None:
    """A message is the first fitting client's, or else it is from the hub that recorded it, or from the root."""
    topology = Topology(
        {"root": Hub(), "below": Hub("root", recorded="hub-2")},
        {
            "by key": Client("below", publishes=("room/*/temp", "room/1/")),
            "by user": Client("root", uid=1001),
            "by both": Client("below", publishes=("log/",), uid=1000, sender="!/cred/100/1000/1"),
            "silent": Client("below", ("",)),
        },
    )
    stranger = b"!/cred/100/1000/2"
    rows = [
        message(b"room/1/temp", b"12345", uid=1001),
        message(b"room/1/temp", b"", uid=None, sender=None),
        message(b"other", b"", uid=1001),
        message(b"log/x", b"", sender=b"!/cred/100/1000/1"),
        message(b"log/x", b"", sender=stranger),
        message(b"log/x", b"", sender=stranger, hub="hub-2"),
        message(b"elsewhere", b"", sender=None, uid=None, hub="hub-2"),
        gap(5, "overflow"),
    ]
    found = sorted(rows_of(plan.published(recording(spark, rows), topology)), key=str)
    header = len(b"MSG ") + 1
    assert found == sorted(
        [
            ("below", "by key", b"room/1/temp", 2, 2 * (header + 11) + 5),
            ("root", "by user", b"other", 1, header + 5),
            ("below", "by both", b"log/x", 1, header + 5),
            ("root", None, b"log/x", 1, header + 5),
            ("below", None, b"log/x", 1, header + 5),
            ("below", None, b"elsewhere", 1, header + 9),
        ],
        key=str,
    )


def test_a_tree_without_clients(spark: SparkSession) -> None:
    topology = Topology({"root": Hub()})
    frame = plan.published(recording(spark, [message(b"a", b"1")]), topology)
    assert rows_of(frame) == [("root", None, b"a", 1, 7)]
    routed = plan.route(frame, interests_frame(spark, topology))
    hubs = hubs_frame(spark, topology)
    assert rows_of(plan.links(routed, hubs)) == []
    assert rows_of(plan.placements(routed, hubs)) == []


def test_a_plan_uses_the_given_separator(spark: SparkSession) -> None:
    topology = Topology({"root": Hub(), "a": Hub("root")}, {"x": Client("a", ("b.",))}, ".")
    traffic = spark.createDataFrame([("root", None, b"b.c", 1, 1)], COLUMNS)
    routed = plan.route(traffic, interests_frame(spark, topology), b".")
    assert rows_of(plan.links(routed, hubs_frame(spark, topology)), "down") == [(1,)]
