"""How long replies took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark.frames import SECOND, START_NS, message, recording, rows_of

from sbuslib.errors import UsageError
from sbuslib.spark.latency import CorrelationId, by_request, exchanges, histogram

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_replies_find_their_requests(spark: SparkSession) -> None:
    """With an id that is used again, a repeated reply, a missing reply, a reply without a request, and two hubs."""
    rows = [
        message(b"ask/clock", b'{"id": "a"}', at=0),
        message(b"ask/clock", b'{"id": "b"}', at=0.5),
        message(b"reply/clock", b'{"id": "a", "time": 1}', at=1),
        message(b"reply/clock", b'{"id": "a"}', at=1.25),
        message(b"reply/clock", b'{"id": "z"}', at=1.25),
        message(b"ask/clock", b'{"id": "a"}', at=2),
        message(b"reply/clock", b'{"id": "a"}', at=2.5),
        message(b"ask/disk", b'{"id": 7}', at=3),
        message(b"reply/disk", b'{"id": 7}', at=3.125, hub="hub-2"),
        message(b"ask/disk", b"no JSON", at=4),
        message(b"other", b'{"id": "b"}', at=5),
    ]
    found = exchanges(recording(spark, rows), [b"ask/"], [b"reply/"], CorrelationId.parse("json:id"))
    table = rows_of(found, "hub", "id", "request", "time_ns", "latency_ns", "replies")
    start, s = START_NS, SECOND
    assert sorted(table, key=str) == sorted(
        [
            ("hub-1", b"a", b"ask/clock", start, s, 2),
            ("hub-1", b"b", b"ask/clock", start + s // 2, None, 0),
            ("hub-1", b"a", b"ask/clock", start + 2 * s, s // 2, 1),
            ("hub-1", b"z", None, None, None, 1),
            ("hub-1", b"7", b"ask/disk", start + 3 * s, None, 0),
            ("hub-2", b"7", None, None, None, 1),
        ],
        key=str,
    )
    assert rows_of(by_request(found)) == [
        (b"ask/clock", 3, 2, s // 2, s, s, s),
        (b"ask/disk", 1, 0, None, None, None, None),
    ]
    assert rows_of(histogram(found)) == [(524_288, 1), (1_048_576, 1)]


@pytest.mark.parametrize(
    ("where", "key", "payload", "id", "name"),
    [
        ("segment:2", b"ask/7/\xffclock", b"", b"7", b"ask/*/\xffclock"),
        ("segment:1", b"7/ask", b"", b"7", b"*/ask"),
        ("segment:-1", b"ask/\xfe/77", b"", b"77", b"ask/\xfe/*"),
        ("segment:-3", b"ask/7/x/y", b"", b"7", b"ask/*/x/y"),
        ("segment:-1", b"ask", b"", b"ask", b"*"),
        ("segment:2", b"ask", b"", None, None),
        ("segment:-2", b"ask", b"", None, None),
        ("prefix:4", b"ask", b"\xff\0\1\2rest", b"\xff\0\1\2", b"ask"),
        ("prefix:4", b"ask", b"abc", None, None),
        ("json:head.id", b"ask", b'{"head": {"id": "q"}}', b"q", b"ask"),
        ("json:id", b"ask", b"\xff", None, None),
    ],
)
def test_the_id_is_found_in_the_key_or_the_payload(
    spark: SparkSession, where: str, key: bytes, payload: bytes, id: bytes | None, name: bytes | None
) -> None:
    id_column, name_column = CorrelationId.parse(where).columns()
    frame = recording(spark, [message(key, payload)]).select(id_column.alias("id"), name_column.alias("name"))
    ((found, named),) = rows_of(frame)
    assert found == id
    if id is not None:
        assert named == name


@pytest.mark.parametrize(
    "text", ["", "json:", "json:a b", "json:$['x']", "prefix:0", "prefix:-1", "segment:0", "segment:x", "key:1"]
)
def test_wrong_places_of_an_id_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="segment:N"):
        CorrelationId.parse(text)


def test_missing_patterns_are_refused(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="patterns"):
        exchanges(recording(spark, []), [], [b""], CorrelationId("json", "id"))
