"""``sbus report`` as a program, without Spark: its errors. ``test_lake.py`` has it with Spark."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.refusals import is_refused
from support import HubThread

from sbuslib.blocking import Client

pytest.importorskip("pyspark")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("report", "traffic", "/nowhere"), 1, "/nowhere"),
        (("report", "traffic", "."), 1, "nothing was recorded"),
        (("report", "traffic", ".", "--output", "-"), 2, "there would be no output"),
        (("report", "traffic", ".", "--levels", "0"), 2, "is no whole number above 0"),
        (("report", "subscriptions", ".", "/nowhere"), 1, "/nowhere: No such file or directory"),
        (("report", "completeness"), 2, "a JOURNAL or the address of a hub is needed"),
        (("report", "completeness", "/nowhere"), 1, "/nowhere: No such file or directory"),
        (("report",), 2, "KIND"),
    ],
)
def test_wrong_arguments_are_refused_before_spark_starts(
    run: Run, tmp_path: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    is_refused(run("sbuslib", *words, cwd=tmp_path), status, said)


def test_completeness_is_told_in_one_line_without_java(run: Run, bus: HubThread, path: str, tmp_path: Path) -> None:
    with Client(path) as client:
        client.publish(b"a", b"")
        client.sync()
    words = ("report", "completeness", "-a", path, "--csv", "tables")
    done = run("sbuslib", *words, cwd=tmp_path, env={"JAVA_HOME": str(tmp_path)})
    assert done.stdout.splitlines() == [
        "completeness.html",
        "tables",
        "every message is accounted for: 0 recorded, 0 lost by known causes",
    ]
    head, line = (tmp_path / "tables" / "accounts.csv").read_text().splitlines()
    assert head == "kind,name,published,routed,delivered,queued,recorded,lost,unknown"
    assert line.startswith("hub,")
    assert line.endswith(",1,0,0,0,,0,0")
