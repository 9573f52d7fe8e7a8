"""The limits of a peer."""

from __future__ import annotations

import pytest

from sbuslib.errors import UsageError
from sbuslib.tcp import TcpLimits


def test_limits_are_positive() -> None:
    with pytest.raises(UsageError):
        TcpLimits(hops=0)
