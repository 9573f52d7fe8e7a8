"""What is kept for the hub above, and the count of what was lost."""

from __future__ import annotations

import msgspec
from support import eventually
from worlds import FAST, World, received, settle

from sbuslib.core.protocols import Sender
from sbuslib.secrets import Credentials
from sbuslib.tree.hub_link import Voucher
from sbuslib.tree.uplink import UpQueue

SENDER: Sender = Voucher(bytes, Credentials(gid=1, uid=2, pid=3), b"")
OTHER: Sender = Voucher(bytes, Credentials(gid=1, uid=2, pid=3), b"other")


def test_messages_are_kept_in_order_within_both_bounds() -> None:
    kept = UpQueue(most=3, most_bytes=10)
    added = [kept.add(SENDER, packet) for packet in (b"1234", b"567", b"89ab", b"c", b"d")]
    assert added == [True, True, False, True, False]
    assert (len(kept), kept.bytes) == (3, 8)
    assert kept.take(False) == [(SENDER, b"1234"), (SENDER, b"567"), (SENDER, b"c")]
    assert (len(kept), kept.bytes) == (0, 0)
    assert kept.take(False) == []


def test_messages_that_could_not_be_sent_are_put_back_in_front() -> None:
    kept = UpQueue(most=10, most_bytes=100)
    for packet in (b"1", b"22", b"333"):
        kept.add(SENDER, packet)
    taken = kept.take(False)
    kept.add(SENDER, b"4444")
    kept.put_back(taken[1:])
    assert (len(kept), kept.bytes) == (3, 9)
    assert [packet for _, packet in kept.take(False)] == [b"22", b"333", b"4444"]


def test_messages_are_taken_of_one_sender_where_that_matters_and_as_many_as_fit_one_packet() -> None:
    kept = UpQueue(most=10, most_bytes=1_000_000)
    for sender in (SENDER, SENDER, OTHER, SENDER):
        kept.add(sender, b"x")
    assert [len(kept.take(True)) for _ in range(4)] == [2, 1, 1, 0]
    for sender in (SENDER, OTHER):
        kept.add(sender, b"x")
    assert len(kept.take(False)) == 2
    for size in (100_000, 1, 60_000, 60_000):
        kept.add(SENDER, bytes(size))
    assert [len(kept.take(False)) for _ in range(4)] == [1, 2, 1, 0]


def test_messages_beyond_the_bound_are_lost_counted_and_told(world: World) -> None:
    world.hub("top")
    world.hub("left", limits=msgspec.structs.replace(FAST, link_buffer=10 * len(b"MSG k\0x")))
    relay = world.relay("left", "top")
    notices: list[object] = []
    publisher, before = world.client("left", on_notice=notices.append), world.client("top")
    before.subscribe(b"k")
    settle(publisher)
    world.hubs["top"].stop(0)
    eventually(lambda: relay.state == "outage")
    publisher.publish_many([(b"k", b"x")] * 25)
    publisher.sync()
    statistics = relay.statistics()
    assert (statistics.waiting, statistics.lost, statistics.uncertain) == (10, {"upstream": 15}, 0)
    world.hub("top", limits=msgspec.structs.replace(FAST, settle=0.2))
    above: list[object] = []
    client = world.client("top", on_notice=above.append)
    client.subscribe(b"k")
    eventually(lambda: relay.statistics().up == 10)
    eventually(lambda: (publisher.sync(), client.sync(), notices and above)[2])
    assert [(n.cause, n.count) for n in notices if hasattr(n, "cause")] == [("upstream", 15)]  # type: ignore[attr-defined]
    assert len(received(client)) == 10


def test_in_an_outage_what_was_wanted_when_the_link_broke_is_kept(world: World) -> None:
    world.chain("top", "left")
    publisher, above = world.client("left"), world.client("top")
    above.subscribe(b"wanted")
    settle(publisher)
    world.hubs["top"].stop(0)
    eventually(lambda: world.relays["left"].state == "outage")
    publisher.publish_many([(b"wanted", b"1"), (b"other", b"2"), (b"wanted", b"3")])
    publisher.sync()
    assert world.relays["left"].statistics().waiting == 2
    world.hub("top", limits=msgspec.structs.replace(FAST, settle=0.2))
    above = world.client("top")
    above.subscribe(b"")
    eventually(lambda: world.relays["left"].statistics().waiting == 0)
    settle(publisher)
    assert [message.payload for message in received(above)] == [b"1", b"3"]
