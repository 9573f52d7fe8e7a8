"""Lost messages: counted by cause, and told to the receiver that asked for notices."""

from __future__ import annotations

import pytest
from accounting import big, numbers, settle
from flooding import flood, lost_notice, slow
from support import WHOAMI, Bus, Connect, eventually, own_key


def test_a_loss_is_told_where_the_gap_is(bus: Bus, connect: Connect) -> None:
    """Four wait, six are lost; once half of the room is free, the notice stands before what comes then."""
    hub = bus(queued_packets=4)
    reader, publisher = connect(), connect()
    slow(hub, reader, b"notices/on")
    flood(publisher, 0, 11)
    publisher.barrier()
    got = [reader.receive() for _ in range(3)]
    settle(hub)
    flood(publisher, 11, 13)
    publisher.barrier()
    got += [reader.receive() for _ in range(5)]
    assert numbers(got) == [0, 1, 2, 3, 4, 11, 12]
    assert lost_notice(got[5]) == ("overflow", 6)
    assert reader.pending() == []


@pytest.mark.parametrize("full", [False, True])
def test_a_loss_is_told_before_an_answer_that_was_asked_for_later(bus: Bus, connect: Connect, full: bool) -> None:
    """A client that reads all and then asks knows of all losses when the answer comes, even if that has to wait."""
    hub = bus(queued_packets=2)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"notices/on")
    flood(publisher, 0, 7)
    publisher.barrier()
    got = [reader.receive()]
    eventually(lambda: receiving.outbound.queued == 1)
    got.append(reader.receive())
    eventually(lambda: receiving.outbound.queued == 0)  # the last of them fills the kernel's buffer
    if full:
        reader.send(WHOAMI)
        settle(hub)
        got.append(reader.receive())
    else:
        got.append(reader.receive())
        reader.send(WHOAMI)  # both at once: the buffer has room for the notice, and there is a question
    assert numbers(got) == [0, 1, 2]
    assert lost_notice(reader.receive()) == ("overflow", 4)
    assert reader.receive() == WHOAMI + b"\0" + own_key()


def test_a_loss_is_told_before_an_answer_with_all_of_it(bus: Bus, connect: Connect) -> None:
    """Also what was refused before it was copied, and whose counting is put off."""
    hub = bus(queued_bytes=4_000)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"notices/on")
    for start in range(0, 20, 5):
        flood(publisher, start, start + 5)
        settle(hub)
        publisher.barrier()
    assert receiving.outbound._drop_cache is not None
    got = [reader.receive()]
    reader.send(WHOAMI)
    assert numbers(got) == [0]
    assert lost_notice(reader.receive()) == ("overflow", 19)
    assert reader.receive() == WHOAMI + b"\0" + own_key()
    assert reader.pending() == []


@pytest.mark.parametrize("by", ["client", "program"])
def test_a_discarding_receiver_is_told_once_a_gap(bus: Bus, connect: Connect, by: str) -> None:
    """However much is lost meanwhile, notices do not pile up for a receiver that does not read."""
    hub = bus(queued_answers=3)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"notices/on", b"blocking/soft/discard")
    if by == "client":
        flood(publisher, 0, 101)
        publisher.barrier()
    else:
        for number in range(101):
            hub.publish(b"k", big(number))
    assert receiving.outbound.lost == {"discard": 100}
    assert not receiving.outbound.closed
    got = [reader.receive(), reader.receive()]
    assert numbers(got) == [0]
    assert lost_notice(got[1]) == ("discard", 100)
    assert reader.pending() == []
    flood(publisher, 101, 102)
    assert numbers([reader.receive()]) == [101]


def test_losses_of_several_causes(bus: Bus, connect: Connect) -> None:
    hub = bus(queued_packets=2)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"notices/on")
    flood(publisher, 0, 5)
    publisher.publish(b"k", bytes(40_000))  # longer than this connection takes, had there been room
    publisher.barrier()
    got = [reader.receive() for _ in range(2)]
    settle(hub)
    publisher.publish(b"k", bytes(40_000))
    publisher.barrier()
    reader.send(b"CMSG blocking/soft/discard")
    eventually(lambda: receiving.outbound.outbox.soft == "discard")
    flood(publisher, 5, 7)
    publisher.barrier()
    got += [reader.receive() for _ in range(4)]
    assert numbers(got) == [0, 1, 2]
    told: dict[str, int] = {}
    for packet in got[3:]:
        cause, count = lost_notice(packet)
        told[cause] = told.get(cause, 0) + count
    assert told == receiving.outbound.lost == {"overflow": 3, "discard": 2, "oversize": 1}


def test_a_short_message_is_kept_where_a_longer_one_of_its_turn_has_no_room(bus: Bus, connect: Connect) -> None:
    hub = bus(queued_bytes=10_000)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader)
    flood(publisher, 0, 1)
    publisher.barrier()
    publisher.send(b"MSG k\0" + bytes(20_000), b"MSG k\0short")
    publisher.barrier()
    assert (receiving.outbound.queued, receiving.outbound.lost) == (1, {"overflow": 1})
    assert [reader.receive() for _ in range(2)] == [b"MSG k\0" + big(0), b"MSG k\0short"]


def test_notices_may_be_turned_off_again(bus: Bus, connect: Connect) -> None:
    hub = bus(queued_packets=2)
    reader, publisher = connect(), connect()
    slow(hub, reader, b"notices/on", b"notices/off")
    flood(publisher, 0, 7)
    publisher.barrier()
    assert numbers([reader.receive() for _ in range(3)]) == [0, 1, 2]
    assert reader.pending() == []
