"""No client subscribes to secrets of another process, whatever it tries."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from sbuslib.core.quotas import Quotas
from sbuslib.core.router import Router
from sbuslib.errors import ReservedKeyError
from sbuslib.limits import Limits
from sbuslib.secrets import Credentials, Namespace
from sbuslib.wire.packets import message_header

IDS = st.sampled_from([0, 1, 7, 42, 65534, 2**31 - 1])
CREDENTIALS = st.builds(Credentials, gid=IDS, uid=IDS, pid=IDS)
PIECES = st.sampled_from(
    [b"!", b"cred", b"", b"*", b"**", b"0", b"1", b"7", b"42", b"65534", b"07", b"+7", b"-1", b"4*", b"x", b"!x", b"!*"]
)
TEXTS = st.one_of(
    st.lists(PIECES, max_size=9).map(b"/".join),
    st.lists(PIECES, max_size=6).map(lambda rest: b"/".join([b"!", b"cred", *rest])),
    st.lists(st.sampled_from([b"!", b"/", b"*", b"a"]), max_size=8).map(b"".join),
    st.binary(max_size=10).map(lambda text: text.replace(b"\0", b"")),
)
SECRETS = st.builds(
    lambda ids, rest: b"!/cred/" + b"/".join([*ids, rest]),
    st.tuples(*[st.sampled_from([b"", b"0", b"1", b"7", b"42", b"65534"])] * 3),
    TEXTS,
)


@given(pattern=TEXTS, credentials=CREDENTIALS)
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


@given(credentials=CREDENTIALS, which=st.tuples(st.booleans(), st.booleans(), st.booleans()), rest=TEXTS)
def test_a_pattern_of_ones_own_is_accepted(credentials: Credentials, which: tuple[bool, ...], rest: bytes) -> None:
    ids = [
        b"%d" % own if own is not None and named else b"" for own, named in zip(credentials.known(), which, strict=True)
    ]
    assert Namespace().check_pattern(b"!/cred/" + b"/".join([*ids, rest]), credentials) is True


@given(key=TEXTS)
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


@given(
    subscriptions=st.lists(st.tuples(st.one_of(TEXTS, SECRETS), CREDENTIALS), max_size=12),
    key=st.one_of(SECRETS, TEXTS),
)
def test_a_secret_reaches_only_the_process_that_it_names(
    subscriptions: list[tuple[bytes, Credentials]], key: bytes
) -> None:
    """Through the router, cold and remembered, whatever else is subscribed to."""
    quotas = Quotas(Limits(), 100)
    router: Router[tuple[int, Credentials]] = Router(Limits(), quotas)
    for number, (pattern, credentials) in enumerate(subscriptions):
        try:
            router.subscribe(pattern, (number, credentials), credentials, quotas.account(credentials.uid))
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


@given(credentials=CREDENTIALS, prefix=CREDENTIALS, rest=TEXTS)
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
