"""Whether a key has addressees, as events: on one hub, through a tree, and where that may not be known."""

from __future__ import annotations

from typing import Any

import gevent
import msgspec
import pytest
from support import PATIENCE, eventually
from worlds import FAST, STRANGER, World, settle

from sbuslib import Hub
from sbuslib.errors import NoServerError


def changes(watch: Any, wanted: bool | None) -> None:
    """The next event says so, and nothing else is there."""
    assert watch.receive(timeout=PATIENCE) is wanted
    assert watch.wanted is wanted


def test_every_hub_of_a_tree_says_when_a_key_becomes_wanted_and_no_longer_is(world: World) -> None:
    world.chain("top", "middle", "low")
    clients = {name: world.client(name) for name in world.hubs}
    settle(*clients.values())
    monitor = world.client("top", monitor=True)
    monitor.subscribe(b"")
    settle(monitor)
    for name, client in clients.items():
        watches = [
            other.hub.watch_interest(what) for other in clients.values() for what in (b"camera/1", b"camera/*", b"*/1")
        ]
        for watch in watches:
            assert watch.wanted is False, name
        first, second = client.subscribe(b"camera/1"), client.subscribe(b"camera/")
        for watch in watches:
            changes(watch, True)
        first.unsubscribe()  # another is left
        second.unsubscribe()
        for watch in watches:
            changes(watch, False)
            watch.close()
    settle(*clients.values())
    for hub in world.hubs.values():
        assert not any(hub.tree.watches.watched(client) for client in hub.tree.everybody())


def test_a_pattern_is_compared_with_many_and_is_unknown_until_then(world: World) -> None:
    world.hub("top")
    holder, asker = world.client("top"), world.client("top")
    with asker.hub.watch_interest(b"x/*") as few:
        eventually(lambda: asker.sync() and few.wanted is False)
        many = holder.subscribe(*(b"y/%d" % number for number in range(2_000)))
        last = holder.subscribe(b"x/1")
        with asker.hub.watch_interest(b"*/1") as watch:
            eventually(lambda: asker.sync() and watch.wanted is True)
        last.unsubscribe()
        many.unsubscribe()
        eventually(lambda: asker.sync() and few.wanted is False)


def test_nobody_is_told_of_what_it_may_not_publish_to_and_a_reload_counts(world: World) -> None:
    hub: Hub = world.hub("top", authorize=lambda who, verb, key: verb == "subscribe" or key.startswith(b"open"))
    client = world.client("top")
    client.subscribe(b"open", b"shut")
    with client.hub.watch_interest(b"open") as may, client.hub.watch_interest(b"shut") as may_not:
        assert (may.wanted, may_not.wanted) == (True, None)
        hub.reconfigure(authorize=lambda who, verb, key: verb == "subscribe" or key.startswith(b"shut"))
        changes(may, None)
        changes(may_not, True)


def test_what_is_beyond_the_limits_is_unknown_and_disconnects_nobody(world: World) -> None:
    hub: Hub = world.hub("top", limits=msgspec.structs.replace(FAST, user_patterns=1))
    world.uids["top"] = STRANGER
    client = world.client("top", timeout=0.05)
    with client.hub.watch_interest(b"a"):
        with client.hub.watch_interest(b"b") as beyond:
            assert beyond.wanted is None
        with pytest.raises(TimeoutError), client.hub.watch_interest(b"x" * (hub.limits.pattern_bytes + 1)):
            pass
    assert client.epoch == 1
    assert client.hub.whoami()
    client.close()
    eventually(lambda: not hub.clients.connections)
    assert hub.context.quotas.account(STRANGER).patterns == 0


def test_a_question_fails_the_moment_its_last_server_has_gone(world: World) -> None:
    world.chain("top", "low")
    asker, server = world.client("low"), world.peer("top")
    server.send(b"SUB svc")
    server.barrier()
    settle(asker)
    asking = gevent.spawn(asker.request, b"svc", b"?", timeout=None)
    eventually(lambda: asker._connection.session.watching.interest)  # it waits for longer than most
    server.close()
    with pytest.raises(NoServerError):
        asking.get(timeout=PATIENCE)
    assert asker._connection.session.watching.interest == []


def test_a_service_that_is_stopped_answers_first_what_it_took(world: World) -> None:
    world.hub("top")
    asker, server = world.client("top"), world.client("top")
    go, took = gevent.event.Event(), gevent.event.Event()

    def answer(question: Any) -> bytes:
        took.set()
        go.wait()
        return b"answer"

    service = server.serve(b"svc", answer)
    asking = gevent.spawn(asker.request, b"svc", b"?", timeout=None)
    took.wait(PATIENCE)
    eventually(lambda: asker._connection.session.watching.interest)
    stopping = gevent.spawn(service.stop)
    eventually(lambda: service._core._mailbox.closed)
    asker.sync("tree")
    go.set()
    assert asking.get(timeout=PATIENCE) == b"answer"
    stopping.get(timeout=PATIENCE)
    assert asker.hub.is_wanted(b"svc") is False


def test_a_service_whose_stop_is_given_up_is_no_addressee_any_more(world: World) -> None:
    world.hub("top")
    asker, server = world.client("top"), world.client("top")
    go, took = gevent.event.Event(), gevent.event.Event()

    def answer(question: Any) -> bytes:
        took.set()
        go.wait()
        return b""

    service = server.serve(b"svc", answer)
    asking = gevent.spawn(asker.request, b"svc", timeout=None)
    took.wait(PATIENCE)
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.01):
        service.stop()
    assert asker.hub.is_wanted(b"svc") is False
    go.set()
    gevent.wait([asking])


def test_a_watch_outlives_its_hub(world: World) -> None:
    world.hub("top")
    client = world.client("top", reconnect=True)
    client.subscribe(b"a")
    with client.hub.watch_interest(b"a") as here, client.hub.watch_interest(b"b") as away:
        assert here.wanted is True
        world.hubs["top"].stop()
        world.hub("top")
        other = world.client("top")
        other.subscribe(b"b")
        eventually(lambda: client.sync() and (here.wanted, away.wanted) == (True, True))
