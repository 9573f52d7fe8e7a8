"""From the header of a message to its receivers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from sbuslib.core.quotas import Account, Quotas
from sbuslib.core.router import CACHED_HEADER_BYTES, COMPARED, Router
from sbuslib.errors import PacketError
from sbuslib.limits import Limits
from sbuslib.secrets import Credentials

ME = Credentials(gid=100, uid=1000, pid=4711)
OTHER = Credentials(gid=100, uid=1001, pid=4712)


def route(router: Router[str], key: bytes) -> set[str]:
    """The receivers, looked up anew and as remembered, which must be the same."""
    header = b"MSG %b\0" % key
    remembered = router.routes.get(header)
    found = router.route(header)
    assert len(set(found)) == len(found)
    assert remembered is None or set(remembered) == set(found)
    return set(found)


def new_router(separator: bytes = b"/", **limits: int) -> Router[Any]:
    bounds = Limits(**limits)
    return Router(bounds, Quotas(bounds, 100), separator)


def account(router: Router[Any]) -> Account:
    """The account that every subscriber here is charged to."""
    return router._quotas.account(ME.uid)


def leave(router: Router[Any], subscriber: object) -> None:
    """Retire a subscriber, and take everything it held out of the index."""
    router.retire(subscriber, account(router))
    while router.forget_some(1, ME.uid):
        pass


def router_of(pairs: Iterable[tuple[bytes, str]], **limits: int) -> Router[str]:
    router: Router[str] = new_router(b"/", **limits)
    for pattern, subscriber in pairs:
        router.subscribe(router.cut(pattern), subscriber, ME, account(router))
    return router


def test_limits_of_a_pattern() -> None:
    router = router_of([], pattern_bytes=10, pattern_segments=3, user_patterns=2)
    router.subscribe(router.cut(b"x" * 10), "x", ME, account(router))
    for pattern, reason in ((b"x" * 11, "pattern too long"), (b"a/b/c/", "pattern of too many segments")):
        with pytest.raises(PacketError, match=reason):
            router.subscribe(router.cut(pattern), "x", ME, account(router))
    router.subscribe(router.cut(b"a/b/c"), "x", ME, account(router))
    with pytest.raises(PacketError, match="too many patterns"):
        router.subscribe(router.cut(b"c"), "x", ME, account(router))
    with pytest.raises(PacketError, match="too many patterns"):
        router.subscribe(router.cut(b"c"), "y", ME, account(router))  # another client of the same user
    router.subscribe(router.cut(b"c"), "y", OTHER, router._quotas.account(OTHER.uid))


def test_a_count_of_a_pattern_that_is_held_is_not_another_pattern() -> None:
    router = router_of([(b"a", "x")], user_patterns=1)
    router.subscribe(router.cut(b"a"), "x", ME, account(router))
    assert router.patterns("x") == {b"a": 2}


def test_equal_receivers_are_one_object() -> None:
    router = router_of([(b"", "x"), (b"a", "y")])
    assert router.route(b"MSG k1\0") is router.route(b"MSG k2\0")


def test_remembered_routes_are_bounded() -> None:
    router = router_of([(b"", "x")], cached_keys=4)
    for number in range(100):
        assert route(router, b"%d" % number) == {"x"}
        assert len(router.routes) <= 4
    route(router, b"x" * CACHED_HEADER_BYTES)
    assert all(len(header) <= CACHED_HEADER_BYTES for header in router.routes)


def test_empty_segments_are_no_cheap_way_to_fill_the_index() -> None:
    router = router_of([], user_pattern_bytes=1_000)
    router.subscribe(router.cut(b"x" * 600), "x", ME, account(router))  # one key only: no node
    with pytest.raises(PacketError, match="too many patterns"):
        router.subscribe(router.cut(b"/" * 20), "x", ME, account(router))
    router.subscribe(router.cut(b"a/b/"), "x", ME, account(router))
    assert account(router).pattern_bytes == 600 + 4 + 3 * 32
    assert router.unsubscribe(b"a/b/", "x", account(router))
    assert account(router).pattern_bytes == 600
    router.subscribe(router.cut(b"*"), "x", ME, account(router))
    leave(router, "x")
    assert account(router).is_clear()


def test_remembered_receivers_are_bounded() -> None:
    """Subscribers that can be combined in as many ways as there are keys."""
    pairs = [(b"*/" * place + b"1/", f"{place}.{n}") for place in range(8) for n in range(10)]
    router = router_of(pairs, cached_receivers=1_000)
    for number in range(256):
        key = "/".join(f"{number:08b}").encode() + b"/x"
        assert len(route(router, key)) == 10 * number.bit_count()
        assert sum(map(len, set(router.routes.values()))) <= 1_080


@pytest.mark.promise("flood-control.md", "All patterns of one user together add at most 1,024 steps to a look-up")
def test_patterns_of_one_user_do_not_limit_another_user() -> None:
    router = router_of([(b"*/a", "x")], user_pattern_steps=2)
    with pytest.raises(PacketError, match="too many patterns"):
        router.subscribe(router.cut(b"**/a"), "x", ME, account(router))
    router.subscribe(router.cut(b"**/a"), "y", OTHER, router._quotas.account(OTHER.uid))
    router.unsubscribe(b"*/a", "x", account(router))
    router.subscribe(router.cut(b"**/a"), "x", ME, account(router))
    assert route(router, b"1/a") == {"x", "y"}


@pytest.mark.parametrize(
    "pattern", [b"*q", b"*/zz", b"room/*/zz", b"*/*/tx*", b"*/tem*/", b"*/*/t**", b"room/99/", b"q"]
)
def test_a_pattern_that_comes_and_goes_costs_no_route_that_it_does_not_match(pattern: bytes) -> None:
    router = router_of([(b"room/", "x")])
    for number in range(32):
        route(router, b"room/%d/temp" % number)
    remembered, version = dict(router.routes), router.version
    for _ in range(3):
        router.subscribe(router.cut(pattern), "toggler", ME, account(router))
        assert router.unsubscribe(pattern, "toggler", account(router))
    router.subscribe(router.cut(pattern), "toggler", ME, account(router))
    leave(router, "toggler")
    assert router.routes == remembered
    assert router.version == version, "caches elsewhere are still right"


def test_a_pattern_that_comes_or_goes_costs_the_routes_that_it_matches() -> None:
    keys = [b"room/1/temp", b"room/2/temp", b"room/1", b"hall", b"hall/1/temp/inside"]
    for pattern, matched in (
        (b"*/1/temp", {keys[0]}),
        (b"room/*", {keys[2]}),
        (b"*", {keys[3]}),
        (b"ha*", {keys[3]}),
        (b"hall", {keys[3]}),
        (b"h*/", {keys[4]}),
        (b"*/*/t*", {keys[0], keys[1]}),
        (b"room/", set(keys[:3])),
        (b"", set(keys)),
    ):
        router = router_of([(b"", "x")])
        for key in keys:
            route(router, key)
        version = router.version
        router.subscribe(router.cut(pattern), "y", ME, account(router))
        assert router.version > version
        headers = {b"MSG %b\0" % key for key in keys if key not in matched}
        assert set(router.routes) == headers
        for key in keys:
            assert route(router, key) == ({"x", "y"} if key in matched else {"x"})


def test_a_pattern_is_compared_with_a_bounded_number_of_remembered_keys() -> None:
    router = router_of([(b"room/", "x")])
    for number in range(COMPARED):
        router.route(b"MSG room/%d/temp\0" % number)
    router.subscribe(router.cut(b"*/*/tx*"), "y", ME, account(router))
    assert len(router.routes) == COMPARED
    router.route(b"MSG room/x/temp\0")
    router.subscribe(router.cut(b"*/*/ty*"), "y", ME, account(router))
    assert not router.routes


def test_a_receiver_that_leaves_makes_the_router_forget_only_routes_to_it() -> None:
    router = router_of([(b"room/", "x"), (b"hall/", "y"), (b"hall/*", "z")])
    for key in (b"room/1", b"hall/1", b"yard/1"):
        route(router, key)
    leave(router, "z")
    assert set(router.routes) == {b"MSG room/1\0", b"MSG yard/1\0"}
    assert route(router, b"hall/1") == {"y"}
    version = router.version
    router.subscribe(router.cut(b"far/"), "z", ME, account(router))
    leave(router, "z")
    assert router.version == version
