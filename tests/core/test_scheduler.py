"""The scheduler in a hub: turns of several users are shared out, and none of them is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from accounting import big, narrow, numbers, settle
from support import Bus, Connect, ConnectAs, eventually

from sbuslib import Hub
from sbuslib.core.scheduler import Scheduler
from sbuslib.reasons import Reason


def test_sending_to_slow_readers_is_a_turn_of_their_user(
    bus: Bus, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = bus({"mode": 0o777})
    publisher = connect_as(1001)
    readers = [connect_as(1002) for _ in range(10)]
    for reader in readers:
        reader.send(b"SUB k")
        narrow(hub, reader)
    for number in range(3):
        publisher.publish(b"k", big(number))
    publisher.barrier()
    turns: Counter[int] = Counter()
    original = Scheduler.postpone

    def postpone(scheduler: Scheduler, uid: int, resume: Callable[[], None]) -> None:
        turns[uid] += 1
        original(scheduler, uid, resume)

    monkeypatch.setattr(Scheduler, "postpone", postpone)
    for number in range(3):  # each makes all of them writable at once
        assert [numbers([reader.receive()]) for reader in readers] == [[number]] * len(readers)
    eventually(lambda: not hub.statistics().waiting)
    assert turns[1002] >= 2 * len(readers)
    assert not hub.context.running.scheduler.anybody_waits()


def test_a_slow_reader_leaves_while_its_turn_is_postponed(
    bus: Bus, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = bus({"mode": 0o777})
    publisher, reader = connect_as(1001), connect_as(1002)
    reader.send(b"SUB k")
    receiving = narrow(hub, reader)
    for number in range(3):
        publisher.publish(b"k", big(number))
    publisher.barrier()
    original = Scheduler.postpone

    def postpone(scheduler: Scheduler, uid: int, resume: Callable[[], None]) -> None:
        original(scheduler, uid, resume)
        hub.clients.kick(receiving.outbound, Reason.UNKNOWN_VERB)

    with monkeypatch.context() as patched:
        patched.setattr(Scheduler, "postpone", postpone)
        assert numbers([reader.receive()]) == [0]
        eventually(lambda: receiving.outbound.closed)
    settle(hub)
    assert receiving.outbound.lost == {"outage": 2}
    assert not hub.context.running.scheduler.anybody_waits()


def test_patterns_of_clients_that_left_are_removed_a_few_each_turn(
    hub: Hub, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a client that leaves with many patterns keeps no other client waiting."""
    monkeypatch.setattr("sbuslib.core.clients.FORGOTTEN_A_STEP", 5)
    leaver, other = connect(), connect()
    leaver.subscribe(*(b"p/%d" % number for number in range(200)))
    other.barrier()
    steps: list[int] = []
    original = hub.context.router.forget_some

    def forget_some(count: int, user: int) -> bool:
        steps.append(count)
        return original(count, user)

    monkeypatch.setattr(hub.context.router, "forget_some", forget_some)
    leaver.close()
    eventually(lambda: not hub.statistics().patterns)
    assert len(steps) >= 40
    assert set(steps) == {5}
    other.barrier()


def test_no_client_is_read_by_a_hub_that_authorize_closes(
    bus: Bus, connect_as: ConnectAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed in a postponed turn, while others wait for theirs."""
    errors: list[Any] = []
    monkeypatch.setattr(gevent.get_hub(), "handle_error", lambda *error: errors.append(error[1:3]))
    hubs: list[Hub] = []

    def authorize(credentials: object, verb: str, key: bytes) -> bool:
        if hubs[0].context.running.scheduler.anybody_waits() and key.startswith(b"k"):
            hubs[0].close()
        return True

    hub = bus({"mode": 0o777, "authorize": authorize})
    hubs.append(hub)
    connect_as(1001)
    clients = [connect_as(1002) for _ in range(20)]
    for client in clients:
        for number in range(5):
            client.publish(b"k%d" % number, b"x")
    eventually(lambda: hub.closed)
    gevent.idle()
    assert not errors
