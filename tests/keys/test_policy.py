"""Who may do what: secrets, rules, and which pattern covers which."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbuslib.errors import ReservedKeyError, UsageError
from sbuslib.keys.policy import Policy, Rule, Scope, User, Verb, check_template
from sbuslib.matcher import matches
from sbuslib.secrets import OVERFLOW_ID, Credentials, Namespace

# -- The rules of a policy, one by one, and against a plain model

NOBODY = User(b"", frozenset())

USERS = {1: User(b"ann", frozenset({10})), 2: User(b"bob", frozenset({10, 20})), 3: User(b"", frozenset())}


def policy(*rules: Rule, separator: bytes = b"/") -> Policy:
    return Policy(rules, lambda uid: USERS.get(uid, NOBODY), separator)


def ask(policy: Policy, uid: int, verb: Verb, key: bytes) -> bool:
    return policy(Credentials(gid=0, uid=uid, pid=1), verb, key)


def test_a_pattern_may_be_subscribed_to_if_all_that_it_matches_may_be_read() -> None:
    one = policy(Rule(everybody=True, subscribe=(b"room/*/temp", b"log/")))
    for pattern in (b"room/*/temp", b"room/1/temp", b"log/", b"log/x/"):
        assert ask(one, 1, "subscribe", pattern)
    for pattern in (b"", b"room/", b"*/1/temp", b"log", b"l*/", b"room/**/temp"):
        assert not ask(one, 1, "subscribe", pattern)
    assert not ask(one, 1, "publish", b"log/x")


@pytest.mark.parametrize("name", [b"ann.x", b"*", b"a*", b"!", b"", b"x\0"])
def test_a_name_that_is_more_than_one_plain_segment_stands_in_no_pattern(name: bytes) -> None:
    one = Policy([Rule(everybody=True, publish=(b"t.%u.", b"own.%u"))], lambda uid: User(name, frozenset()), b".")
    assert one.scope(1) == Scope([], [], b"/")


def test_a_user_costs_no_look_at_the_rules_of_others() -> None:
    looked_at: list[frozenset[int]] = []

    class Watched(Rule, frozen=True):
        def templates(self) -> tuple[tuple[Verb, tuple[bytes, ...]], ...]:
            looked_at.append(self.users or self.groups)
            return super().templates()

    rules = [Watched(users=frozenset({uid}), publish=(b"t/%u",)) for uid in range(100)]
    one = policy(*rules, Watched(groups=frozenset({10}), publish=(b"g",)), Watched(groups=frozenset({9})))
    assert one.scope(1) == Scope([b"t/ann", b"g"], [], b"/")
    assert looked_at == [frozenset({1}), frozenset({10})]


def test_an_unknown_user_is_one_of_everybody_and_no_more() -> None:
    def look_up(uid: int) -> User:
        raise AssertionError("it may be any user")

    one = Policy([Rule(users=frozenset({OVERFLOW_ID}), publish=(b"a",))], look_up, b"/")
    assert ask(one, OVERFLOW_ID, "publish", b"a"), "somebody wrote down just this number"
    other = Policy(
        [Rule(everybody=True, publish=(b"b", b"%u")), Rule(users=frozenset({1}), publish=(b"c",))], look_up, b"/"
    )
    assert other.scope(OVERFLOW_ID) == Scope([b"b"], [], b"/")


def test_the_rule_that_decided_is_named() -> None:
    first = Rule(users=frozenset({1}), publish=(b"a",))
    second = Rule(groups=frozenset({10}), publish=(b"x", b"t/%u/"), subscribe=(b"t/",))
    one = policy(first, second)
    answer = one.explain(1, "publish", b"t/ann/1")
    assert (answer.allowed, answer.rule, answer.template, answer.pattern) == (True, second, b"t/%u/", b"t/ann/")
    assert one.explain(2, "subscribe", b"t/*").rule is second
    assert not one.explain(3, "publish", b"a").allowed
    assert one.explain(3, "subscribe", b"!/cred/1/2/3/x").is_secret


@pytest.mark.parametrize("pattern", [b"%g", b"%", b"a%%%", b"%%%U"])
def test_a_percent_sign_that_stands_for_nothing_is_an_error(pattern: bytes) -> None:
    with pytest.raises(UsageError, match="percent"):
        check_template(pattern)


# -- against a plain model ------------------------------------------------------------------------------

SEGMENTS = [b"a", b"*", b"a*", b"**", b"!", b"cred", b"ann", b"bob", b"%", b""]

KEYS = [
    b"/".join(parts) for size in (1, 2, 3) for parts in itertools.product([b"a", b"ab", b"*", b"ann", b""], repeat=size)
]

template = st.lists(st.sampled_from([*SEGMENTS[:-2], b"%%", b"%u", b"%u*", b""]), min_size=1, max_size=3).map(b"/".join)

pattern = st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=3).map(b"/".join)

templates = st.lists(template, max_size=3).map(tuple)

rules = st.lists(
    st.builds(
        Rule,
        users=st.frozensets(st.sampled_from([1, 2, 3])),
        groups=st.frozensets(st.sampled_from([10, 20])),
        everybody=st.booleans(),
        publish=templates,
        subscribe=templates,
    ),
    max_size=3,
)


def is_reserved(key: bytes) -> bool:
    return b"!" in key.split(b"/")


@pytest.mark.promise("configuration.md", "As soon as there is one rule, a user whom no rule names may do nothing")
@settings(max_examples=300)
@given(
    rules,
    st.sampled_from([1, 2, 3]),
    st.lists(pattern, min_size=1, max_size=5),
    st.sampled_from(["publish", "subscribe"]),
)
def test_answers_are_those_of_a_plain_model(made: list[Rule], uid: int, asked: list[bytes], verb: Verb) -> None:
    """The model walks through the rules, and tries out all short keys where the policy compares patterns."""
    user = USERS[uid]
    mine = [
        one.replace(b"%u", user.name).replace(b"%%", b"%")
        for rule in made
        if rule.everybody or uid in rule.users or user.groups & rule.groups
        for one in (rule.publish if verb == "publish" else rule.subscribe)
        if user.name or b"%u" not in one
    ]
    whole = policy(*made)
    for key in asked:
        said, why = ask(whole, uid, verb, key), whole.explain(uid, verb, key)
        assert why.allowed is said
        if is_reserved(key):
            assert said
            assert why.is_secret
        elif verb == "publish":
            assert said is any(matches(one, key) for one in mine)
        elif said:
            assert all(any(matches(one, some) for one in mine) for some in KEYS if matches(key, some))
        else:
            assert not any(one in (b"", key) for one in mine)


# -- Which patterns a client may subscribe to, and which keys nobody may publish under

ME = Credentials(gid=100, uid=1000, pid=4711)


@pytest.mark.parametrize(
    ("credentials", "pattern", "reason"),
    [
        (Credentials(gid=100, uid=1000, pid=0), b"!/cred/100/1000/0/x", "with a process id, and yours is unknown"),
        (Credentials(gid=100, uid=1000, pid=0), b"!/cred/100/1000/5/x", "with a process id, and yours is unknown"),
        (Credentials(gid=100, uid=1000, pid=0), b"!/cred/100/1001/0/x", "of another"),
        (Credentials(gid=100, uid=1000, pid=-1), b"!/cred/100/1000/-1/x", "with a process id, and yours is unknown"),
        (Credentials(gid=100, uid=OVERFLOW_ID, pid=5), b"!/cred//65534//x", "with a user or group id"),
        (Credentials(gid=OVERFLOW_ID, uid=1000, pid=5), b"!/cred/65534///x", "with a user or group id"),
        (Credentials(gid=OVERFLOW_ID, uid=1000, pid=5), b"!/cred/65534//6/x", "of another"),
    ],
)
def test_an_id_that_the_kernel_did_not_tell_belongs_to_no_client(
    credentials: Credentials, pattern: bytes, reason: str
) -> None:
    with pytest.raises(ReservedKeyError, match=reason):
        Namespace().check_pattern(pattern, credentials)
    assert Namespace().check_pattern(b"!/cred////x", credentials) is True


def test_known() -> None:
    assert ME.known() == (100, 1000, 4711)
    assert Credentials(gid=65534, uid=65534, pid=0).known() == (None, None, None)
    assert Credentials(gid=0, uid=0, pid=1).known() == (0, 0, 1)


def test_the_credentials_in_a_key() -> None:
    space = Namespace()
    key = b"!/cred/7/8/9/!/cred/100/1000/4711"
    assert space.chain(key) == (Credentials(gid=7, uid=8, pid=9), ME)
    assert space.prefix_of(key) == b"!/cred/7/8/9/"
    for wrong in (
        b"",
        b"k",
        key + b"/",
        key + b"/x",
        key[:-1] + b"x",
        b"x" + key,
        key.replace(b"cred", b"x"),
        key * 65,
    ):
        assert space.chain(wrong) == ()
    assert space.chain(b"!/cred/1/4294967296/1") == space.chain(b"!/cred/1/2/" + b"0" * 11) == ()


def test_another_separator() -> None:
    space = Namespace(b".")
    assert space.credential_key(ME) == b"!.cred.100.1000.4711"
    assert space.check_pattern(b"!.cred.100.1000.4711.x", ME) is True
    assert space.check_pattern(b"!/cred/100/1000/4712/x", ME) is False
    with pytest.raises(ReservedKeyError):
        space.check_pattern(b"!.cred.100.1000.4712.x", ME)


@pytest.mark.parametrize(
    ("secret", "ids"),
    [
        (b"!/cred/100/1000/4711/x", (100, 1000, 4711)),
        (b"!/cred//1000//x", (None, 1000, None)),
        (b"!/cred////x", (None, None, None)),
        (b"!/cred/0/0/1/", (0, 0, 1)),
        (b"!/cred/4294967295///", (4_294_967_295, None, None)),
        (b"!/cred/4294967296///", None),  # more than 32 bits
        (b"!/cred//01000//x", None),
        (b"!/cred//ann//x", None),
        (b"!/cred///+5/x", None),
        (b"!/cred///0/x", None),  # unknown
        (b"!/cred//65534//x", None),
        (b"!/cred/1/2/3", None),
        (b"key", None),
        (b"x/!/cred//1000//x", None),  # of another hub
    ],
)
def test_the_ids_that_a_client_needs_for_a_secret(secret: bytes, ids: tuple[int | None, ...] | None) -> None:
    assert Namespace().holder(secret) == ids
    below = Namespace(prefix=b"!/cred/7/8/9/")
    assert below.holder(below.prefix + secret) == (ids if secret.startswith(b"!") else None)
    if ids is not None:
        gid, uid, pid = (one or 0 for one in ids)
        assert Namespace().check_pattern(secret, Credentials(gid=gid, uid=uid, pid=pid))


def test_a_user_without_a_name_learns_that_it_lacks_one() -> None:
    one = policy(Rule(everybody=True, publish=(b"t/%u/",), subscribe=(b"a",)))
    assert (
        one.explain(3, "publish", b"t/x").reason("publish").endswith("has no name, so patterns with %u give it nothing")
    )
    assert "no name" not in one.explain(3, "subscribe", b"b").reason("subscribe")
    assert "no name" not in one.explain(1, "publish", b"t/x").reason("publish")
