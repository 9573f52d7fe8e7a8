"""Publishers that a receiver holds back: which of them, and how a hold ends."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from accounting import balance, connection_of, numbers, settle
from flooding import flood, is_held, slow
from support import PATIENCE, Bus, Connect, ConnectAs, eventually


def test_soft_block_lets_go_when_nothing_waits_and_hard_block_at_half(bus: Bus, connect: Connect) -> None:
    hub = bus(queued_packets=4)
    for modes, at in (((b"blocking/soft/block",), 0), ((b"blocking/hard/block",), 2)):
        reader, publisher = connect(), connect()
        receiving = slow(hub, reader, *modes)
        publishing = connection_of(hub, publisher)
        flood(publisher, 0, 6)
        eventually(partial(is_held, publishing))
        assert receiving.outbound.queued == (5 if at else 4)
        while is_held(publishing):
            reader.receive()
            settle(hub)
        assert receiving.outbound.queued == at
        publisher.close()
        reader.close()
        eventually(lambda: hub.statistics().clients == 0)


def test_no_publisher_is_held_for_ever(bus: Bus, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that makes no room is kicked after ``Limits.block_timeout``; its waiting messages are counted."""
    hub = bus(block_timeout=0.01)
    reader, publisher, witness = connect(), connect(), connect()
    receiving = slow(hub, reader, b"blocking/soft/block")
    witness.subscribe(b"k")
    flood(publisher, 0, 3)
    eventually(lambda: receiving.outbound.closed)
    assert receiving.outbound.lost == {"outage": 2}
    assert hub.statistics().violations == {"held publishers back for too long": 1}
    (record,) = caplog.records
    assert "held publishers back for too long" in record.getMessage()
    flood(publisher, 3, 5)
    publisher.barrier()
    assert numbers(witness.pending()) == [0, 1, 2, 3, 4]
    assert numbers([reader.receive()]) == [0]
    assert reader.is_disconnected()


@pytest.mark.parametrize("reads", [True, False])
def test_two_clients_that_block_on_each_other(bus: Bus, connect: Connect, reads: bool) -> None:
    hub = bus(block_timeout=PATIENCE if reads else 0.02)
    one, other = connect(), connect()
    first = slow(hub, one, b"blocking/soft/block", pattern=b"one")
    second = slow(hub, other, b"blocking/soft/block", pattern=b"other")
    flood(one, 0, 3, b"other")
    flood(other, 0, 3, b"one")
    if reads:
        eventually(lambda: is_held(first) and is_held(second))
        assert numbers([one.receive() for _ in range(3)]) == [0, 1, 2]
        assert numbers([other.receive() for _ in range(3)]) == [0, 1, 2]
        one.barrier()
        other.barrier()
        assert not is_held(first)
        assert not is_held(second)
    else:
        eventually(lambda: first.outbound.closed or second.outbound.closed)
        eventually(lambda: not (is_held(first) or is_held(second)))


def test_a_hub_that_stops_while_publishers_are_held(bus: Bus, connect: Connect) -> None:
    hub = bus()
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"blocking/soft/block")
    flood(publisher, 0, 3)
    eventually(lambda: receiving.outbound.held)
    backpressure: Any = receiving.outbound._backpressure
    hub.stop(0)
    assert backpressure._timer is None
    assert hub.context.quotas.is_clear()
    balance(hub)


def test_receiver_that_releases_one_publisher_while_it_holds_another_is_not_kicked(
    bus: Bus, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit is for each publisher: two users are held in turns here, so one is held at any time."""
    hub = bus({"mode": 0o777, "trusted": [1003]}, queued_packets=4, block_timeout=100.0)
    clock = [0.0]
    monkeypatch.setattr("sbuslib.core.backpressure.monotonic", lambda: clock[0])
    reader = connect_as(1003)
    receiving = slow(hub, reader, b"blocking/soft/block")
    one, other = connect_as(1001), connect_as(1002)
    flood(one, 0, 2)
    eventually(lambda: len(receiving.outbound.held) == 1)
    clock[0] = 60.0
    flood(other, 10, 13)
    eventually(lambda: len(receiving.outbound.held) == 2)
    assert numbers([reader.receive()]) == [0]
    eventually(lambda: len(receiving.outbound.held) == 1)
    backpressure: Any = receiving.outbound._backpressure
    clock[0] = 110.0
    backpressure._on_time()
    settle(hub)
    assert not receiving.outbound.closed
