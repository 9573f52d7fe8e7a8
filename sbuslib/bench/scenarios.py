"""The scenarios. Each is a way to load a hub. Pure."""

from __future__ import annotations

import msgspec

from .results import Plan

FULL = Plan()
QUICK = Plan(rounds=3, seconds=0.2)


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One way to load a hub."""

    name: str
    title: str
    job: str = "packets"
    """Of the load; ``clients`` for Python clients."""
    options: tuple[object, ...] = ()
    """Of the load, see the head of ``load.c``; for ``clients``, their kinds."""
    count: int
    """Messages, or trips, that a fast machine manages in half a second; the number of a run is found by a trial."""
    most: int | None = None
    """Most messages of a run."""
    receivers: int = 1
    size: int | None = None
    """Bytes of the payload, where they are not the plan's."""
    place: str = "hub"
    """Kind of hub: one without other load (``hub``), one with many idle ``clients`` or ``patterns``, or two that a
    ``relay`` joins."""
    limit: str | None = None
    """Kind of forwarder that is the limit: one that sends each packet to all (``all``), or one that deals
    (``deal``)."""
    base: str | None = None
    """The scenario that differs in one thing: the ratio to it is the cost of that thing."""
    needs: bytes | None = None
    """A feature that the daemon must have; only the load in C uses it."""
    fill: bool = False
    """Whether the stopped reader's queue has to be full before it counts."""


SCENARIOS = (
    Scenario(name="one", title="one to one", count=200_000, limit="all"),
    Scenario(
        name="default",
        title="one to one, receiver in the default mode",
        options=("-m", "default"),
        count=150_000,
        base="one",
    ),
    Scenario(name="patterns", title="beside 100,000 idle patterns", count=200_000, place="patterns", base="one"),
    Scenario(name="clients", title="beside 10,000 idle clients", count=200_000, place="clients", base="one"),
    Scenario(
        name="churn", title="beside 1,000 new patterns a second", options=("-c", 1_000), count=200_000, base="one"
    ),
    # A link is never held back, so a receiver above a relay acts as in the default mode.
    Scenario(name="relay", title="over a relay, two hubs", count=60_000, most=60_000, place="relay", base="default"),
    Scenario(name="four", title="four to one", options=("-p", 4), count=200_000, limit="all"),
    Scenario(name="ten", title="one to ten", receivers=10, count=40_000, limit="all"),
    Scenario(
        name="ten-default",
        title="one to ten, receivers in the default mode",
        options=("-m", "default"),
        receivers=10,
        count=40_000,
        base="ten",
    ),
    Scenario(name="nine", title="one to nine", receivers=9, count=40_000, limit="all"),
    Scenario(
        name="stopped",
        title="one to nine, beside a tenth that does not read",
        options=("-x", 1),
        receivers=9,
        count=40_000,
        base="nine",
        fill=True,
    ),
    Scenario(name="hundred", title="one to a hundred", receivers=100, count=5_000, limit="all"),
    Scenario(
        name="dealt", title="keys of ten receivers in turn", options=("-d",), receivers=10, count=100_000, limit="deal"
    ),
    Scenario(name="large", title="8 KB payloads", size=8_192, count=60_000, limit="all"),
    Scenario(name="distinct", title="a new key each", options=("-k", 0), count=60_000, limit="all"),
    Scenario(name="thousand", title="1,000 keys in turn", options=("-k", 1_000), count=150_000, limit="all"),
    Scenario(
        name="churn-keys",
        title="1,000 keys in turn, beside 1,000 new patterns a second",
        options=("-k", 1_000, "-c", 1_000),
        count=100_000,
        base="thousand",
    ),
    Scenario(
        name="batched",
        title="in batches of 1,000",
        options=("-B", 1_000),
        count=2_000_000,
        base="one",
        needs=b"batch/on",
    ),
    Scenario(
        name="batched-ten",
        title="in batches of 1,000, one to ten",
        options=("-B", 1_000),
        receivers=10,
        count=400_000,
        base="ten",
        needs=b"batch/on",
    ),
    Scenario(
        name="batched-keys",
        title="in batches, 1,000 keys in turn",
        options=("-B", 1_000, "-k", 1_000),
        count=300_000,
        base="thousand",
        needs=b"batch/on",
    ),
    Scenario(name="trip", title="round trip", job="trip", count=10_000, limit="all"),
    Scenario(
        name="python",
        title="Python client to Python client",
        job="clients",
        options=("gevent", "blocking", "aio"),
        count=60_000,
    ),
    Scenario(name="many", title="publish_many to receive_many", job="clients", options=("many",), count=100_000),
    Scenario(
        name="many-ten",
        title="publish_many to receive_many, one to ten",
        job="clients",
        options=("many",),
        receivers=10,
        count=30_000,
    ),
)
"""In the order of their runs. Scenarios that are compared are neighbours."""


def find(name: str) -> Scenario:
    """Return the scenario of this name. Raises :exc:`KeyError`."""
    for scenario in SCENARIOS:
        if scenario.name == name:
            return scenario
    raise KeyError(name)
