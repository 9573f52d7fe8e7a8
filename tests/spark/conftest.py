"""Fixtures: the one Spark session that all these tests share. It needs Java, and nothing here is skipped without it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sbuslib.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # Compilers and collectors that suit a short life on two cores.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.ui.showConsoleProgress": "false",
}


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
        if target.startswith("/"):
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
