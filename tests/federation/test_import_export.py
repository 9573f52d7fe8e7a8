"""Which keys may cross between a bus and other places, and who sends: without a bus."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbuslib.errors import KeyFormatError, UsageError
from sbuslib.federation.import_export import ImportExportFilter, fits_a_packet
from sbuslib.limits import PACKET_BYTES
from sbuslib.matcher import check_separator
from sbuslib.secrets import user_of
from sbuslib.wire.packets import encode_message


def make_filter(
    patterns: Any, separator: bytes = b"/", certain: bool = True, strict: bool = False, imports: bool = False
) -> ImportExportFilter:
    return ImportExportFilter(patterns, separator=separator, certain=certain, strict=strict, imports=imports)


def test_which_keys_may_cross() -> None:
    keys = make_filter([b"room/*/temp", b"log/"])
    for key in (b"room/1/temp", b"log/a/b"):
        assert keys.refusal(key) is None
    assert keys.refusal(b"room/1/hum") == "outside the patterns"
    everything = make_filter([b""])
    for key in (b"!/cred/1/2/3/x", b"!/cred////x", b"a/!/b", b"!", b"a/!", b"!/x"):
        assert everything.refusal(key) == "reserved key", key
    for key in (b"", b"a!/b", b"!!", b"a/b!"):
        assert everything.refusal(key) is None, key
    assert everything.refusal(b"sbus/gateway") == "key of the gateways"
    assert make_filter([]).refusal(b"a") == "outside the patterns"


def allowed(separator: bytes) -> bool:
    try:
        check_separator(separator)
    except UsageError:
        return False
    return True


SEPARATORS = [one for one in (bytes([byte]) for byte in range(256)) if allowed(one)]


@given(st.lists(st.sampled_from([b"!", b"/", b".", b"\n", b"a", b"1", b"*", b"\xff", b"x"]), max_size=7).map(b"".join))
def test_with_an_uncertain_separator_a_key_reserved_under_any_separator_is_refused(key: bytes) -> None:
    reserved = any(make_filter([b""], separator).is_reserved(key) for separator in SEPARATORS)
    assert make_filter([b""], certain=False).is_reserved(key) is reserved


def test_with_an_uncertain_separator_a_pattern_reserved_under_any_separator_is_refused() -> None:
    make_filter([b"a.!.b"])
    with pytest.raises(UsageError):
        make_filter([b"a.!.b"], certain=False)


@pytest.mark.parametrize("patterns", [[b"!/cred/1/2/3/"], [b"a/!/"], [b"!"], b"bytes", "text"])
def test_reserved_patterns_are_refused(patterns: list[bytes]) -> None:
    with pytest.raises(UsageError):
        make_filter(patterns)


def test_a_pattern_with_nul_is_refused() -> None:
    with pytest.raises(KeyFormatError):
        make_filter([b"a\0"])


@pytest.mark.parametrize(
    ("sender", "own", "user"),
    [
        (None, None, b""),
        (b"!/cred/1/2/3", None, b"!/cred/1/2"),
        (b"!/cred/1/2/3", b"!/cred/9/9/9", b"!/cred/1/2"),
        (b"!/cred/1/2/3/!/cred/4/5/6", b"!/cred/9/9/9", b"!/cred/1/2"),  # a client of a child
        (b"!/cred/1/2/3/!/cred/4/5/6", b"!/cred/1/2/3/!/cred/9/9/9", b"!/cred/1/2/3/!/cred/4/5"),
        (b"!/cred/1/2/3/!/cred/4/5/6/!/cred/7/8/9", b"!/cred/1/2/3/!/cred/9/9/9", b"!/cred/1/2/3/!/cred/4/5"),
        (b"!/cred/1/2/4/!/cred/4/5/6", b"!/cred/1/2/3/!/cred/9/9/9", b"!/cred/1/2"),  # handed down by the parent
        (b"!.cred.1.2.3", None, b""),  # another separator than was given: all senders are one user
    ],
)
def test_the_user_of_a_sender_is_what_the_kernel_vouches_for(
    sender: bytes | None, own: bytes | None, user: bytes
) -> None:
    assert user_of(sender, own, b"/") == user


def test_fits_a_packet_agrees_with_what_can_be_published() -> None:
    room = PACKET_BYTES - len(encode_message(b"key", b""))
    assert fits_a_packet(b"key", bytes(room))
    encode_message(b"key", bytes(room))
    assert not fits_a_packet(b"key", bytes(room + 1))
