"""Which hubs above cannot be joined, and what is said of each."""

from __future__ import annotations

import pytest

from sbuslib.secrets import Namespace
from sbuslib.tree.greeting import DeepError, LinkError, LoopError, check_features, check_key, is_unknown
from sbuslib.wire.control import Features


def features(*path: bytes, separator: bytes = b"/") -> Features:
    return Features(frozenset(), path[0], path, separator)


def test_a_path_with_our_own_id_is_a_loop_however_long_it_is() -> None:
    check_features(features(b"2", b"3"), b"1", b"/", 3)
    with pytest.raises(LoopError, match="loop"):
        check_features(features(b"2", b"1"), b"1", b"/", 3)
    with pytest.raises(LoopError, match="loop"):
        check_features(features(b"2", b"3", b"4", b"1"), b"1", b"/", 3)


def test_a_path_that_is_too_long_is_no_loop() -> None:
    with pytest.raises(DeepError, match="3 hubs are above this one, and a path may have 3"):
        check_features(features(b"2", b"3", b"4"), b"1", b"/", 3)


def test_another_separator() -> None:
    with pytest.raises(LinkError, match="separator"):
        check_features(features(b"2", separator=b"."), b"1", b"/", 3)


def test_credential_keys() -> None:
    namespace = Namespace()
    for key in (b"!/cred/1/2/3", b"!/cred/1/2/3/!/cred/4/5/6"):
        assert check_key(key, namespace) == key
    assert check_key(b"!.cred.1.2.3", Namespace(b".")) == b"!.cred.1.2.3"


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"nonsense",
        b"!/cred/1/2",
        b"!/cred/1/2/3/",
        b"!/cred/1/2/x",
        b"!/cred//2/3",
        b"!/cred/1/2/-3",
        b"!/cred/1/2/12345678901",
        b"!.cred.1.2.3",
        b"x!/cred/1/2/3",
        b"/".join([b"!/cred/1/2/3"] * 65),
        b"!/cred/1/2/" + b"3" * 100_000,
    ],
)
def test_an_answer_that_is_no_credential_key_is_shown_in_part(key: bytes) -> None:
    with pytest.raises(LinkError, match="no credential key") as caught:
        check_key(key, Namespace())
    assert len(str(caught.value)) < 150


def test_ids_that_the_kernel_could_not_tell() -> None:
    for key in (b"!/cred/1/2/0", b"!/cred/65534/2/3", b"!/cred/1/2/3/!/cred/1/65534/3"):
        assert is_unknown(key, b"/")
    for key in (b"!/cred/1/2/3", b"!/cred/0/0/1", b"!/cred/1/2/0/!/cred/1/2/3"):
        assert not is_unknown(key, b"/")
