"""Matching: the index, the router and secrets beside plain models."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbuslib.core.quotas import Quotas
from sbuslib.core.router import Router
from sbuslib.errors import ReservedKeyError
from sbuslib.limits import Limits
from sbuslib.matcher import Pattern, Shapes, Subscriptions, _Node, matches
from sbuslib.secrets import Credentials, Namespace
from sbuslib.wire.packets import message_header

# -- The plain function, the steps of a look-up, and an index beside a dictionary

SEPARATORS = st.sampled_from([b"/", b".", b"a", b"\x7f"])

TEXTS = st.one_of(
    st.lists(st.sampled_from([b"/", b"*", b"a", b"b", b"!", b".", b"\x7f", b"\xff", b"//", b"**"]), max_size=14).map(
        b"".join
    ),
    st.binary(max_size=12),
)


WILD = st.lists(st.sampled_from([b"*", b"**", b"a*", b"a**", b"ab*", b"a", b"*a"]), min_size=1, max_size=4).map(
    b"/".join
)


def count_visits(index: Subscriptions[Any]) -> set[int]:
    """A set to which the number of each node is added that is visited from now on. The index must be empty as yet."""
    visited: set[int] = set()

    class Counted(_Node[Any]):
        """A node that notes when somebody looks whose pattern ends in it, which each visit does."""

        __slots__ = ("_below", "_here")

        @property
        def below(self) -> dict[Any, None] | None:
            visited.add(id(self))
            return self._below

        @below.setter
        def below(self, subscribers: dict[Any, None] | None) -> None:
            self._below = subscribers

        @property
        def here(self) -> dict[Any, None] | None:
            visited.add(id(self))
            return self._here

        @here.setter
        def here(self, subscribers: dict[Any, None] | None) -> None:
            self._here = subscribers

    assert not index._root.children
    index._root = Counted()
    return visited


@pytest.mark.promise("flood-control.md", "All patterns of one user together add at most 1,024 steps to a look-up")
@settings(max_examples=300)
@given(patterns=st.lists(WILD, max_size=40), keys=st.lists(WILD | TEXTS, min_size=1, max_size=6))
def test_a_look_up_visits_no_more_nodes_than_the_shapes_have_steps(patterns: list[bytes], keys: list[bytes]) -> None:
    index: Subscriptions[bytes] = Subscriptions(b"/")
    visited = count_visits(index)
    shapes = Shapes()
    for pattern in patterns:
        index.add(Pattern(pattern, b"/"), pattern)
        shapes.add(Pattern(pattern, b"/").shape)
    deepest = max((pattern.count(b"/") + 1 for pattern in patterns), default=0)
    for key in keys:
        visited.clear()
        index.subscribers(key)
        assert len(visited) <= shapes.steps + deepest + 1


@given(pattern=TEXTS, key=TEXTS, separator=SEPARATORS)
def test_the_plain_function_is_the_rule_as_it_is_worded(pattern: bytes, key: bytes, separator: bytes) -> None:
    """Written down once more, step by step."""

    def walk(p: int, k: int) -> bool:
        if k == len(key):
            return p == len(pattern)
        if p == len(pattern):
            return pattern == b"" or pattern.endswith(separator)
        if pattern[p] == key[k]:
            return walk(p + 1, k + 1)
        if pattern[p : p + 1] == b"*":
            while k < len(key) and key[k : k + 1] != separator:
                k += 1
            return walk(p + 1, k)
        return False

    assert matches(pattern, key, separator) is walk(0, 0)


@given(pattern=TEXTS, key=TEXTS, separator=SEPARATORS)
def test_a_literal_pattern_matches_itself_alone(pattern: bytes, key: bytes, separator: bytes) -> None:
    if Pattern(pattern, separator).is_literal:
        assert matches(pattern, key, separator) is (pattern == key)


class IndexMachine(RuleBasedStateMachine):
    """Any history of adds, removes and discards beside a plain dictionary of the same."""

    @initialize(separator=SEPARATORS)
    def begin(self, separator: bytes) -> None:
        self.separator = separator
        self.index: Subscriptions[int] = Subscriptions(separator)
        self.model: dict[int, dict[bytes, int]] = {}
        self.asked: list[bytes] = []

    @rule(pattern=TEXTS, subscriber=st.integers(0, 3))
    def add(self, pattern: bytes, subscriber: int) -> None:
        held = self.model.setdefault(subscriber, {})
        assert self.index.add(Pattern(pattern, self.separator), subscriber) is (pattern not in held)
        held[pattern] = held.get(pattern, 0) + 1

    @rule(data=st.data(), subscriber=st.integers(0, 3))
    def remove(self, data: st.DataObject, subscriber: int) -> None:
        held = self.model.get(subscriber, {})
        pattern = data.draw(st.sampled_from(sorted(held)) | TEXTS if held else TEXTS)
        if pattern not in held:
            assert self.index.remove(Pattern(pattern, self.separator), subscriber) is None
            return
        held[pattern] -= 1
        assert self.index.remove(Pattern(pattern, self.separator), subscriber) is (held[pattern] == 0)
        if not held[pattern]:
            del held[pattern]

    @rule(subscriber=st.integers(0, 3))
    def discard_one(self, subscriber: int) -> None:
        held = self.model.get(subscriber, {})
        gone = self.index.discard_one(subscriber)
        if gone is None:
            assert not held
        else:
            del held[gone.raw]

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        patterns = sorted({*self.index.everything()})
        key = data.draw(st.sampled_from(patterns) | TEXTS if patterns else TEXTS)
        self.asked.append(key)
        expected = {who for who, held in self.model.items() if any(matches(p, key, self.separator) for p in held)}
        found = self.index.subscribers(key)
        assert set(found) == expected
        assert len(found) == len(expected), "each once"

    @invariant()
    def books_agree(self) -> None:
        patterns = {pattern for held in self.model.values() for pattern in held}
        assert {*self.index.everything()} == patterns
        assert (len(self.index), self.index.distinct()) == (sum(map(len, self.model.values())), len(patterns))
        for subscriber in range(4):
            held = self.model.get(subscriber, {})
            assert (self.index.patterns(subscriber), self.index.count(subscriber)) == (held, len(held))
        for pattern in patterns:
            assert {*self.index.holders(pattern)} == {who for who, held in self.model.items() if pattern in held}

    def teardown(self) -> None:
        if not hasattr(self, "index"):
            return
        for subscriber in range(4):
            while self.index.discard_one(subscriber) is not None:
                pass
        assert len(self.index) == 0
        for key in self.asked:
            assert self.index.subscribers(key) == ()
        fresh: Subscriptions[int] = Subscriptions(self.separator)
        assert shape(self.index) == shape(fresh), "memory is left behind"


def shape(value: object) -> object:
    """What an object is made of, all the way down; an empty container counts for none."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()} or None
    if isinstance(value, (list, tuple, set, frozenset)):
        return [shape(inner) for inner in value] or None
    names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
    if type(value).__module__.startswith("sbuslib"):
        return {name: shape(getattr(value, name)) for name in names}
    return value


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60)


