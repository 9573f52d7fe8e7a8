"""Rows published on a real bus, by tasks. No Spark is started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow
import pytest
from pyspark.sql.types import StructType
from support import PATIENCE, HubThread

from sbuslib.blocking import Client
from sbuslib.errors import NoHubError, UsageError
from sbuslib.spark.sink import BusWriter, Target


def columns(text: str) -> StructType:
    """A schema of columns such as ``"key binary, payload binary"``. Spark's own parser needs a session."""
    schema = StructType()
    for column in text.split(", "):
        name, kind = column.split()
        schema.add(name, kind)
    return schema


COLUMNS = columns("key binary, payload string")


@pytest.fixture
def bus(folder: str) -> Iterator[str]:
    """The address of a hub."""
    with HubThread(f"{folder}/bus"):
        yield f"{folder}/bus"


def write(target: Target, *batches: list[dict[str, Any]]) -> None:
    """Run a task."""
    BusWriter(target).write(iter([pyarrow.RecordBatch.from_pylist(batch) for batch in batches]))


def test_a_task_publishes_bytes_and_text(bus: str) -> None:
    with Client(bus) as client:
        client.subscribe(b"")
        target = Target.read({"address": bus}, COLUMNS)
        write(target, [{"key": b"a", "payload": "x"}, {"key": b"b", "payload": None}], [{"key": b"c", "payload": "y"}])
        found = [client.receive(timeout=PATIENCE) for _ in range(3)]
        assert [(message.key, message.payload) for message in found] == [(b"a", b"x"), (b"b", b""), (b"c", b"y")]


def test_a_row_without_a_key_and_a_task_without_a_hub_are_errors(bus: str) -> None:
    with pytest.raises(UsageError, match="a row has no key"):
        write(Target.read({"address": bus}, COLUMNS), [{"key": b"a", "payload": b""}, {"key": None, "payload": b""}])
    with pytest.raises(NoHubError):
        write(Target.read({"path": f"{bus}/nobody"}, COLUMNS), [])


@pytest.mark.parametrize(
    ("options", "schema", "match"),
    [
        ({"adress": "/tmp/bus"}, "key binary, payload binary", "no such option: adress; there are address"),
        ({"timeout": "soon"}, "key binary, payload binary", "timeout is a positive number"),
        ({"timeout": "0"}, "key binary, payload binary", "timeout is a positive number"),
        ({}, "key binary", "here payload is missing"),
        ({}, "key date, payload binary", "the column key is binary or string, not date"),
    ],
)
def test_wrong_options_and_columns_are_refused(options: dict[str, str], schema: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Target.read(options, columns(schema))
