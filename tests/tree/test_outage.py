"""What is kept for the hub above, and the count of what was lost."""

from __future__ import annotations

import msgspec
from support import eventually
from worlds import FAST, World, received, settle

from sbuslib.core.protocols import Sender
from sbuslib.secrets import Credentials
from sbuslib.tree.outage import Kept
from sbuslib.tree.vouchers import Voucher

SENDER: Sender = Voucher(bytes, Credentials(gid=1, uid=2, pid=3), b"")


def test_messages_are_kept_in_order_within_both_bounds() -> None:
    kept = Kept(most=3, most_bytes=10)
    assert [kept.add(SENDER, packet) for packet in (b"1234", b"567", b"89ab", b"c", b"d")] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert (kept.messages, kept.bytes, bool(kept)) == (3, 8, True)
    assert [kept.take()[1] for _ in range(3)] == [b"1234", b"567", b"c"]
    assert (kept.messages, kept.bytes, bool(kept)) == (0, 0, False)


def test_messages_that_could_not_be_sent_are_put_back_in_front() -> None:
    kept = Kept(most=10, most_bytes=100)
    for packet in (b"1", b"22", b"333"):
        kept.add(SENDER, packet)
    kept.put_back([kept.take(), kept.take()])
    assert (kept.messages, kept.bytes) == (3, 6)
    assert [kept.take()[1] for _ in range(3)] == [b"1", b"22", b"333"]


def test_a_question_is_sent_first_and_is_no_message() -> None:
    kept = Kept(most=1, most_bytes=1)
    kept.ask(b"first question")
    assert kept.add(SENDER, b"1")
    assert (kept.begins_with_question, kept.messages, kept.bytes) == (True, 1, 1)
    question = kept.take()
    assert question == (None, b"first question")
    assert not kept.begins_with_question
    kept.put_back([question])
    assert (kept.begins_with_question, kept.messages, kept.bytes) == (True, 1, 1)
    kept.forget_questions()
    assert [kept.take()[1]] == [b"1"]
    assert not kept


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
    assert (statistics.buffered, statistics.lost, statistics.uncertain) == (10, 15, 0)
    world.hub("top", limits=msgspec.structs.replace(FAST, settle=0.2))
    above: list[object] = []
    client = world.client("top", on_notice=above.append)
    client.subscribe(b"k")
    eventually(lambda: relay.statistics().forwarded == 10)
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
    assert world.relays["left"].statistics().buffered == 2
    world.hub("top", limits=msgspec.structs.replace(FAST, settle=0.2))
    above = world.client("top")
    above.subscribe(b"")
    eventually(lambda: world.relays["left"].statistics().buffered == 0)
    settle(publisher)
    assert [message.payload for message in received(above)] == [b"1", b"3"]
