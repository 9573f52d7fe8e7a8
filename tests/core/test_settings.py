"""The settings of a hub that can change while it serves: users by name and id."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support import Peer

from sbuslib import Hub
from sbuslib.core.settings import Settings
from sbuslib.errors import UsageError
from sbuslib.secrets import Credentials

MakeHub = Callable[..., Hub]
Connect = Callable[..., Peer]


def allow_a(credentials: Credentials, verb: str, key: bytes) -> bool:
    return key == b"a"


def test_users_are_names_and_ids_and_the_own_user_is_always_among_them() -> None:
    own = os.getuid()
    settings = Settings(["root", 12_345, "23456"], [34_567], ["45678", "@56789"], None)
    assert settings.users == {own, 0, 12_345, 23_456}
    assert settings.trusted == {own, 0, 34_567}
    assert settings.relays == (frozenset({45_678}), frozenset({56_789}))
    assert Settings([], (), (), None).users == {own}
    assert Settings(None, (), (), None).users is None, "everybody may connect"


def test_wrong_settings_change_nothing(make_hub: MakeHub, connect: Connect) -> None:
    hub = make_hub(authorize=allow_a)
    peer = connect()
    for wrong in ({"users": ["nobody-at-all"]}, {"trusted": "root"}, {"authorize": 3}, {"relays": "x"}):
        with pytest.raises(UsageError):
            hub.reconfigure(**wrong)
    peer.publish(b"b")
    assert peer.is_disconnected()


def test_a_hub_can_be_reconfigured_before_it_is_started(address: str, connect: Connect) -> None:
    hub = Hub(address)
    hub.reconfigure(authorize=allow_a)
    with hub:
        peer = connect()
        peer.publish(b"b")
        assert peer.is_disconnected()