# -- The router: what is remembered is what would be found

ME = Credentials(gid=1, uid=2, pid=3)

ROUTED = st.lists(st.sampled_from([b"/", b"*", b"a", b"b", b"!/cred/1/2/3/"]), max_size=5).map(b"".join).filter(
    lambda text: b"!" not in text or (text.startswith(b"!/cred/1/2/3/") and text.count(b"!") == 1)
)  # fmt: skip


class RouterMachine(RuleBasedStateMachine):
    """Subscriptions, taps and routes in any order, with a cache so small that it is always overflowing."""

    @initialize(cached=st.integers(1, 6))
    def begin(self, cached: int) -> None:
        limits = Limits(cached_keys=cached)
        self.patch = mock.patch("sbuslib.core.router.CACHED_HEADER_BYTES", 25)
        self.patch.start()
        self.quotas = Quotas(limits, 100)
        self.account = self.quotas.account(ME.uid)
        self.router: Router[str] = Router(limits, self.quotas, b"/")
        self.held: dict[str, dict[bytes, int]] = {}
        self.taps: dict[str, bool] = {}

    def leave(self, who: str) -> None:
        self.router.retire(who, self.account)
        while self.router.forget_some(1, self.account.uid):
            pass

    @rule(pattern=ROUTED, who=st.sampled_from("xyz"))
    def subscribe(self, pattern: bytes, who: str) -> None:
        self.router.subscribe(self.router.cut(pattern), who, ME, self.account)
        held = self.held.setdefault(who, {})
        held[pattern] = held.get(pattern, 0) + 1

    @rule(pattern=ROUTED, who=st.sampled_from("xyz"))
    def unsubscribe(self, pattern: bytes, who: str) -> None:
        held = self.held.get(who, {})
        assert self.router.unsubscribe(pattern, who, self.account) is (pattern in held)
        if pattern in held:
            held[pattern] -= 1
            if not held[pattern]:
                del held[pattern]

    @rule(who=st.sampled_from("xyz"))
    def discard(self, who: str) -> None:
        self.leave(who)
        self.held.pop(who, None)

    @rule(who=st.sampled_from("tu"), secrets=st.booleans())
    def tap(self, who: str, secrets: bool) -> None:
        self.router.add_tap(who, secrets)
        self.taps[who] = secrets

    @rule(who=st.sampled_from("tu"))
    def untap(self, who: str) -> None:
        self.leave(who)
        self.taps.pop(who, None)

    @rule(key=ROUTED)
    def route(self, key: bytes) -> None:
        secret = key.startswith(b"!")
        expected = {
            who
            for who, held in self.held.items()
            if any(matches(pattern, key) and pattern.startswith(b"!") is secret for pattern in held)
        } | {who for who, secrets in self.taps.items() if secrets or not secret}
        header = message_header(key)
        for found in (self.router.routes.get(header), self.router.route(header), self.router.routes.get(header)):
            assert found is None or (set(found) == expected and len(found) == len(expected))

    def teardown(self) -> None:
        if hasattr(self, "router"):
            for who in "xyztu":
                self.leave(who)
            assert self.router.pattern_count() == 0
            assert self.quotas.is_clear()
            self.patch.stop()


