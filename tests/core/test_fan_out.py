"""Which receivers are handed a message through the fan-out queue of their user."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from accounting import settle
from fan_outs import FANOUT, PUBLISHER, READER, account, message, readers_of
from support import Peer

from sbuslib import Hub

pytest_plugins = ["accounting_fixtures"]

Bus = Callable[..., Hub]
ConnectAs = Callable[..., Peer]


@pytest.fixture
def hub(bus: Bus) -> Hub:
    return bus({"mode": 0o777}, fanout=FANOUT)


def test_the_publisher_leaves_a_message_in_line(hub: Hub, connect_as: ConnectAs) -> None:
    connect_as(PUBLISHER).barrier()
    readers = readers_of(connect_as, b"k")
    before = hub.statistics()
    hub.publish(b"k", b"1")  # which does not let the event loop run
    at_once = hub.statistics()
    assert at_once.delivered == before.delivered
    assert (account(hub).waiting_packets, account(hub).waiting_bytes) == (1, len(message(b"k", 1)))
    settle(hub)
    assert [reader.pending() for reader in readers] == [[message(b"k", 1)]] * FANOUT
    assert account(hub).waiting_packets == account(hub).waiting_bytes == 0
    assert hub.statistics().delivered == before.delivered + FANOUT


@pytest.mark.parametrize(
    ("count", "uid", "strangers"),
    [(FANOUT - 1, READER, True), (FANOUT, READER, False), (FANOUT, 0, True)],
    ids=["few", "one user alone", "trusted"],
)
def test_which_receivers_are_handed_a_message_at_once(
    hub: Hub, connect_as: ConnectAs, count: int, uid: int, strangers: bool
) -> None:
    if strangers:
        connect_as(PUBLISHER).barrier()
    readers = readers_of(connect_as, b"k", count=count, uid=uid)
    hub.publish(b"k", b"1")
    assert hub.statistics().delivered >= count
    assert [reader.pending() for reader in readers] == [[message(b"k", 1)]] * count


def test_a_users_own_messages_do_not_stand_in_line(hub: Hub, connect_as: ConnectAs) -> None:
    connect_as(PUBLISHER).barrier()
    readers = readers_of(connect_as, b"k")
    hub.publish(b"k", b"1")
    assert hub._fan_outs.waiting
    own = connect_as(READER)
    own.publish(b"k", b"2")
    own.barrier()
    settle(hub)
    for reader in readers:
        assert sorted(reader.pending()) == [message(b"k", 1), message(b"k", 2)]


def test_order_where_keys_go_to_many_and_to_few(hub: Hub, connect_as: ConnectAs) -> None:
    """One reader wants more than the others: messages for it alone stay behind those in the fan-out queue."""
    publisher = connect_as(PUBLISHER)
    first, *others = readers_of(connect_as, b"all")
    first.subscribe(b"one")
    witness = connect_as(PUBLISHER)
    witness.subscribe(b"")
    sent = [message((b"all", b"one", b"none")[n % 3], n) for n in range(60)]
    publisher.send(*sent)
    publisher.barrier()
    settle(hub)
    assert witness.pending() == sent
    assert first.pending() == [packet for packet in sent if b"none" not in packet]
    for other in others:
        assert other.pending() == [packet for packet in sent if b"all" in packet]
