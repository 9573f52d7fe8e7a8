"""Flood control over real sockets: each mode, the shares of several publishers, and the clients' side."""

from __future__ import annotations

from itertools import product

import pytest
from accounting import balance, big, connection_of, numbers, settle
from flooding import flood, is_held, slow
from support import PATIENCE, Bus, Connect, HubThread, eventually

from sbuslib import blocking
from sbuslib.errors import DisconnectedError
from sbuslib.wire.control import Kicked
from sbuslib.wire.modes import HARD, SOFT

ROOM = 4


# -- each cell of the table -------------------------------------------------------------------------------


@pytest.mark.parametrize(("soft", "hard"), list(product(SOFT, HARD)))
def test_each_mode(bus: Bus, connect: Connect, soft: str, hard: str) -> None:
    """Ten messages at once: one goes to the kernel, four have room, and of the other five the hard mode decides."""
    hub = bus(queued_packets=ROOM)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"blocking/soft/" + soft.encode(), b"blocking/hard/" + hard.encode())
    publishing = connection_of(hub, publisher)
    flood(publisher, 0, 10)
    eventually(lambda: publishing.received == 10)
    settle(hub)
    balance(hub)

    if soft == "error" or (soft != "discard" and hard == "error"):
        assert receiving.outgoing.closed
        assert hub.statistics().violations == {"does not keep up, and asked for error": 1}
        assert reader.receive() == b"MSG k\0" + big(0)
        assert reader.is_disconnected()
        assert sum(receiving.outgoing.lost.values()) == 9
        assert not is_held(publishing)
        publisher.barrier()
        return

    kept = {"discard": 1, "queue": 10 if hard == "block" else 5, "block": 10 if hard == "block" else 5}[soft]
    lost = {"discard": {"discard": 9}}.get(soft, {} if hard == "block" else {"overflow": 5})
    assert (receiving.outgoing.delivered, receiving.outgoing.queued, receiving.outgoing.lost) == (1, kept - 1, lost)
    held = soft == "block" or (soft == "queue" and hard == "block")
    assert is_held(publishing) is held
    flood(publisher, 10, 12)
    settle(hub)
    assert publishing.received == (10 if held else 12)

    got: list[int] = []
    while receiving.outgoing.queued or is_held(publishing):
        got += numbers([reader.receive()])
        balance(hub)
    publisher.barrier()
    reader.barrier()
    got += numbers(reader.pending())
    assert got == [*range(kept), *((10, 11) if held else ())]
    balance(hub)
    flood(publisher, 12, 13)
    assert numbers([reader.receive()]) == [12]


# -- a mode that changes midway ---------------------------------------------------------------------------


def test_a_short_message_is_kept_where_a_longer_one_of_its_turn_has_no_room(bus: Bus, connect: Connect) -> None:
    hub = bus(queued_bytes=10_000)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader)
    flood(publisher, 0, 1)
    publisher.barrier()
    publisher.send(b"MSG k\0" + bytes(20_000), b"MSG k\0short")
    publisher.barrier()
    assert (receiving.outgoing.queued, receiving.outgoing.lost) == (1, {"overflow": 1})
    assert [reader.receive() for _ in range(2)] == [b"MSG k\0" + big(0), b"MSG k\0short"]


# -- the client's side ------------------------------------------------------------------------------------


def test_a_client_knows_why_it_was_kicked(address: str) -> None:
    told: list[object] = []
    with HubThread(address), blocking.Client(address, on_notice=told.append) as client:
        client.socket.send(b"nonsense")
        with pytest.raises(DisconnectedError, match="unknown verb"):
            client.receive(timeout=PATIENCE)
        assert told == [Kicked("unknown verb")]
