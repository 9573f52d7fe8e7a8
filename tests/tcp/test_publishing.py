"""Publishing through a peer: order, and retained data."""

from __future__ import annotations

from typing import Any

import pytest

from sbuslib.errors import PayloadError

from .conftest import Connect, Make


def test_messages_keep_their_order(make_peer: Make) -> None:
    one, two = make_peer(), make_peer()
    inbox = two.subscribe("//n/")
    two.connect(one.address)
    one.wait_for_subscriber("//n/", timeout=10)
    sent = [(f"//n/{number % 3}", b"%d" % number) for number in range(2_000)]
    assert one.publish_many(sent[:1_500]) == 1_500
    for name, data in sent[1_500:]:
        one.publish(name, data)
    got: list[tuple[str, bytes]] = []
    while len(got) < len(sent):
        got += [(message.name, message.data) for message in inbox.receive_many(most=7, timeout=10)]
    assert got == sent
    assert one.flush(10)
    assert one.statistics().sent == 2_000


def test_retained_data_is_sent_to_later_subscribers(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    early = raw(peer)
    early.send(b"sub //state\n")
    peer.wait_for_subscriber("//state", timeout=10)
    peer.retain("//state/door", b"open")
    peer.retain("//state/door", b"shut")
    early.expect(b"pub //state/door 4 open\npub //state/door 4 shut\n")
    late = raw(peer)
    late.send(b"sub //state\nsub door\nsub //state\n")
    late.expect(b"pub //state/door 4 shut\n")
    peer.wait_for_subscriber("//state", 2, timeout=10)
    peer.release("//state/door")
    peer.publish("//state/door", b"end")
    late.expect(b"pub //state/door 3 end\n")


def test_what_came_before_a_pair_at_fault_was_published(make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    stranger = raw(peer)
    stranger.send(b"sub a\n")
    peer.wait_for_subscriber("a", timeout=10)
    wrong: list[Any] = [("a", b"1"), ("a", b"2"), ("ab", b"3"), ("a", "4")]
    with pytest.raises(PayloadError):
        peer.publish_many(wrong)
    assert peer.statistics().published == 3
    peer.flush()
    stranger.expect(b"pub a 1 1\npub a 1 2\npub ab 1 3\n")
