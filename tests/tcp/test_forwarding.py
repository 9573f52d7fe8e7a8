"""The forwarding convention's rules, without any connection."""

from __future__ import annotations

import pytest

from sbuslib.errors import UsageError
from sbuslib.tcp.forwarding import Forwarding, Seen, digest_of, number, unnumber
from sbuslib.tcp.limits import TcpLimits


def test_names_of_copies() -> None:
    forwarding = Forwarding(["//myorg/chat", "other/"])
    assert forwarding.copy_of("//myorg/chat") == "//fwd/myorg/chat"
    assert forwarding.copy_of("//myorg/chat/main") == "//fwd/myorg/chat/main"
    assert forwarding.copy_of("//other") == "//fwd/other"
    for name in ("//myorg/chatter", "//myorg", "/myorg/chat", "myorg/chat", "//fwd/myorg/chat", ""):
        assert forwarding.copy_of(name) is None, name
    assert forwarding.plain_of("//fwd/myorg/chat/main") == "//myorg/chat/main"
    for name in ("//fwd/myorg", "//fwd/fwd/other", "//myorg/chat", "//fwd/"):
        assert forwarding.plain_of(name) is None, name
    assert forwarding.substrings() == ["//myorg/chat", "//fwd/myorg/chat", "//other", "//fwd/other"]
    assert not Forwarding()


@pytest.mark.parametrize("names", ["text", [""], ["//"], ["/"]])
def test_names_that_cannot_be_forwarded_are_refused(names: list[str]) -> None:
    with pytest.raises(UsageError):
        Forwarding(names)


def test_numbers_of_messages_are_parsed() -> None:
    assert unnumber(number("//fwd/a", "r12.3", 4)) == ("//fwd/a", "r12.3", 4)
    for name in ("//hop/", "//hop/4/r1", "//hop/4/r1/a", "//hop/x/r1//a", "//hop/1/R!//a", "//hop/1000/r1//a", "//a"):
        assert unnumber(name) is None, name


def test_an_id_is_new_once() -> None:
    seen = Seen(TcpLimits(seen=8))
    trace, new = seen.numbered("r1", "d", 0)
    assert new
    trace.add("somebody")
    assert seen.numbered("r1", "d", 0) == ({"somebody"}, False)
    assert seen.numbered("r2", "d", 0) == (set(), True)
    for number_ in range(8):
        seen.numbered(f"later{number_}", "d", 0)
    assert seen.numbered("r1", "d", 0) == (set(), True)  # long forgotten: the table is bounded


def test_equal_data_later_is_another_message() -> None:
    seen = Seen(TcpLimits(same_seconds=2))
    digest = digest_of("//a", b"hi")
    assert seen.numbered(f"x{digest}.1", digest, 10)[1]
    assert not seen.direct(digest, 11)[2]
    assert seen.direct(digest, 20)[2]


def test_copies_without_ids_are_counted_by_connection() -> None:
    seen = Seen(TcpLimits())
    digest = digest_of("//a", b"hi")
    assert seen.copy(digest, "one", 0) is not None
    assert seen.copy(digest, "two", 0) is None  # the same, by another way
    assert seen.copy(digest, "two", 0) is not None  # a second equal one
    assert seen.copy(digest, "one", 0) is None
    assert seen.held_back == 2


def test_an_own_copy_that_comes_back_without_its_id_is_recognized() -> None:
    seen = Seen(TcpLimits())
    digest = digest_of("//a", b"hi")
    seen.numbered("r1", digest, 0)
    assert seen.copy(digest, "one", 50) is None
