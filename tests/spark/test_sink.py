"""Rows published on a real bus, envelopes, and what workers keep."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest
from pyspark.sql.types import StructType
from segments.journals import rows, segment
from support import PATIENCE, HubThread

from sbuslib.blocking import Client
from sbuslib.errors import NoHubError, UsageError
from sbuslib.spark import unseal
from sbuslib.spark.reader import settle_once
from sbuslib.spark.sessions import explain
from sbuslib.spark.sink import BusWriter, Published, Target

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession


# -- Rows published on a real bus: from frames and streams, with and without envelopes


def columns(text: str) -> StructType:
    """A schema of columns such as ``"key binary, payload binary"``. Spark's own parser needs a session."""
    schema = StructType()
    for column in text.split(", "):
        name, kind = column.split()
        schema.add(name, kind)
    return schema


COLUMNS = columns("key binary, payload binary")


@pytest.fixture
def bus(folder: str) -> Iterator[str]:
    """The address of a hub."""
    with HubThread(f"{folder}/bus"):
        yield f"{folder}/bus"


@pytest.fixture
def subscriber(bus: str) -> Iterator[Client]:
    """A client that receives everything."""
    with Client(bus) as client:
        client.subscribe(b"")
        yield client


def received(client: Client, count: int) -> list[tuple[bytes, bytes]]:
    """Receive exactly ``count`` messages."""
    got: list[tuple[bytes, bytes]] = []
    while len(got) < count:
        got += [(message.key, message.payload) for message in client.receive_many(timeout=PATIENCE)]
    client.sync()
    with pytest.raises(TimeoutError):
        client.receive(timeout=0)
    return got


def test_the_rows_of_a_frame_are_published(spark: SparkSession, bus: str, subscriber: Client) -> None:
    frame = spark.range(100).selectExpr("concat('n/', id) AS key", "cast(id AS STRING) AS payload", "id AS other")
    frame.repartition(2).write.format("sbus").mode("append").option("address", bus).save()
    assert sorted(received(subscriber, 100)) == sorted((b"n/%d" % n, b"%d" % n) for n in range(100))


def test_a_stream_is_published_with_ids_that_do_not_change(
    spark: SparkSession, bus: str, subscriber: Client, journal: Path, tmp_path: Path
) -> None:
    segment(journal, 1, rows(6), rows(6, 7))
    stream = spark.readStream.format("sbus").schema("key BINARY, payload BINARY").option("maxRecordsPerBatch", 6)
    query = (
        stream.load(str(journal))
        .writeStream.format("sbus")
        .options(address=bus, envelope="true", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(50)
    got = received(subscriber, 12)
    opened = [(key, *unseal(payload)) for key, payload in got]
    assert [(key, payload) for key, _, payload in opened] == [(row.key, row.payload) for row in rows(12)]
    ids = [id for _, id, _ in opened]
    assert ids == [f"{query.id}/{n // 6}/0/{n % 6}".encode() for n in range(12)], "the same when a batch is run again"


def test_the_error_without_a_hub_is_one_line(spark: SparkSession, folder: str) -> None:
    writer = spark.range(1).selectExpr("'k' AS key", "'p' AS payload").write.format("sbus").mode("append")
    with pytest.raises(Exception, match="no hub") as caught:
        writer.option("address", f"{folder}/nobody").save()
    assert explain(caught.value).startswith(f"no hub at {folder}/nobody")


def write(target: Target, *batches: list[dict[str, Any]]) -> int:
    """Run a task without Spark, and return how many messages it published."""
    message = BusWriter(target).write(iter([pyarrow.RecordBatch.from_pylist(batch) for batch in batches]))
    assert isinstance(message, Published)
    return message.messages


def test_ids_come_from_the_column_id(bus: str, subscriber: Client) -> None:
    target = Target.read({"address": bus, "envelope": "True"}, columns("key string, payload string, id string"))
    some: list[dict[str, Any]] = [{"key": "a", "payload": "x", "id": "1"}, {"key": "a", "payload": None, "id": "2"}]
    assert write(target, some, [{"key": "b", "payload": "y", "id": "3"}]) == 3
    assert received(subscriber, 3) == [(b"a", b"1\0x"), (b"a", b"2\0"), (b"b", b"3\0y")]


def test_a_task_that_is_run_again_uses_the_same_ids(bus: str, subscriber: Client) -> None:
    target = Target.read({"address": bus, "envelope": "true"}, COLUMNS)
    for _ in range(2):
        write(target, [{"key": b"a", "payload": b"x"}, {"key": b"a", "payload": b"x"}])
    one, two, *again = [unseal(payload)[0] for _, payload in received(subscriber, 4)]
    assert one != two
    assert again == [one, two]


def test_a_row_without_a_key_is_refused(bus: str) -> None:
    target = Target.read({"address": bus}, COLUMNS)
    with pytest.raises(UsageError, match="a row has no key"):
        write(target, [{"key": b"a", "payload": b""}, {"key": None, "payload": b""}])


def test_a_task_without_a_hub_raises_an_error(folder: str) -> None:
    with pytest.raises(NoHubError):
        write(Target.read({"path": f"{folder}/nobody"}, COLUMNS), [])


@pytest.mark.parametrize(
    ("options", "schema", "match"),
    [
        ({"adress": "/tmp/bus"}, "key binary, payload binary", "no such option: adress; there are address"),
        ({"envelope": "yes"}, "key binary, payload binary", "envelope is true or false"),
        ({"timeout": "soon"}, "key binary, payload binary", "timeout is a positive number"),
        ({"timeout": "0"}, "key binary, payload binary", "timeout is a positive number"),
        ({}, "key binary", "here payload is missing"),
        ({}, "key date, payload binary", "the column key is binary or string, not date"),
    ],
)
def test_wrong_options_and_columns_are_refused(options: dict[str, str], schema: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Target.read(options, columns(schema))


def test_the_mode_overwrite_is_refused(spark: SparkSession, bus: str) -> None:
    frame = spark.range(1).selectExpr("'k' AS key", "'p' AS payload")
    with pytest.raises(Exception, match="say mode"):
        frame.write.format("sbus").mode("overwrite").option("address", bus).save()


# -- Workers exclude their objects from garbage collection


def test_settling_freezes_objects_in_workers_only(spark: SparkSession) -> None:
    def frozen(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        settle_once()
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"count": pa.array([gc.get_freeze_count()])})

    before = gc.get_freeze_count()
    settle_once()
    assert gc.get_freeze_count() == before
    ((count,),) = spark.range(1, numPartitions=1).mapInArrow(frozen, "count long").collect()
    assert count > 10_000
