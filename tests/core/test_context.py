"""What the parts of a hub share: which receivers may hold which publishers, and which thread may call the hub."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from accounting import connection_of
from flooding import flood, is_held, slow
from support import Peer, eventually, in_thread

from sbuslib import Hub
from sbuslib.errors import StateError

Connect = Callable[..., Peer]

pytest_plugins = ["accounting_fixtures"]
Bus = Callable[..., Hub]
ConnectAs = Callable[..., Peer]
ROOM = 4


@pytest.mark.parametrize(
    ("receiver_uid", "publisher_uid", "holds"),
    [
        (1001, 1001, True),  # the publisher's own user
        (0, 1001, True),  # root
        (1003, 1001, True),  # on the hub's list
        (1002, 1001, False),  # a stranger
        (1002, 0, False),
        (1001, 1003, False),  # trust is not mutual
    ],
)
@pytest.mark.parametrize("mode", [b"blocking/soft/block", b"blocking/hard/block"])
def test_whose_block_is_honoured(
    bus: Bus, connect_as: ConnectAs, receiver_uid: int, publisher_uid: int, holds: bool, mode: bytes
) -> None:
    hub = bus({"mode": 0o777, "trusted": [1003]}, queued_packets=ROOM)
    reader = connect_as(receiver_uid)
    receiving = slow(hub, reader, mode)
    publisher = connect_as(publisher_uid)
    publishing = connection_of(hub, publisher)
    assert (receiving.credentials.uid, publishing.credentials.uid) == (receiver_uid, publisher_uid)
    flood(publisher, 0, 8)
    eventually(lambda: publishing.received == 8)
    assert is_held(publishing) is holds
    if holds:
        assert receiving.outgoing.lost == ({"overflow": 3} if b"soft" in mode else {})
    else:
        assert receiving.outgoing.lost == {"overflow": 3}
        publisher.barrier()
    while receiving.outgoing.queued or is_held(publishing):
        reader.receive()
    publisher.barrier()


def test_methods_that_need_a_started_hub(address: str) -> None:
    hub = Hub(address)
    for verb in (lambda: hub.publish(b"a"), lambda: hub.subscribe(b"a"), hub.tap, hub.whoami):
        with pytest.raises(StateError, match="start"):
            verb()


def test_another_thread_is_told_so(hub: Hub, connect: Connect) -> None:
    inbox = hub.subscribe(b"a")
    for verb in (
        lambda: hub.publish(b"a"),
        lambda: hub.subscribe(b"a"),
        hub.tap,
        hub.whoami,
        hub.stop,
        hub.close,
        lambda: inbox.receive(timeout=0),
        inbox.unsubscribe,
    ):
        error = in_thread(verb)
        assert isinstance(error, StateError), error
        assert "thread" in str(error)
    peer = connect()
    peer.publish(b"a", b"x")
    peer.barrier()
    assert inbox.receive(timeout=5).payload == b"x"
