"""Fixtures: the Spark session that the tests of a file share. Without Java the tests fail."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from sbuslib.spark.sessions import QUICK, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    **QUICK,
    "spark.executor.defaultJavaOptions": QUICK["spark.driver.defaultJavaOptions"],
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
    # Adaptive planning and compiling stages take longer than the work on a frame of a test.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.streaming.stopTimeout": "30s",
    # The Python workers may be slow to start.
    "spark.python.authenticate.socketTimeout": "120s",
}

SECONDS = 240
"""Seconds after which a test counts as hanging. This is long, as Java starts slowly on shared cores, and an alarm
during a call into Java would break the session for later tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.seconds(SECONDS))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], SparkSession]]:
    """Start a session with this master; another one ends. All are in one Java, which ends with the tests of the file.

    A cluster writes beside Spark, so Spark is made to be in a folder of links.
    """
    place, home = tmp_path_factory.mktemp("spark"), tmp_path_factory.mktemp("home")
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    settings = {**SETTINGS, "spark.local.dir": str(place), "spark.sql.warehouse.dir": str(place / "warehouse")}

    def start(master: str) -> SparkSession:
        running = pyspark.sql.SparkSession.getActiveSession()
        if running is not None and running.sparkContext.master != master:
            running.stop()
        return session(master, name="tests", settings=settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        yield start
    gateway = pyspark.SparkContext._gateway
    if gateway is not None:
        start("local[2]").stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        pyspark.SparkContext._gateway = pyspark.SparkContext._jvm = None


@pytest.fixture
def spark(start: Callable[[str], SparkSession]) -> SparkSession:
    """A session with two cores of this machine, without queries and cached frames of the test before."""
    found = start("local[2]")
    for query in found.streams.active:
        query.stop()
    found.catalog.clearCache()
    return found


def _open_files() -> set[tuple[str, str]]:
    """Files that this process has open. Sockets are left out: PySpark opens some to its Java process."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith("/"):
            found.add((fd, target))
    return found


@pytest.fixture(autouse=True)
def _no_leaks(_no_hang: None) -> Iterator[None]:
    """Fail a test that leaves files open."""
    before = _open_files()
    yield
    gc.collect()  # readers of Parquet files that are in a circle with the error that ended them
    leaked = _open_files() - before
    assert not leaked, f"left open: {sorted(leaked)}"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The path for the journal of a test."""
    return tmp_path / "journal"
