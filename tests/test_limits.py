"""The limits, and their table in the documentation."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from support import ROOT

from sbuslib.errors import UsageError
from sbuslib.limits import CONTROL_EXTRA, PACKET_BYTES, ClientLimits, Limits, describe

BOTH = (Limits, ClientLimits)


def test_the_protocol_fixes_the_packet() -> None:
    assert (PACKET_BYTES, CONTROL_EXTRA) == (409_600, 4_096)


@pytest.mark.parametrize("struct", BOTH)
def test_the_documentation_holds_the_table(struct: type[msgspec.Struct]) -> None:
    assert describe(struct) in (ROOT / "docs" / "limits.md").read_text("utf-8")


@pytest.mark.parametrize("struct", BOTH)
def test_every_limit_has_a_reason(struct: type[msgspec.Struct]) -> None:
    rows = describe(struct).splitlines()[2:]
    found = [re.fullmatch(r"\| `(\w+)` \| ([\d.,]+) \| (.+\.) \|", row) for row in rows]
    assert all(found)
    assert [row[1] for row in found if row] == list(struct.__struct_fields__)


@pytest.mark.parametrize("struct", BOTH)
def test_limits_do_not_change(struct: type[Any]) -> None:
    limits = struct()
    with pytest.raises(AttributeError):
        limits.batch = 1
    assert msgspec.structs.replace(limits, batch=8).batch == 8
    assert limits == struct()


@pytest.mark.parametrize("struct", BOTH)
@pytest.mark.parametrize("value", [0, -1, None, "64", True, float("nan")])
def test_a_limit_is_a_positive_number(struct: type[Any], value: object) -> None:
    for name in struct.__struct_fields__:
        with pytest.raises(UsageError, match=name):
            struct(**{name: value})


@pytest.mark.parametrize("struct", BOTH)
@pytest.mark.parametrize("value", [1.5, float("inf")])
def test_what_is_counted_is_a_whole_number(struct: type[Any], value: object) -> None:
    with pytest.raises(UsageError, match="batch"):
        struct(batch=value)


@pytest.mark.parametrize("struct", BOTH)
def test_a_batch_is_no_longer_than_the_system_call_takes(struct: type[Any]) -> None:
    """UIO_MAXIOV of Linux: recvmmsg(2) and sendmmsg(2) take no more than 1,024 packets."""
    assert struct(batch=1_024).batch == 1_024
    with pytest.raises(UsageError, match="batch"):
        struct(batch=1_025)
