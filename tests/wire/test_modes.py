"""Names of modes."""

from __future__ import annotations

from typing import get_args

import pytest

from sbuslib.errors import UsageError
from sbuslib.wire.modes import HARD, ORDER, SOFT, Hard, Order, Soft, mode_keys

# -- The modes of flood control: each that a type allows is known, and no other


@pytest.mark.parametrize(("modes", "alias"), [(SOFT, Soft), (HARD, Hard), (ORDER, Order)])
def test_the_modes_are_those_of_their_type(modes: tuple[str, ...], alias: object) -> None:
    assert modes == get_args(alias)


def test_the_control_message_of_each_mode_is_its_name() -> None:
    assert mode_keys("queue", "block", "stack") == [b"blocking/soft/queue", b"blocking/hard/block", b"order/stack"]
    assert mode_keys(None, None, None) == []
    with pytest.raises(UsageError, match="soft is one of queue, discard, block, error, not 'hard'"):
        mode_keys("hard", None, None)
