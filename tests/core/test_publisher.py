"""One client as a publisher, from turn to turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from accounting import connection_of
from support import Peer, eventually

from sbuslib import Hub, Limits
from sbuslib.core.publisher import Publisher
from sbuslib.core.undelivered import Undelivered
from sbuslib.reasons import Reason

Connect = Callable[..., Peer]


def test_set_of_those_who_hold_a_publisher_is_not_copied_for_each(hub: Hub, connect: Connect) -> None:
    """One message may go to thousands of receivers of its publisher's user, all of which hold it in one turn."""
    publishing, *receivers = (connection_of(hub, connect()) for _ in range(4))
    publisher = publishing
    publisher.hold(receivers[0].outgoing)
    holders = publisher.holders
    for receiver in receivers[1:]:
        publisher.hold(receiver.outgoing)
    assert publisher.holders is holders
    assert len(holders) == 3
    for receiver in receivers:
        publisher.let_go(receiver.outgoing)
    assert not publisher.holders
    assert not isinstance(publisher.holders, set)  # an empty one would be some two hundred bytes for each idle client


@pytest.mark.parametrize("how", ["kicked", "stopped"])
def test_what_some_receivers_have_got_reaches_the_others_when_its_publisher_leaves(
    make_hub: Callable[..., Hub], connect: Connect, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It leaves between two turns. Until the others have it, it counts as a connection of its user."""
    hub = make_hub(limits=Limits(turn_deliveries=2))
    receivers = [connect() for _ in range(80)]
    for receiver in receivers:
        receiver.subscribe(b"all")
    peer = connect()
    outgoing = connection_of(hub, peer).outgoing
    connections = outgoing.account.connections

    def hand_on_and_leave(publisher: Publisher, messages: Undelivered[Any]) -> bool:
        is_cut = hand_on(publisher, messages)
        if how == "stopped":
            gevent.spawn(hub.stop, 0)
        elif not outgoing.closed:
            hub.context.members.kick_later(outgoing, Reason.UNKNOWN_VERB)
        elif is_cut:
            assert outgoing.account.connections == connections
        return is_cut

    hand_on = Publisher.hand_on
    monkeypatch.setattr(Publisher, "hand_on", hand_on_and_leave)
    peer.publish(b"all", b"1")
    assert [receiver.receive() for receiver in receivers] == [b"MSG all\x001"] * 80
    if how == "kicked":
        eventually(lambda: outgoing.account.connections == connections - 1)
    assert hub.statistics().lost == {}
