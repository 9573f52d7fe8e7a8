"""Packets in a row, compared with a plain list of packets and senders."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sbuslib.core.packet_row import PacketRow, SentPacket

PACKETS = st.lists(st.binary(max_size=2), max_size=5)
SENDERS = st.none() | st.integers(0, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("end"), PACKETS, SENDERS),
        st.tuples(st.just("beginning"), PACKETS, SENDERS),
        st.tuples(st.just("take"), st.integers(0, 6), st.booleans()),
    )
)


@given(steps=STEPS)
def test_a_row_is_a_list_of_packets_with_their_senders(
    steps: list[tuple[str, Any, Any]],
) -> None:
    row, expected = PacketRow(), list[SentPacket]()
    for what, some, other in steps:
        if isinstance(some, int):
            count = min(some, len(expected))
            taken = expected[::-1][:count] if other else expected[:count]
            expected = expected[: len(expected) - count] if other else expected[count:]
            assert row.take(some, newest=bool(other)) == taken
        elif what == "end":
            row.extend(some, other)
            expected += [(packet, other) for packet in some]
        else:
            for packet in some:
                row.appendleft((packet, other))
                expected.insert(0, (packet, other))
        assert list(row) == expected
        assert len(row) == len(expected)
    row.clear()
    assert list(row) == []