TestRouterMachine = RouterMachine.TestCase
TestRouterMachine.settings = settings(max_examples=60)


# -- No client subscribes to secrets of another process, whatever it tries

IDS = st.sampled_from([0, 1, 7, 42, 65534, 2**31 - 1])

CREDENTIALS = st.builds(Credentials, gid=IDS, uid=IDS, pid=IDS)

PIECES = st.sampled_from(
    b"!,cred,,*,**,0,1,7,42,65534,07,+7,-1,1 ,0x1,\xd9\xa1,4*,x,!x,!*,Cred,creds".split(b","),
)

SECRET_TEXTS = st.one_of(
    st.lists(PIECES, max_size=9).map(b"/".join),
    st.lists(PIECES, max_size=6).map(lambda rest: b"/".join([b"!", b"cred", *rest])),
    st.lists(st.sampled_from([b"!", b"/", b"*", b"a"]), max_size=8).map(b"".join),
    st.binary(max_size=10).map(lambda text: text.replace(b"\0", b"")),
)

SECRETS = st.builds(
    lambda ids, rest: b"!/cred/" + b"/".join([*ids, rest]),
    st.tuples(*[st.sampled_from([b"", b"0", b"1", b"7", b"42", b"65534"])] * 3),
    SECRET_TEXTS,
)


