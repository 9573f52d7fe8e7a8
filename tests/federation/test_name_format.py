"""Subjects for keys and filters for patterns, for all bytes: held against the rule of the bus, both ways."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import vectors

from sbuslib.errors import NameFormatError
from sbuslib.federation.name_format import NameFormat, apart
from sbuslib.matcher import matches
from sbuslib.tcp.framing import encode_publish

NATS = NameFormat("sbus.", ".", "*", ">", specials=".*>", has_empty=False, separator=b"/")
MQTT = NameFormat("sbus/", "/", "+", "+/#", specials="/+#$", separator=b"/")
REDIS = NameFormat("sbus/", "/", "*", "*", specials="/*?[]^\\", separator=b"/")
DOTTED = NameFormat("", "/", "+", "+/#", specials="/+#$", separator=b".")
PEERS = NameFormat("//sbus/bus/", "\0", separator=b"\0")


def nats_takes(filter_: str, subject: str) -> bool:
    """The rule of NATS."""
    wanted, parts = filter_.split("."), subject.split(".")
    for number, want in enumerate(wanted):
        if want == ">":
            return len(parts) > number
        if number >= len(parts) or want not in ("*", parts[number]):
            return False
    return len(wanted) == len(parts)


def mqtt_takes(filter_: str, topic: str) -> bool:
    """The rule of MQTT."""
    wanted, parts = filter_.split("/"), topic.split("/")
    for number, want in enumerate(wanted):
        if want == "#":
            return len(parts) >= number
        if number >= len(parts) or want not in ("+", parts[number]):
            return False
    return len(wanted) == len(parts)


def redis_takes(filter_: str, channel: str) -> bool:
    """The rule of Redis, for patterns with stars only."""
    return re.fullmatch(".*".join(map(re.escape, filter_.split("*"))), channel, re.DOTALL) is not None


ENGINES: list[tuple[NameFormat, Callable[[str, str], bool]]] = [
    (NATS, nats_takes),
    (MQTT, mqtt_takes),
    (REDIS, redis_takes),
    (DOTTED, mqtt_takes),
]
SPECIALS = {NATS: "*>", MQTT: "+#", REDIS: "*?[]", DOTTED: "+#"}
SEPARATORS = {DOTTED: b"."}
every_byte = st.binary(max_size=30).filter(lambda text: b"\0" not in text)
keys = every_byte | st.lists(st.sampled_from([*b"ab*/.%+#>$ \xff\xc3\xa9"]), max_size=10).map(bytes)
mappings = st.sampled_from(ENGINES)


@given(keys, mappings)
def test_every_key_has_a_subject_that_the_engine_can_hold_and_comes_back(
    key: bytes, engine: tuple[NameFormat, object]
) -> None:
    names, _ = engine
    subject = names.name_of(key)
    assert names.key_of(subject) == key
    assert subject
    assert subject.encode().decode() == subject
    assert not re.search(r"[\s\0-\x1f\x7f-\x9f]", subject)
    assert not set(subject) & set(SPECIALS[names])
    if names is NATS:
        assert all(subject.split("."))


@given(st.text(max_size=20) | keys.map(lambda key: "sbus." + key.decode("latin-1")), mappings)
def test_a_subject_that_stands_for_a_key_is_the_name_of_that_key(text: str, engine: tuple[NameFormat, object]) -> None:
    names, _ = engine
    try:
        key = names.key_of(text)
    except NameFormatError:
        return
    assert names.name_of(key) == text


@given(keys, keys, mappings)
def test_a_filter_takes_all_that_its_pattern_matches(
    pattern: bytes, key: bytes, engine: tuple[NameFormat, Callable[[str, str], bool]]
) -> None:
    names, takes = engine
    if matches(pattern, key, SEPARATORS.get(names, b"/")):
        assert takes(names.filter_of(pattern), names.name_of(key))


@given(st.characters(min_codepoint=0x10000), mappings)
def test_a_character_beyond_the_first_plane_stands_for_itself_unless_it_is_none(
    character: str, engine: tuple[NameFormat, object]
) -> None:
    names, _ = engine
    is_none = unicodedata.category(character) == "Co" or ord(character) & 0xFFFE == 0xFFFE
    is_tag = 0xE0000 <= ord(character) < 0xE0080
    assert (character in names.name_of(character.encode())) is not (is_none or is_tag)


def test_a_plain_spelling_of_any_script_is_that_of_the_key() -> None:
    for text in ("room/\N{GRINNING FACE}", "\U00020000/x", "stra\u00dfe", "\u4e2d\u6587"):
        name = f"//sbus/bus/{text}"
        assert PEERS.key_of(name) == text.encode()
        assert PEERS.name_of(text.encode()) == name


simple = st.lists(st.sampled_from([b"a", b"b", b"*", b"", b"a*b", b"\xff"]), min_size=1, max_size=4).map(b"/".join)
plain = st.lists(st.sampled_from([b"a", b"b", b"c", b"\xff", b"a*b"]), min_size=1, max_size=5).map(b"/".join)


@given(simple, plain)
def test_a_filter_takes_no_more_where_a_star_is_a_whole_segment(pattern: bytes, key: bytes) -> None:
    for names, takes in ((NATS, nats_takes), (MQTT, mqtt_takes)):
        assert takes(names.filter_of(pattern), names.name_of(key)) == matches(pattern, key)


def test_all_cases_of_the_matching_rule() -> None:
    for is_match, pattern, key in vectors():
        for names, takes in ENGINES[:3]:
            if is_match:
                assert takes(names.filter_of(pattern), names.name_of(key)), (pattern, key)


@given(st.lists(simple | plain, min_size=1, max_size=5), plain | simple)
def test_filters_take_what_any_pattern_matches_and_none_takes_it_twice(patterns: list[bytes], key: bytes) -> None:
    for names, takes in ((NATS, nats_takes), (MQTT, mqtt_takes)):
        taking = sum(takes(one, names.name_of(key)) for one in names.filters_for(patterns))
        assert taking <= 1
        if any(matches(pattern, key) for pattern in patterns):
            assert taking == 1
            assert takes(names.filter_for(patterns), names.name_of(key))


@pytest.mark.parametrize(
    ("names", "pattern", "filter_"),
    [
        (NATS, b"room/*/", "sbus.room.*.>"),
        (NATS, b"", "sbus.>"),
        (NATS, b"a.b/ ", "sbus.a%2Eb.%20"),
        (NATS, b"a//b", "sbus.a.%.b"),
        (MQTT, b"room/*/temp", "sbus/room/+/temp"),
        (MQTT, b"room/", "sbus/room/+/#"),
        (MQTT, b"a//b", "sbus/a//b"),
        (REDIS, b"room/", "sbus/room/*"),
        (DOTTED, b"room.*", "room/+"),
        (DOTTED, b"$SYS.x", "%24SYS/x"),
    ],
)
def test_filters_of_patterns(names: NameFormat, pattern: bytes, filter_: str) -> None:
    assert names.filter_of(pattern) == filter_


@pytest.mark.parametrize("subject", ["", "sbus", "sbus.a%2eb", "sbus.%41", "sbus.a b", "sbus..", "other.a", "sbus.%00"])
def test_a_subject_that_is_written_in_another_way_stands_for_no_key(subject: str) -> None:
    with pytest.raises(NameFormatError):
        NATS.key_of(subject)


def test_patterns_that_overlap_become_one() -> None:
    assert apart([b"a/b", b"a/*", b"c/t*", b"d/"], b"/") == [b"a/*", b"c/*", b"d/"]
    assert apart([b"a/", b"*/b"], b"/") == [b"*/"]
    assert apart([b"a", b""], b"/") == [b""]
    assert apart([b"a/b/", b"a/*/c"], b"/") == [b"a/*/"]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (b"", "//sbus/bus/"),
        (b"room/1.2/temp", "//sbus/bus/room/1.2/temp"),
        (b"a b\r\n%", "//sbus/bus/a%20b%0D%0A%25"),
        ("né".encode(), "//sbus/bus/né"),
        (b"\xff\xc3", "//sbus/bus/%FF%C3"),
        (b"//fwd/", "//sbus/bus///fwd/"),
        (b"\x01\t\x7f", "//sbus/bus/%01%09%7F"),
    ],
)
def test_names_among_peers(key: bytes, name: str) -> None:
    assert PEERS.name_of(key) == name
    assert PEERS.key_of(name) == key


@given(keys, keys)
def test_every_key_has_its_own_name_among_peers_that_can_be_sent(one: bytes, two: bytes) -> None:
    name = PEERS.name_of(one)
    encode_publish(name, b"")
    assert PEERS.key_of(name) == one
    assert (name == PEERS.name_of(two)) is (one == two)


@pytest.mark.parametrize("text", ["%41", "%ff", "%", "%2", "%00", "\0", "a\0b", "%C3%A9", "a b"])
def test_names_among_peers_that_stand_for_no_key_are_refused(text: str) -> None:
    for name in ("//sbus/bus/" + text, "//sbus/other/a", text):
        with pytest.raises(NameFormatError):
            PEERS.key_of(name)


@given(keys, keys)
def test_the_name_of_a_key_that_matches_begins_as_the_pattern_says(pattern: bytes, extra: bytes) -> None:
    for key in (pattern, pattern + extra, pattern.replace(b"*", extra)):
        if matches(pattern, key):
            assert PEERS.name_of(key).startswith(PEERS.start_of(pattern))
