"""A real cluster: one master and two workers of the PySpark that pip installed, each a process, on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest
from segments.journals import rows, segment
from spark.conftest import QUICK
from support import HubThread

import sbuslib
from sbuslib.blocking import Client

DRIVER = Path(__file__).with_name("cluster.py")


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of all processes of the cluster, in which they find the same package as this process."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(sbuslib.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
    }


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Start one of Spark's daemons by its class; killed after the test."""
    script = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with ExitStack() as stack:

        def start(name: str, log: Path, *arguments: str) -> None:
            with log.open("w") as file:
                process = subprocess.Popen(
                    [script, f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--port", "0", *arguments],
                    env=environment,
                    cwd=tmp_path,
                    stdout=subprocess.DEVNULL,
                    stderr=file,
                )
            stack.enter_context(process)
            stack.callback(process.terminate)

        yield start


def said(log: Path, pattern: str) -> str:
    """Wait for a line in a log, and return the first group of the pattern."""
    while not (found := re.search(pattern, log.read_text())):
        time.sleep(0.02)
    return found[1]


def test_a_cluster_reads_publishes_ingests_and_counts(
    start: Callable[..., None],
    environment: dict[str, str],
    journal: Path,
    folder: str,
    tmp_path: Path,
) -> None:
    for n in range(4):
        segment(journal, 1 + 25 * n, rows(25, 1 + 25 * n))
    start("master.Master", tmp_path / "master.log", "--webui-port", "0")
    address = said(tmp_path / "master.log", r"Starting Spark master at (spark://\S+)\n")
    for name in ("one", "other"):
        room = ["--webui-port", "0", "-c", "1", "-m", "600M", "-d", str(tmp_path / name)]
        start("worker.Worker", tmp_path / f"{name}.log", *room, address)
    with HubThread(f"{folder}/bus"), Client(f"{folder}/bus") as client:
        client.subscribe(b"room/")
        driver = subprocess.run(
            [sys.executable, DRIVER, address, journal, f"{folder}/bus", tmp_path, QUICK],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert driver.returncode == 0, driver.stderr
        got: list[bytes] = []
        while len(got) < 100:
            got += [message.payload for message in client.receive_many(timeout=1)]
    found = json.loads(driver.stdout)
    size = sum(len(row.payload) for row in rows(100))
    assert found == {"rows": 100, "users": [[1000, 100, size]]}
    assert sorted(map(int, got)) == list(range(1, 101))
    for name in ("one", "other"):
        assert list((tmp_path / name).glob("app-*/*")), f"worker {name} has had an executor"
