"""Fixtures: the one Spark session that all these tests share. It needs Java, and nothing here is skipped without it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sbuslib.spark.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Options for Java: the compiler and the collector that suit a short life on two cores. Halves its processor time."""

SETTINGS = {
    "spark.driver.defaultJavaOptions": QUICK,
    "spark.sql.shuffle.partitions": "1",
    # To plan again after each stage, and to compile each, takes longer than what is in a test's frame.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.streaming.stopTimeout": "30s",
    # The workers in Python may be slow to begin as well.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.ui.showConsoleProgress": "false",
}


SECONDS = 240
"""A test that takes longer hangs. Java is slow to begin where it shares its cores, and an alarm in the middle of a call
into it would spoil the session for the tests after it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.seconds(SECONDS))


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, no pages to look at, one partition after a shuffle."""
    place = tmp_path_factory.mktemp("spark")
    settings = {**SETTINGS, "spark.local.dir": str(place), "spark.sql.warehouse.dir": str(place / "warehouse")}
    spark = session("local[2]", name="tests", settings=settings)
    yield spark
    spark.stop()


@pytest.fixture
def spark(spark_session: SparkSession) -> SparkSession:
    """The session, in which nothing is left running or remembered by the test before."""
    for query in spark_session.streams.active:
        query.stop()
    spark_session.catalog.clearCache()
    return spark_session


def _open_files() -> set[tuple[str, str]]:
    """Files that this process has open. Not its sockets: PySpark keeps some to its Java process, and opens more."""
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
    """Fail a test after which more files are open than before."""
    before = _open_files()
    yield
    leaked = _open_files() - before
    assert not leaked, f"left open: {sorted(leaked)}"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Where a test's journal may be."""
    return tmp_path / "journal"
