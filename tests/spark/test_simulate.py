"""A synthetic tree."""

from __future__ import annotations

import pytest

from sbuslib.errors import UsageError
from sbuslib.spark import plan, simulate


def test_the_tree_has_the_fan_out() -> None:
    tree = simulate.tree(50, 3)
    assert tree.names == [str(hub) for hub in range(50)]
    assert tree.above == [0, *((hub - 1) // 3 for hub in range(1, 50))]
    assert simulate.tree(1).above == [0]


@pytest.mark.parametrize(("hubs", "fan_out"), [(0, 8), (10, 1)])
def test_impossible_trees_are_refused(hubs: int, fan_out: int) -> None:
    with pytest.raises(UsageError, match="fan-out"):
        simulate.tree(hubs, fan_out)


def test_the_load_of_the_tree_adds_up() -> None:
    tree = simulate.tree(300, 4)
    published = sum(flow.messages for flow in simulate.traffic(tree))
    assert published == 300 * (60 + 3) + 10
    found = plan.links(tree, plan.classes(simulate.traffic(tree), simulate.interests(tree)))
    assert sorted(int(link.link) for link in found) == list(range(1, 300))
    for link in found:
        assert int(link.above) == (int(link.link) - 1) // 4
        assert link.flooded_up + link.flooded_down == published, "flooded, each message crosses each link once"
        assert 0 <= link.up <= link.flooded_up
        assert 10 <= link.down <= link.flooded_down, "everybody listens to the news"
        counts, sizes = link[2:6], link[6:]
        assert all(size >= count for size, count in zip(sizes, counts, strict=True))


def test_figures_go_to_those_who_watch_their_site() -> None:
    """Hub 199 watches the site of hub 12, two levels below the root."""
    tree = simulate.tree(300, 4)
    patterns = {interest.pattern for interest in simulate.interests(tree) if interest.hub == 199}
    assert patterns == {b"news/", b"hub/199/set/", b"site/12/"}
