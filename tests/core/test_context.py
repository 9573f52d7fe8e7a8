"""What the parts of a hub share: which receivers may hold which publishers, and which thread may call the hub."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from accounting import connection_of, numbers
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
    eventually(lambda: publishing.publisher.received == 8)
    assert is_held(publishing) is holds
    if holds:
        assert receiving.outgoing.lost == ({"overflow": 3} if b"soft" in mode else {})
    else:
        assert receiving.outgoing.lost == {"overflow": 3}
        publisher.barrier()
    while receiving.outgoing.queued or is_held(publishing):
        reader.receive()
    publisher.barrier()


def test_the_hubs_own_user_may_block(bus: Bus, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: 1009)
        hub = bus({"mode": 0o777})
    reader = connect_as(1009)
    slow(hub, reader, b"blocking/soft/block")
    publisher = connect_as(1001)
    publishing = connection_of(hub, publisher)
    flood(publisher, 0, 3)
    eventually(lambda: is_held(publishing))
    assert numbers([reader.receive() for _ in range(3)]) == [0, 1, 2]


def test_a_stranger_cannot_stall_publishers_in_turn(bus: Bus, connect_as: ConnectAs) -> None:
    hub = bus({"mode": 0o777}, block_timeout=0.01)
    stranger = connect_as(1002)
    receiving = slow(hub, stranger, b"blocking/soft/block", b"blocking/hard/block", pattern=b"")
    witness = connect_as(1001)
    witness.subscribe(b"k")
    for number in range(5):
        publisher = connect_as(1001)
        flood(publisher, number, number + 1)
        publisher.barrier()
    assert numbers(witness.pending()) == [0, 1, 2, 3, 4]
    assert not receiving.outgoing.held
    assert not receiving.outgoing.closed


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
        inbox.close,
    ):
        error = in_thread(verb)
        assert isinstance(error, StateError), error
        assert "thread" in str(error)
    peer = connect()
    peer.publish(b"a", b"x")
    peer.barrier()
    assert inbox.receive(timeout=5).payload == b"x"
