"""A synthetic tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark.frames import rows_of

from sbuslib.errors import UsageError
from sbuslib.spark import plan, simulate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_tree_has_the_fan_out(spark: SparkSession) -> None:
    def path(hub: int) -> list[int]:
        return [hub, *path((hub - 1) // 3)] if hub else []

    expected = [(hub, (hub - 1) // 3 if hub else None, path(hub)) for hub in range(50)]
    assert rows_of(simulate.tree(spark, 50, 3)) == expected
    assert rows_of(simulate.tree(spark, 1)) == [(0, None, [])]


@pytest.mark.parametrize(("hubs", "fan_out"), [(0, 8), (10, 1)])
def test_impossible_trees_are_refused(spark: SparkSession, hubs: int, fan_out: int) -> None:
    with pytest.raises(UsageError, match="fan-out"):
        simulate.tree(spark, hubs, fan_out)


def test_the_load_of_the_tree_adds_up(spark: SparkSession) -> None:
    tree = simulate.tree(spark, 300, 4).persist()
    traffic = simulate.traffic(tree)
    (published,) = rows_of(traffic.groupBy().sum("messages"))[0]
    assert published == 300 * (60 + 3) + 10
    found = rows_of(plan.links(plan.route(traffic, simulate.interests(tree)), tree))
    tree.unpersist()
    assert sorted(row[0] for row in found) == list(range(1, 300))
    for hub, above, up, down, wanted_up, wanted_down, *sizes in found:
        assert above == (hub - 1) // 4
        assert up + down == published, "flooded, each message crosses each link once"
        assert 0 <= wanted_up <= up
        assert 10 <= wanted_down <= down, "everybody listens to the news"
        assert all(size >= count for size, count in zip(sizes, (up, down, wanted_up, wanted_down), strict=True))
