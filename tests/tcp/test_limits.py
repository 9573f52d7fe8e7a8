"""The table of limits in the docs."""

from __future__ import annotations

import pytest
from support import ROOT

from sbuslib.errors import UsageError
from sbuslib.limits import describe
from sbuslib.tcp import TcpLimits


def test_the_docs_hold_the_table() -> None:
    assert describe(TcpLimits) in (ROOT / "docs" / "simplest-pubsub.md").read_text("utf-8")


def test_limits_are_positive() -> None:
    with pytest.raises(UsageError):
        TcpLimits(hops=0)
