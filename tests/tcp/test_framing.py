"""The grammar: byte scripts fed whole, byte by byte and in random cuts, and bytes that mean nothing."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbuslib.errors import FramingError, NameFormatError, PayloadError, UsageError
from sbuslib.tcp.framing import (
    Command,
    CommandParser,
    Publish,
    Sub,
    Unsub,
    encode_publish,
    encode_subscribe,
    encode_unsubscribe,
)
from sbuslib.tcp.limits import TcpLimits

SMALL = TcpLimits(name_bytes=12, data_bytes=20, cached_names=2)

GOOD: list[tuple[bytes, list[Command]]] = [
    (b"", []),
    (b"pub //o/chat 5 hello\n", [Publish("//o/chat", b"hello")]),
    (b"sub //o/chat/\n", [Sub("//o/chat/")]),
    (b"unsub //o/chat/\n", [Unsub("//o/chat/")]),
    (b"sub \nunsub \n", [Sub(""), Unsub("")]),
    (b"pub a 0 \n", [Publish("a", b"")]),
    (b"pub a 05 hello\n", [Publish("a", b"hello")]),
    (b"pub a 0000000000000000001 x\n", [Publish("a", b"x")]),
    (b"pub a 1 \n\n", [Publish("a", b"\n")]),
    (b"pub a 2 \r\n\n", [Publish("a", b"\r\n")]),
    (b"pub a 10 pub b 1 x\n\n", [Publish("a", b"pub b 1 x\n")]),
    (b"pub a 4 \xff\x00\xfe \n", [Publish("a", b"\xff\x00\xfe ")]),
    (b"pub \xc3\xa9 2 \xc3\xa9\nsub \xc3\xa9\n", [Publish("é", b"\xc3\xa9"), Sub("é")]),
    (b"pub a\x00\tb 1 x\n", [Publish("a\x00\tb", b"x")]),
    (
        b"pub a 1 x\npub a 1 y\npub a 2 zz\npub b 1 x\n",
        [Publish(*m) for m in [("a", b"x"), ("a", b"y"), ("a", b"zz"), ("b", b"x")]],
    ),
    (b"pub a 1 x\nsub a\npub a 1 y\n", [Publish("a", b"x"), Sub("a"), Publish("a", b"y")]),
    (b"pub pub 3 sub\nsub sub\nsub pub\n", [Publish("pub", b"sub"), Sub("sub"), Sub("pub")]),
    (b"pub a 2 1 \npub 1 1 x\n", [Publish("a", b"1 "), Publish("1", b"x")]),
    (b"pub " + b"n" * 12 + b" 20 " + b"d" * 20 + b"\n", [Publish("n" * 12, b"d" * 20)]),
    (b"sub " + b"n" * 12 + b"\n", [Sub("n" * 12)]),
    (b"".join(b"pub %d 1 x\n" % n for n in range(9)), [Publish(str(n), b"x") for n in range(9)]),
]

BAD: dict[str, list[bytes]] = {
    "malformed command": [
        *(b"\n", b" ", b"pubx a 1 x\n", b"PUB a 1 x\n", b"sub\n", b"get / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00"),
        *(b"un sub a\n", b"pub  1 x\n", b"pub a x x\n", b"pub a -1 x\n", b"pub a +1 x\n", b"pub a 1_0 x\n"),
        *(b"pub a 0x1 x\n", b"pub a 1\n", b"pub a  x\n", "pub a \u0661 x\n".encode(), b"pub a 99999999999999999999"),
        *(b"pub a 00000000000000000001 x\n", b"pub " + b"n" * 13 + b" 1 x\n", b"pub " + b"n" * 13, b"sub " + b"n" * 13),
        *(b"sub a\r\n", b"sub a b\n", b"pub a\n", b"pub a\r 1 x\n"),
    ],
    "data too long": [b"pub a 21 " + b"d" * 21 + b"\n", b"pub a 21 "],
    "no LF after the data": [b"pub a 1 xy\n", b"pub a 1 x\r\n", b"pub a 0 pub b"],
    "name is not UTF-8": [b"pub \xff 1 x\n", b"sub \xc3\n", b"pub \xed\xa0\x80 1 x\n"],
}


def feed(pieces: list[bytes], limits: TcpLimits = SMALL) -> tuple[list[Command], str | None]:
    """What came of the pieces, and why it ended."""
    parser = CommandParser(limits)
    found: list[Command] = []
    for piece in pieces:
        try:
            found += parser.feed(piece)
        except FramingError as error:
            return [*found, *error.commands], error.reason
    return found, None


def cuts_of(script: bytes, at: list[int]) -> list[bytes]:
    places = sorted({place % (len(script) + 1) for place in at})
    return [script[start:end] for start, end in zip([0, *places], [*places, len(script)], strict=True)]


def test_a_script_means_the_same_whole_and_byte_by_byte() -> None:
    for script, commands in GOOD:
        assert feed([script]) == (commands, None), script
        assert feed([script[at : at + 1] for at in range(len(script))]) == (commands, None), script


@given(st.permutations(GOOD), st.lists(st.integers(min_value=0, max_value=10_000)))
def test_scripts_follow_each_other(cases: list[tuple[bytes, list[Command]]], at: list[int]) -> None:
    whole = b"".join(script for script, _ in cases)
    assert feed(cuts_of(whole, at)) == ([command for _, commands in cases for command in commands], None)


@pytest.mark.parametrize("reason", BAD)
def test_bytes_that_are_no_command_are_refused_with_a_reason(reason: str) -> None:
    before = [Publish("a", b"x"), Sub("b")]
    for script in BAD[reason]:
        for pieces in ([b"pub a 1 x\nsub b\n" + script], [b"pub a 1 x\nsub b\n", script]):
            assert feed(pieces) == (before, reason), script
        assert feed([script[at : at + 1] for at in range(len(script))]) == ([], reason), script


def test_after_an_error_there_are_no_more_commands_and_nothing_is_held() -> None:
    parser = CommandParser(SMALL)
    with pytest.raises(FramingError, match="data too long"):
        parser.feed(b"pub a 999999999 ")
    assert parser.pending == 0
    with pytest.raises(FramingError, match="data too long") as caught:
        parser.feed(b"pub a 1 x\n")
    assert list(caught.value.commands) == []


def test_the_end_inside_a_command_is_an_error() -> None:
    parser = CommandParser()
    parser.finish()
    assert parser.feed(b"pub a 3 xy") == []
    assert parser.pending == 10
    with pytest.raises(FramingError, match="ended inside a command"):
        parser.finish()


words = st.sampled_from([b"pub ", b"sub ", b"unsub ", b"a", b" ", b"1", b"20", b"\n", b"\r", b"x", b"\xc3"])


@given(st.binary(max_size=300) | st.lists(words).map(b"".join), st.lists(st.integers(min_value=0, max_value=300)))
def test_any_bytes_mean_the_same_however_they_are_cut_and_little_is_held(data: bytes, at: list[int]) -> None:
    longest = len(b"unsub ") + SMALL.name_bytes + 21 + SMALL.data_bytes + 1
    pieces = cuts_of(data, at)
    assert feed(pieces) == feed([data])
    parser = CommandParser(SMALL)
    with suppress(FramingError):
        for piece in pieces:
            parser.feed(piece)
            assert parser.pending <= longest


def test_long_data_that_is_not_whole_costs_little_more_than_its_size() -> None:
    limits = TcpLimits(data_bytes=1_000_000)
    parser = CommandParser(limits)
    parser.feed(b"pub a 1000000 ")
    for _ in range(200_000):
        parser.feed(b"x")
    held = sum(sys.getsizeof(value) for value in vars(parser).values())
    assert parser.pending == 200_014
    assert held < 400_000


names = st.text(st.characters(codec="utf-8", exclude_characters=" \r\n"), min_size=1, max_size=50)


@given(
    st.lists(
        st.one_of(
            st.builds(Publish, names, st.binary(max_size=100)),
            st.builds(Sub, names),
            st.builds(Unsub, names),
        )
    )
)
def test_encoded_commands_are_parsed_back(commands: list[Any]) -> None:
    encoded = b""
    for command in commands:
        if isinstance(command, Publish):
            encoded += encode_publish(command.name, command.data)
        else:
            encode = encode_subscribe if isinstance(command, Sub) else encode_unsubscribe
            encoded += encode(command.substring)
    assert feed([encoded], TcpLimits()) == (commands, None)


@pytest.mark.parametrize("name", ["", "a b", "a\n", "\ra", "\ud800", b"bytes", "n" * 13])
def test_names_that_cannot_be_sent_are_refused(name: Any) -> None:
    with pytest.raises(NameFormatError):
        encode_publish(name, b"", SMALL)
    if name:
        with pytest.raises(UsageError):
            encode_subscribe(name, SMALL)


@pytest.mark.parametrize("data", ["text", b"d" * 21, None])
def test_data_that_cannot_be_sent_is_refused(data: Any) -> None:
    with pytest.raises((PayloadError, TypeError)):
        encode_publish("a", data, SMALL)
