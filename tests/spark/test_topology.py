"""A tree of hubs from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark.frames import rows_of

from sbuslib.errors import UsageError
from sbuslib.spark.topology import Client, Hub, Topology, hubs_frame, interests_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def test_a_tree_is_read_and_made_frames(tmp_path: Path, spark: SparkSession) -> None:
    path = tmp_path / "tree.toml"
    path.write_text(TREE)
    topology = Topology.read(str(path))
    assert topology.hubs == {"root": Hub(recorded="hub-1"), "plant": Hub("root"), "hall": Hub("plant")}
    assert topology.clients == {
        "heating": Client("hall", ("room/*/target", "news", "news"), publishes=("room/",), uid=1000)
    }
    assert topology.root == "root"
    assert rows_of(hubs_frame(spark, topology)) == [
        ("root", None, []),
        ("plant", "root", ["plant"]),
        ("hall", "plant", ["hall", "plant"]),
    ]
    assert rows_of(interests_frame(spark, topology)) == [
        ("hall", "heating", b"room/*/target"),
        ("hall", "heating", b"news"),
    ]


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
