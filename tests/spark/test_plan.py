"""The load of the links in a tree, who published it, and the best hub for each client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from spark.frames import gap, message, recording
from support import PATIENCE, ROOT

from sbuslib import matches
from sbuslib.spark import plan
from sbuslib.spark.topology import Client, Hub, Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Traffic: TypeAlias = "list[tuple[str, str | None, bytes, int, int]]"
"""Hub, client, key, messages and bytes."""

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

TRAFFIC: Traffic = [
    ("far", "switch", b"lamp/1/set", 5, 50),
    ("far", "lamp", b"lamp/1/state", 5, 500),
    ("far", "lamp", b"lamp/2/state", 3, 30),
    ("right", "mute", b"room/7/temp", 100, 1_000),
    ("root", "panel", b"lamp/2/set", 2, 20),
    ("left", None, b"all", 1, 7),
    ("left", None, b"nobody/wants/it", 1_000, 10_000),
    ("deep", "heating", b"room/7/temp", 40, 400),
]


class Load(NamedTuple):
    """The load of one link, counted message by message as the definition says."""

    flooded_up: int
    flooded_down: int
    up: int
    down: int


def path(topology: Topology, hub: str) -> list[str]:
    """The links from a hub up to the root."""
    return [hub, *path(topology, topology.hubs[hub].above)] if topology.hubs[hub].above else []


def loads(topology: Topology, traffic: Traffic, by_bytes: bool) -> dict[str, Load]:
    found = {}
    for link in topology.hubs:
        if not topology.hubs[link].above:
            continue
        counts = [0, 0, 0, 0]
        for hub, _, key, messages, size in traffic:
            weight = size if by_bytes else messages
            from_below = link in path(topology, hub)
            wanting = {
                client.hub
                for client in topology.clients.values()
                if any(matches(pattern.encode(), key) for pattern in client.subscribes)
            }
            counts[0 if from_below else 1] += weight
            if any((link in path(topology, at)) is not from_below for at in wanting):
                counts[2 if from_below else 3] += weight
        found[link] = Load(*counts)
    return found


def classes(topology: Topology, traffic: Traffic) -> list[plan.Class]:
    number = topology.tree.number
    flows = [plan.Flow(number[hub], who, key, messages, size) for hub, who, key, messages, size in traffic]
    return plan.classes(flows, plan.interests(topology), topology.separator.encode())


def check_links(topology: Topology, traffic: Traffic) -> dict[str, plan.Link]:
    """Compare the links of a plan with the definition."""
    listed = plan.links(topology.tree, classes(topology, traffic))
    assert listed == sorted(listed, key=lambda link: (-link.up - link.down, link.link))
    found = {link.link: link for link in listed}
    for suffix, by_bytes in (("", False), ("_bytes", True)):
        got = {name: Load(*(getattr(link, kind + suffix) for kind in Load._fields)) for name, link in found.items()}
        assert got == loads(topology, traffic, by_bytes)
    assert all(link.above == topology.hubs[name].above for name, link in found.items())
    return found


def moved(topology: Topology, traffic: Traffic, client: str, hub: str) -> tuple[Topology, Traffic]:
    clients = topology.clients | {client: msgspec.structs.replace(topology.clients[client], hub=hub)}
    elsewhere: Traffic = [(hub if who == client else at, who, *rest) for at, who, *rest in traffic]  # type: ignore[misc]
    return msgspec.structs.replace(topology, clients=clients), elsewhere


def total(topology: Topology, traffic: Traffic, by_bytes: bool = False) -> int:
    return sum(load.up + load.down for load in loads(topology, traffic, by_bytes).values())


def check_placements(topology: Topology, traffic: Traffic) -> dict[str, plan.Placement]:
    """Compare placements with the definition: the load before the move, less the load after it."""
    found = {one.client: one for one in plan.placements(topology.tree, classes(topology, traffic))}
    for client, one in found.items():
        at = topology.clients[client].hub
        costs = {hub: total(*moved(topology, traffic, client, hub)) for hub in topology.hubs}
        assert one.hub == at
        assert one.saved == costs[at] - min(costs.values()), client
        assert costs[one.better] == min(costs.values()), client
        before, after = (
            total(*which, True) for which in ((topology, traffic), moved(topology, traffic, client, one.better))
        )
        assert one.saved_bytes == before - after, client
        if not one.saved:
            assert one.better == at
    return found


def test_the_load_of_links_equals_the_definition() -> None:
    found = check_links(TREE, TRAFFIC)
    assert set(found) == {"left", "right", "deep", "far"}
    assert any(link.up for link in found.values())


def test_the_best_hub_for_a_client_has_the_least_load_of_all() -> None:
    found = check_placements(TREE, TRAFFIC)
    assert set(found) == set(TREE.clients)
    assert found["mute"].saved > 0


@st.composite
def plans(draw: st.DrawFn) -> tuple[Topology, Traffic]:
    """Any tree with a few clients, and what they and others publish."""
    hubs = {"0": Hub()}
    for number in range(1, draw(st.integers(1, 7))):
        hubs[str(number)] = Hub(draw(st.sampled_from([*hubs])))
    at, key = st.sampled_from([*hubs]), st.sampled_from([b"a/b", b"a/c", b"b", b"c/d"])
    patterns = st.lists(st.sampled_from(["a/", "a/b", "*/b", "b", "", "c/*"]), max_size=2).map(tuple)
    clients = draw(st.dictionaries(st.sampled_from("uvwxyz"), st.builds(Client, at, patterns), max_size=4))
    traffic: Traffic = []
    for who in draw(st.lists(st.sampled_from([None, *clients]), max_size=6)):
        hub = draw(at) if who is None else clients[who].hub
        messages = draw(st.integers(1, 5))
        traffic.append((hub, who, draw(key), messages, messages * draw(st.integers(1, 9))))
    return Topology(hubs, clients), traffic


@given(plans())
def test_the_plan_of_any_tree_equals_the_definition(made: tuple[Topology, Traffic]) -> None:
    check_links(*made)
    found = check_placements(*made)
    topology, traffic = made
    idle = set(topology.clients) - {who for _, who, *_ in traffic}
    for client in idle - set(found):
        patterns = topology.clients[client].subscribes
        assert not any(matches(pattern.encode(), key) for pattern in patterns for _, _, key, *_ in traffic)


def test_secret_keys_are_wanted_by_nobody() -> None:
    topology = Topology({"root": Hub(), "below": Hub("root")}, {"all": Client("below", ("",))})
    (link,) = plan.links(topology.tree, classes(topology, [("root", None, b"!/x", 3, 3)]))
    assert (link.flooded_down, link.down) == (3, 0)


def test_a_plan_uses_the_given_separator() -> None:
    topology = Topology({"root": Hub(), "a": Hub("root")}, {"x": Client("a", ("b.",))}, ".")
    (link,) = plan.links(topology.tree, classes(topology, [("root", None, b"b.c", 1, 1)]))
    assert link.down == 1


def test_real_relays_forward_what_the_plan_says(folder: str) -> None:
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

    traffic: Traffic = [(hub, None, key, 1, 1 << number) for number, (_, hub, key) in enumerate(messages)]
    planned = {link.link: link._asdict() for link in plan.links(TREE.tree, classes(TREE, traffic))}

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
    header = len(b"MSG ") + 1
    found = dict[tuple[str, str | None, bytes], tuple[int, int]]()
    for flow in plan.recorded(recording(spark, rows), topology):
        group = topology.tree.names[flow.hub], flow.client, flow.key
        messages, size = found.get(group, (0, 0))
        found[group] = messages + flow.messages, size + flow.bytes
    assert sorted(((*group, *counts) for group, counts in found.items()), key=str) == sorted(
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
