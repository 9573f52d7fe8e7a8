"""Payloads of one type."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from sbuslib import Client, Hub, Topic
from sbuslib.errors import PayloadError, UsageError
from sbuslib.wire.packets import Message


class Reading(msgspec.Struct):
    celsius: float
    unit: str = "C"


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_a_value_survives_encoding_and_decoding(encoding: str) -> None:
    topic = Topic(Reading, encoding=encoding)  # type: ignore[arg-type]
    assert topic.decode(topic.encode(Reading(21.5))) == Reading(21.5)
    integers = Topic(list[int], encoding=encoding)  # type: ignore[arg-type]
    assert integers.decode(integers.encode([1, 2])) == [1, 2]


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
@pytest.mark.parametrize("value", [Reading("warm"), 3, None, object(), Reading(1.0, 2)])  # type: ignore[arg-type]
def test_a_value_of_another_type_is_not_sent(encoding: str, value: object) -> None:
    with pytest.raises(PayloadError, match="Reading"):
        Topic(Reading, encoding=encoding).encode(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b'{"celsius": "x"}', b"\x81\xa7celsius\xa1x", b"{}", b"\x80", b"[" * 9_999]
)
def test_a_payload_that_does_not_fit(encoding: str, payload: bytes) -> None:
    with pytest.raises(PayloadError):
        Topic(Reading, encoding=encoding).decode(payload)  # type: ignore[arg-type]


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="encoding"):
        Topic(Reading, encoding="xml")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="type"):
        Topic("Reading")  # type: ignore[arg-type]


def test_a_topic_over_a_hub_and_clients(hub: Hub, client: Callable[..., Client]) -> None:
    topic = Topic(Reading)
    subscriber, publisher = client(), client()
    subscriber.subscribe(b"room/")
    inbox = hub.subscribe(b"room/")
    topic.publish(publisher, b"room/1", Reading(20.0))
    topic.publish(hub, b"room/2", Reading(21.0))
    got = topic.values(subscriber)
    assert sorted((message.key, value.celsius) for message, value in (next(got), next(got))) == [
        (b"room/1", 20.0),
        (b"room/2", 21.0),
    ]
    assert {inbox.get(5).key, inbox.get(5).key} == {b"room/1", b"room/2"}


def test_values_stop_at_one_that_does_not_fit() -> None:
    topic = Topic(int)
    values = topic.values([Message(b"a", topic.encode(1)), Message(b"b", b"\xc0"), Message(b"c", topic.encode(2))])
    assert next(values)[1] == 1
    with pytest.raises(PayloadError):
        next(values)
