"""Under which names messages cross a gateway: without a bus or a peer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbuslib.errors import NameFormatError, UsageError
from sbuslib.matcher import matches
from sbuslib.tcp.framing import encode_publish
from sbuslib.tcp.names import Names

names = Names("bus")
keys = st.binary(max_size=60).filter(lambda key: b"\0" not in key) | st.text(max_size=30).map(
    lambda text: text.replace("\0", "").encode()
)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (b"", "//sbus/bus/"),
        (b"room/1/temp", "//sbus/bus/room/1/temp"),
        (b"a b\r\n%", "//sbus/bus/a%20b%0D%0A%25"),
        ("né".encode(), "//sbus/bus/né"),
        (b"\xff\xc3", "//sbus/bus/%FF%C3"),
        (b"\xed\xa0\x80", "//sbus/bus/%ED%A0%80"),
        (b"%41", "//sbus/bus/%2541"),
        (b"//fwd/", "//sbus/bus///fwd/"),
        (b"\x01\t\x7f", "//sbus/bus/\x01\t\x7f"),
    ],
)
def test_names_of_keys(key: bytes, name: str) -> None:
    assert names.name_of(key) == name
    assert names.key_of(name) == key
    assert names.key_of("//fwd/" + name[2:]) == key


@given(keys)
def test_every_key_has_a_name_that_can_be_sent_and_comes_back(key: bytes) -> None:
    name = names.name_of(key)
    encode_publish(name, b"")
    assert names.key_of(name) == key


@given(keys, keys)
def test_different_keys_have_different_names(one: bytes, two: bytes) -> None:
    assert (names.name_of(one) == names.name_of(two)) is (one == two)


@given(st.text(max_size=20))
def test_a_name_that_decodes_to_a_key_is_the_name_of_that_key(text: str) -> None:
    name = names.prefix + text
    try:
        key = names.key_of(name)
    except NameFormatError:
        return
    assert names.name_of(key) == name


@pytest.mark.parametrize(
    "name",
    ["//sbus/bus/%41", "//sbus/bus/%ff", "//sbus/bus/%", "//sbus/bus/%2", "//sbus/bus/%00", "//sbus/bus/\0",
     "//sbus/bus/%C3%A9", "//sbus/other/a", "/sbus/bus/a", "//sbus/bus/a b", ""],
)  # fmt: skip
def test_names_that_stand_for_no_key_are_refused(name: str) -> None:
    with pytest.raises(NameFormatError):
        names.key_of(name)


@given(st.lists(st.sampled_from([b"a", b"/", b"*", b" ", b"\xc3", b"\xa9", b"%"]), max_size=8).map(b"".join), keys)
def test_every_name_of_a_key_that_matches_contains_the_substring(pattern: bytes, extra: bytes) -> None:
    for key in (pattern, pattern + extra, pattern.replace(b"*", extra)):
        if matches(pattern, key):
            assert names.substring_for(pattern) in names.name_of(key)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é"])
def test_a_name_of_a_bus_that_is_no_word_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        Names(name)
