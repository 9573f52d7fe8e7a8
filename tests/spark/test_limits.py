"""The limits of the Spark parts, and their table in the docs."""

from __future__ import annotations

import pytest
from support import ROOT

from sbuslib.errors import UsageError
from sbuslib.limits import describe
from sbuslib.spark.limits import SparkLimits


def test_the_docs_have_the_table_of_limits() -> None:
    assert describe(SparkLimits) in (ROOT / "docs" / "spark.md").read_text("utf-8")


def test_limits_are_positive() -> None:
    with pytest.raises(UsageError, match=r"SparkLimits.batch_rows is positive"):
        SparkLimits(batch_rows=0)
