"""Payloads of one type."""

from __future__ import annotations

import msgspec
import pytest
from clients.makers import run
from support import HubThread, MakeClient

from sbuslib import Hub, Topic, aio
from sbuslib.errors import KeyFormatError, PayloadError, ReplyError, UsageError
from sbuslib.topic import schemas
from sbuslib.wire.packets import Message


class Reading(msgspec.Struct):
    celsius: float
    unit: str = "C"


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_a_value_survives_encoding_and_decoding(encoding: str) -> None:
    topic = Topic(Reading, encoding=encoding)  # type: ignore[call-overload]
    assert topic.decode(topic.encode(Reading(21.5))) == Reading(21.5)
    integers = Topic(list[int], encoding=encoding)  # type: ignore[call-overload]
    assert integers.decode(integers.encode([1, 2])) == [1, 2]


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
@pytest.mark.parametrize("value", [Reading("warm"), 3, None, object(), Reading(1.0, 2)])  # type: ignore[arg-type]
def test_a_value_of_another_type_is_not_sent(encoding: str, value: object) -> None:
    with pytest.raises(PayloadError, match="Reading"):
        Topic(Reading, encoding=encoding).encode(value)  # type: ignore[call-overload]


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b'{"celsius": "x"}', b"\x81\xa7celsius\xa1x", b"{}", b"\x80", b"[" * 9_999]
)
def test_a_payload_that_does_not_fit(encoding: str, payload: bytes) -> None:
    with pytest.raises(PayloadError):
        Topic(Reading, encoding=encoding).decode(payload)  # type: ignore[call-overload]


def test_a_topic_over_a_hub_and_clients(hub: Hub, client: MakeClient) -> None:
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
    assert {inbox.receive(timeout=5).key, inbox.receive(timeout=5).key} == {b"room/1", b"room/2"}


class Place(msgspec.Struct):
    name: str


def test_a_template_makes_keys_and_patterns_and_reads_them_back() -> None:
    topic = Topic("room/{id}/temp/{unit}", Reading)
    assert topic.key(id=1, unit="C") == b"room/1/temp/C"
    assert topic.pattern() == b"room/*/temp/*"
    assert topic.pattern(id="é") == "room/é/temp/*".encode()
    assert topic.fields(b"room/1/temp/C") == {"id": "1", "unit": "C"}
    for key in (b"room/1/temp", b"room/1/temp/C/x", b"house/1/temp/C", b""):
        assert topic.fields(key) is None
    assert topic.fields(b"room/\xff/temp/C") == {"id": "\ufffd", "unit": "C"}
    dotted = Topic("room/{id}/temp", int, separator=b".")
    assert (dotted.key(id="a/b"), dotted.pattern()) == (b"room.a/b.temp", b"room.*.temp")
    assert (dotted.fields(b"room.1.temp"), dotted.fields(b"room/1/temp")) == ({"id": "1"}, None)
    with pytest.raises(KeyFormatError):
        dotted.key(id="a.b")


@pytest.mark.parametrize(
    "fields", [{}, {"id": ""}, {"id": "a/b"}, {"id": "*"}, {"id": "!"}, {"id": "\0"}, {"other": 1}]
)
def test_a_field_that_cannot_be_a_segment_is_refused(fields: dict[str, object]) -> None:
    for topic in (Topic("room/{id}", Reading), Topic(Reading)):  # which has no keys
        with pytest.raises(KeyFormatError):
            topic.key(**fields)
    with pytest.raises(KeyFormatError):
        Topic(Reading).pattern()


@pytest.mark.parametrize("template", ["room/{id", "room/x{id}", "{1}", "{}", "{a}/{a}", "a*", "a\0"])
def test_wrong_arguments(template: str) -> None:
    with pytest.raises(UsageError, match="template"):
        Topic(template, Reading)
    with pytest.raises(UsageError, match="encoding"):
        Topic(Reading, encoding="xml")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="type"):
        Topic("Reading")  # type: ignore[call-overload]


def test_a_payload_that_does_not_fit_can_be_a_result() -> None:
    topic = Topic(Reading)
    messages = [Message(b"a", b"?"), Message(b"b", topic.encode(Reading(1.0)))]
    (_, error), (_, value) = topic.results(messages)
    assert isinstance(error, PayloadError)
    assert value == Reading(1.0)
    with pytest.raises(PayloadError):
        list(topic.values(messages))
    assert topic.takes(lambda reading, message: (reading.celsius, message.key))(messages[1]) == (1.0, b"b")


def test_a_topic_asks_and_answers(hub: Hub, client: MakeClient) -> None:
    places, readings = Topic("weather/{day}", Place), Topic(Reading)
    one, other = client(), client()

    def answer(place: Place, question: Message) -> Reading:
        return Reading(20.0, place.name + str(places.fields(question.key)))

    with other.serve(places.pattern(), places.answers(answer, answer=readings)):
        asked = places.request(one, places.key(day=1), Place("Bonn"), answer=readings)
        assert asked == Reading(20.0, "Bonn{'day': '1'}")
        with pytest.raises(ReplyError, match="PayloadError"):
            one.request(b"weather/1", b"?")
        with pytest.raises(PayloadError):
            places.request(one, b"weather/1", Place("Bonn"), answer=places)


def test_a_topic_asks_and_answers_with_asyncio(server: HubThread, address: str) -> None:
    places, readings = Topic("weather/{day}", Place), Topic(Reading)

    async def answer(place: Place, question: Message) -> Reading:
        return Reading(20.0, place.name)

    async def test() -> None:
        async with aio.Client(address) as client, client.serve(b"weather/", places.answers(answer, answer=readings)):
            assert await places.request(client, b"weather/1", Place("Bonn"), answer=readings) == Reading(20.0, "Bonn")

    run(test())


def test_json_schema_of_topics() -> None:
    schema = schemas(Topic("room/{id}/temp", Reading), Topic(Place), Topic(list[int]))
    assert set(schema["$defs"]) == {"Reading", "Place"}
    assert schema["properties"]["room/{id}/temp"] == {"$ref": "#/$defs/Reading"}
    assert schema["properties"]["Place"] == {"$ref": "#/$defs/Place"}
    assert schema["properties"]["list"] == {"type": "array", "items": {"type": "integer"}}
    msgspec.json.encode(schema)
