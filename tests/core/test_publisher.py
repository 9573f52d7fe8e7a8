"""One client as a publisher, from turn to turn."""

from __future__ import annotations

from collections.abc import Callable

from accounting import connection_of
from support import Peer

from sbuslib import Hub

Connect = Callable[..., Peer]


def test_set_of_those_who_hold_a_publisher_is_not_copied_for_each(hub: Hub, connect: Connect) -> None:
    """One message may go to thousands of receivers of its publisher's user, all of which hold it in one turn."""
    publishing, *receivers = (connection_of(hub, connect()) for _ in range(4))
    publisher = publishing.publisher
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
