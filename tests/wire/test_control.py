"""What control messages say."""

from __future__ import annotations

import pytest

from sbuslib.errors import PacketError
from sbuslib.wire import control
from sbuslib.wire.control import Features
from sbuslib.wire.packets import Control, encode_message, parse


def test_features_there_and_back() -> None:
    features = Features(frozenset({b"hub/sync", b"senders/on"}), b"00ff", (b"00ff", b"aa", b"bb"))
    assert features.encode() == b"hub/sync senders/on id=00ff path=00ff,aa,bb"
    assert Features.decode(features.encode()) == features


@pytest.mark.parametrize(
    ("line", "features"),
    [
        (b"", Features(frozenset(), b"", ())),
        (b"  newer/on   id=1  path= ", Features(frozenset({b"newer/on"}), b"1", ())),
        (b"path=a,,b", Features(frozenset(), b"", (b"a", b"b"))),
        (b"\xff id=\xff", Features(frozenset({b"\xff"}), b"\xff", ())),
    ],
)
def test_features_of_another_hub(line: bytes, features: Features) -> None:
    assert Features.decode(line) == features


def test_what_is_supported_is_what_there_are_keys_for() -> None:
    keys = {getattr(control, name) for name in control.__all__ if name.isupper() and name != "SUPPORTED"}
    assert set(control.SUPPORTED) <= keys


def test_sync() -> None:
    assert parse(control.encode_sync(b"t", b"tree")) == Control(control.SYNC, b"t\0tree")


def test_a_sender_there_and_back() -> None:
    inner = encode_message(b"a/b", b"x\0y")
    packet = parse(control.wrapper_from(b"!/cred/1/2/3") + inner)
    assert isinstance(packet, Control)
    assert packet.key == control.FROM
    assert packet.payload is not None
    assert control.unwrap_from(packet.payload) == (b"!/cred/1/2/3", inner)


def test_a_wrapper_around_nothing() -> None:
    with pytest.raises(PacketError, match="wrapper"):
        control.unwrap_from(b"!/cred/1/2/3")
