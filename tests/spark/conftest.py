"""Fixtures: the Spark session that the tests of a file share. Without Java the tests fail."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from journal.read.conftest import journal as journal

from sbuslib.spark.sessions import QUICK, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local-cluster[1,2,600]"
JAVA = QUICK["spark.driver.defaultJavaOptions"] + " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Java does not verify Spark's classes, which takes a tenth of its time."""
SETTINGS = {
    "spark.driver.defaultJavaOptions": JAVA,
    "spark.executor.defaultJavaOptions": JAVA,
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "1",
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
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on a cluster of one executor, which is a process of its own. It ends with the tests of the file.

    A cluster writes beside Spark, so Spark is made to be in a folder of links.
    """
    place, home = tmp_path_factory.mktemp("spark"), tmp_path_factory.mktemp("home")
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    settings = {**SETTINGS, "spark.local.dir": str(place), "spark.sql.warehouse.dir": str(place / "warehouse")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        running = session(MASTER, name="tests", settings=settings)
        yield running
        running.stop()
    gateway = pyspark.SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
    pyspark.SparkContext._gateway = pyspark.SparkContext._jvm = None


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
