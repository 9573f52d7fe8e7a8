"""Which patterns a client may subscribe to, and which keys nobody may publish under."""

from __future__ import annotations

import pytest

from sbuslib.errors import ReservedKeyError
from sbuslib.secrets import OVERFLOW_ID, Credentials, Namespace

ME = Credentials(gid=100, uid=1000, pid=4711)


@pytest.mark.parametrize("key", [b"", b"a", b"a!", b"!a", b"a!/b", b"a/!b/c", b"!!", b"a/b!", b"!a/cred/1/2/3/x"])
def test_plain_keys_and_patterns(key: bytes) -> None:
    space = Namespace()
    assert space.check_key(key) is False
    assert space.check_pattern(key, ME) is False


@pytest.mark.parametrize(
    "key",
    [b"!/cred/1/2/3/", b"!/cred/1/2/3/x", b"!/cred////", b"!/cred//1000//x", b"!/cred/1/2/3/a/!/cred/4/5/6/b",
     b"!/cred/1/2/3/!", b"!/cred/1/2/3/*"],
)  # fmt: skip
def test_secret_keys(key: bytes) -> None:
    assert Namespace().check_key(key) is True
    assert Namespace().is_secret(key)


@pytest.mark.parametrize(
    "key",
    [b"!", b"!/", b"/!", b"a/!", b"a/!/b", b"!/x", b"!/cred", b"!/cred/", b"!/cred/1", b"!/cred/1/2/3",
     b"!/cred/1/2", b"!//cred/1/2/3/x", b"!/Cred/1/2/3/x", b"x/!/cred/1/2/3/x", b"/!/cred/1/2/3/x", b"*/!/x",
     b"!/cred/*/2/3/x", b"!/cred/-1/2/3/x", b"!/cred/+1/2/3/x", b"!/cred/1 /2/3/x", b"!/cred/0x1/2/3/x",
     b"!/cred/\xd9\xa1/2/3/x", b"!/creds/1/2/3/x", b"!/!/cred/1/2/3/x"],
)  # fmt: skip
def test_keys_that_nobody_may_publish_to(key: bytes) -> None:
    with pytest.raises(ReservedKeyError):
        Namespace().check_key(key)


@pytest.mark.parametrize("gid", [b"100", b""])
@pytest.mark.parametrize("uid", [b"1000", b""])
@pytest.mark.parametrize("pid", [b"4711", b""])
@pytest.mark.parametrize("rest", [b"", b"x", b"*", b"a/*/", b"!/cred/1/2/3/x", b"!"])
def test_patterns_of_ones_own(gid: bytes, uid: bytes, pid: bytes, rest: bytes) -> None:
    assert Namespace().check_pattern(b"!/cred/%b/%b/%b/%b" % (gid, uid, pid, rest), ME) is True


@pytest.mark.parametrize(
    "pattern",
    [b"!", b"!/", b"!/*", b"*/!", b"*/!/cred/100/1000/4711/x", b"!/*/*/*/*/x", b"!/cred", b"!/cred/",
     b"!/cred/*/*/*/x", b"!/cred/100/1000/*/x", b"!/cred/100/1000/4711", b"!/cred/100/1000", b"!/cred/100",
     b"!/cred//", b"!/cred///", b"!/cred/100/1000/4712/x", b"!/cred/100/1001/4711/x", b"!/cred/101/1000/4711/x",
     b"!/cred/0100/1000/4711/x", b"!/cred/+100/1000/4711/x", b"!/cred/-100/1000/4711/x",
     b"!/cred/100/1000/4294972007/x", b"!/cred/100 /1000/4711/x", b"!/cred/100/1000/18446744073709556327/x",
     b"!/cred/10*/1000/4711/x", b"!/cred/100*/1000/4711/x", b"!*/cred/100/1000/4711/!",
     b"!/cred/100/1000/4711*/x", b"x/!/cred/100/1000/4711/x", b"/!/cred/100/1000/4711/x", b"!/cre*/100/1000/4711/x",
     b"!/cred/1000/100/4711/x"],
)  # fmt: skip
def test_patterns_of_others(pattern: bytes) -> None:
    with pytest.raises(ReservedKeyError):
        Namespace().check_pattern(pattern, ME)


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


def test_the_prefix_of_a_slave() -> None:
    space = Namespace(prefix=b"!/cred/7/8/9/")
    assert space.credential_key(ME) == b"!/cred/7/8/9/!/cred/100/1000/4711"
    assert space.check_pattern(b"!/cred/7/8/9/!/cred/100/1000/4711/x", ME) is True
    for wrong in (b"!/cred/100/1000/4711/x", b"!/cred/7/8/10/!/cred/100/1000/4711/x", b"!/cred/7/8/9/x"):
        with pytest.raises(ReservedKeyError):
            space.check_pattern(wrong, ME)


def test_another_separator() -> None:
    space = Namespace(b".")
    assert space.credential_key(ME) == b"!.cred.100.1000.4711"
    assert space.check_pattern(b"!.cred.100.1000.4711.x", ME) is True
    assert space.check_pattern(b"!/cred/100/1000/4712/x", ME) is False
    with pytest.raises(ReservedKeyError):
        space.check_pattern(b"!.cred.100.1000.4712.x", ME)
