"""The limits of hubs and clients, and their tables in the documentation."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from support import ROOT

from sbuslib.errors import UsageError
from sbuslib.limits import CONTROL_EXTRA, PACKET_BYTES, ClientLimits, Limits, describe

BOTH = (Limits, ClientLimits)


def test_the_longest_packet_is_as_long_as_the_protocol_says() -> None:
    assert (PACKET_BYTES, CONTROL_EXTRA) == (409_600, 4_096)


@pytest.mark.parametrize("struct", BOTH)
def test_the_page_of_limits_has_the_table_of_the_code(struct: type[msgspec.Struct]) -> None:
    assert describe(struct) in (ROOT / "docs" / "limits.md").read_text("utf-8")


@pytest.mark.parametrize("struct", BOTH)
def test_every_limit_has_a_reason(struct: type[msgspec.Struct]) -> None:
    rows = describe(struct).splitlines()[2:]
    found = [re.fullmatch(r"\| `(\w+)` \| ([\d.,]+) \| (.+\.) \|", row) for row in rows]
    assert all(found)
    assert [row[1] for row in found if row] == list(struct.__struct_fields__)


def test_a_hub_has_no_more_than_forty_limits() -> None:
    """What only tunes the machine is a constant beside the code that uses it."""
    assert len(Limits.__struct_fields__) <= 40


@pytest.mark.parametrize("struct", BOTH)
def test_limits_are_immutable(struct: type[Any]) -> None:
    limits = struct()
    with pytest.raises(AttributeError):
        limits.batch = 1
    assert msgspec.structs.replace(limits, batch=8).batch == 8
    assert limits == struct()


@pytest.mark.parametrize("struct", BOTH)
@pytest.mark.parametrize("value", [0, -1, None, "64", True, float("nan")])
def test_a_limit_that_is_no_positive_number_is_refused(struct: type[Any], value: object) -> None:
    for name in struct.__struct_fields__:
        with pytest.raises(UsageError, match=name):
            struct(**{name: value})


@pytest.mark.parametrize("struct", BOTH)
@pytest.mark.parametrize("value", [1.5, float("inf")])
def test_a_count_that_is_no_whole_number_is_refused(struct: type[Any], value: object) -> None:
    with pytest.raises(UsageError, match="batch"):
        struct(batch=value)


@pytest.mark.parametrize("struct", BOTH)
def test_a_batch_of_more_packets_than_one_system_call_takes_is_refused(struct: type[Any]) -> None:
    """recvmmsg(2) and sendmmsg(2) take at most 1,024 packets: UIO_MAXIOV of Linux."""
    assert struct(batch=1_024).batch == 1_024
    with pytest.raises(UsageError, match="batch"):
        struct(batch=1_025)
