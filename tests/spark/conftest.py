"""Fixtures: the Spark session that all these tests share. Without Java the tests fail."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sbuslib.spark.sessions import QUICK as QUICK_SETTINGS
from sbuslib.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = QUICK_SETTINGS["spark.driver.defaultJavaOptions"]
"""Options that halve the processor time of a short-lived Java on two cores."""

SETTINGS = {
    **QUICK_SETTINGS,
    "spark.sql.shuffle.partitions": "1",
    # Adaptive planning and compiling stages take longer than the work on a frame of a test.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.streaming.stopTimeout": "30s",
    # The Python workers may be slow to start.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.ui.showConsoleProgress": "false",
}


SECONDS = 240
"""Seconds after which a test counts as hanging. This is long, as Java starts slowly on shared cores, and an alarm
during a call into Java would break the session for later tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.seconds(SECONDS))


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores."""
    place = tmp_path_factory.mktemp("spark")
    settings = {**SETTINGS, "spark.local.dir": str(place), "spark.sql.warehouse.dir": str(place / "warehouse")}
    spark = session("local[2]", name="tests", settings=settings)
    yield spark
    spark.stop()


@pytest.fixture
def spark(spark_session: SparkSession) -> SparkSession:
    """The session, without queries and cached frames of the test before."""
    for query in spark_session.streams.active:
        query.stop()
    spark_session.catalog.clearCache()
    return spark_session


def _open_files() -> set[tuple[str, str]]:
    """Files that this process has open. Sockets are left out: PySpark opens some to its Java process."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith("/") and not target.endswith(".ttf"):  # matplotlib keeps its fonts open
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