@given(pattern=SECRET_TEXTS, credentials=CREDENTIALS)
@example(pattern=b"!/cred//1//", credentials=Credentials(gid=1, uid=1, pid=0))
def test_a_secret_pattern_that_is_accepted_names_only_own_ids(pattern: bytes, credentials: Credentials) -> None:
    try:
        secret = Namespace().check_pattern(pattern, credentials)
    except ReservedKeyError:
        assert b"!" in pattern.split(b"/")
        return
    assert secret is (b"!" in pattern.split(b"/"))
    if secret:
        found = re.match(rb"!/cred/([0-9]*)/([0-9]*)/([0-9]*)/", pattern)
        assert found
        for named, own in zip(found.groups(), credentials.known(), strict=True):
            assert named in (b"", b"%d" % own if own is not None else b"")


@given(credentials=CREDENTIALS, which=st.tuples(st.booleans(), st.booleans(), st.booleans()), rest=SECRET_TEXTS)
def test_a_pattern_of_ones_own_is_accepted(credentials: Credentials, which: tuple[bool, ...], rest: bytes) -> None:
    ids = [
        b"%d" % own if own is not None and named else b"" for own, named in zip(credentials.known(), which, strict=True)
    ]
    assert Namespace().check_pattern(b"!/cred/" + b"/".join([*ids, rest]), credentials) is True


@given(key=SECRET_TEXTS)
def test_a_key_is_plain_secret_or_refused(key: bytes) -> None:
    reserved = b"!" in key.split(b"/")
    try:
        secret = Namespace().check_key(key)
    except ReservedKeyError:
        assert reserved
        return
    assert secret is reserved
    if secret:
        assert re.match(rb"!/cred/[0-9]*/[0-9]*/[0-9]*/", key)


@pytest.mark.promise(
    "security.md", "What is sent to a secret key reaches only a client with its credentials, or nobody"
)
@given(
    subscriptions=st.lists(st.tuples(st.one_of(SECRET_TEXTS, SECRETS), CREDENTIALS), max_size=12),
    key=st.one_of(SECRETS, SECRET_TEXTS),
)
def test_a_secret_reaches_only_the_process_that_it_names(
    subscriptions: list[tuple[bytes, Credentials]], key: bytes
) -> None:
    """Through the router, cold and remembered, whatever else is subscribed to."""
    quotas = Quotas(Limits(), 100)
    router: Router[tuple[int, Credentials]] = Router(Limits(), quotas, b"/")
    for number, (pattern, credentials) in enumerate(subscriptions):
        try:
            account = quotas.account(credentials.uid)
            router.subscribe(router.cut(pattern), (number, credentials), credentials, account)
        except ReservedKeyError:
            continue
    try:
        receivers = router.route(message_header(key))
    except ReservedKeyError:
        return
    assert router.route(message_header(key)) == receivers
    if not router.namespace.is_secret(key):
        return
    ids = key.split(b"/")[2:5]
    for number, credentials in receivers:
        assert subscriptions[number][0].startswith(b"!/cred/")
        for named, own in zip(ids, credentials.known(), strict=True):
            assert named in (b"", b"%d" % own if own is not None else b"")


@given(credentials=CREDENTIALS, prefix=CREDENTIALS, rest=SECRET_TEXTS)
def test_below_a_prefix_only_patterns_with_the_prefix_are_accepted(
    credentials: Credentials, prefix: Credentials, rest: bytes
) -> None:
    root = Namespace()
    slave = Namespace(prefix=root.credential_key(prefix) + b"/")
    own = slave.credential_key(credentials)
    for pattern in (b"!/cred////" + rest, root.credential_key(credentials) + b"/" + rest):
        if not pattern.startswith(slave.prefix + b"!/cred/"):
            try:
                slave.check_pattern(pattern, credentials)
            except ReservedKeyError:
                continue
            raise AssertionError(pattern)
    if None not in credentials.known():
        assert slave.check_pattern(own + b"/" + rest, credentials) is True
