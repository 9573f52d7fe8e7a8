"""A tree of hubs from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbuslib.errors import UsageError
from sbuslib.spark.plan import interests
from sbuslib.spark.topology import Client, Hub, Topology, Tree

TREE = """
[hubs.root]
recorded = "hub-1"
[hubs.plant]
above = "root"
[hubs.hall]
above = "plant"

[clients.heating]
hub = "hall"
subscribes = ["room/*/target", "news", "news"]
publishes = ["room/"]
uid = 1000
"""


def test_a_tree_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tree.toml"
    path.write_text(TREE)
    topology = Topology.read(str(path))
    assert topology.hubs == {"root": Hub(recorded="hub-1"), "plant": Hub("root"), "hall": Hub("plant")}
    assert topology.clients == {
        "heating": Client("hall", ("room/*/target", "news", "news"), publishes=("room/",), uid=1000)
    }
    assert topology.tree.names == ["root", "plant", "hall"]
    assert topology.tree.above == [0, 0, 1]
    assert [*interests(topology)] == [(2, "heating", pattern) for pattern in (b"room/*/target", b"news", b"news")]


def test_hubs_are_numbered_from_the_root_on() -> None:
    tree = Tree({"a": "b", "d": "c", "b": "c", "c": "", "e": "b"})
    assert tree.names[0] == "c"
    assert {tree.names[hub]: tree.names[above] for hub, above in enumerate(tree.above)} == {
        "c": "c",
        "a": "b",
        "b": "c",
        "d": "c",
        "e": "b",
    }
    assert all(above < hub for hub, above in enumerate(tree.above) if hub)
    assert [tree.number[name] for name in tree.names] == [*range(5)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[hubs", "tree.toml: "),
        ("", "missing required field `hubs`"),
        ("[hubs]", "one hub with nothing above it, not 0"),
        ("[hubs.a]\n[hubs.b]", "not 2: a, b"),
        ("[hubs.a]\n[hubs.b]\nabove='c'", "above b is c"),
        ("[hubs.a]\n[hubs.b]\nabove='c'\n[hubs.c]\nabove='b'", "above each other: b, c"),
        ("[hubs.a]\nbelow='b'", "unknown field `below`"),
        ("[hubs.a]\n[clients.x]\nhub='b'", "client x is at b"),
        ("[hubs.a]\n[clients.x]\nhub='a'\nsubscribes=[\"b\\u0000\"]", "client x: .*NUL"),
        ("separator = 'ab'\n[hubs.a]", "separator"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tree.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        Topology.read(str(path))
