"""The table of limits in the docs."""

from __future__ import annotations

import pytest
from support import ROOT

from sbuslib.errors import UsageError
from sbuslib.limits import describe
from sbuslib.tcp import TcpLimits


def test_the_docs_have_the_table_of_limits() -> None:
    assert describe(TcpLimits) in (ROOT / "docs" / "simplest-pubsub.md").read_text("utf-8")


def test_limits_are_positive() -> None:
    with pytest.raises(UsageError):
        TcpLimits(hops=0)
