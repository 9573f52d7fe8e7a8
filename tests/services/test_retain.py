"""Last values over real hubs: what is kept, what a subscription begins with, kills, relays, several services."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import pytest
from cli.conftest import Start
from clients.conftest import kind as kind
from clients.conftest import make as make
from clients.makers import Make, run
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Programs, wait_until
from support import PATIENCE, HubThread, MakeHub, eventually
from worlds import STRANGER, World

from sbuslib import Limits, Subscription, aio, blocking
from sbuslib.clients.recipes.last import CaughtUp
from sbuslib.errors import NoServerError, StateError
from sbuslib.matcher import matches
from sbuslib.services import retain
from sbuslib.services.retain import Kept, Retain, Told
from sbuslib.wire.packets import Message

# -- what is kept ---------------------------------------------------------------------------------------------

MESSAGES = st.lists(
    st.builds(
        Told,
        st.sampled_from([b"", b"a", b"a/1", b"a/2", b"b/1", b"b*"]),
        st.sampled_from([b"", b"x", b"yy"]),
        st.none(),
    )
)


@given(st.lists(MESSAGES), st.integers(1, 5), st.integers(1, 20), st.sampled_from([b"", b"a/", b"a/*", b"b*", b"a"]))
def test_kept_is_what_a_plain_model_keeps(batches: list[list[Told]], keys: int, size: int, pattern: bytes) -> None:
    kept = Kept(keys=keys, size=size)
    model: OrderedDict[bytes, bytes] = OrderedDict()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retain, "PAGE_BYTES", 5)
        for batch in batches:
            kept.take(batch)
            for message in batch:
                model.pop(message.key, None)
                if message.payload:
                    model[message.key] = message.payload
                while len(model) > keys or sum(len(key) + len(value) for key, value in model.items()) > size:
                    model.popitem(last=False)
            assert list(kept.values.items()) == list(model.items())
            found, after, more = list[tuple[bytes, bytes]](), None, True
            while more:
                page = kept.page(pattern, after, b"/")
                found += page.kept
                more = page.more
                after = found[-1][0] if found else None
            assert found == sorted(pair for pair in model.items() if matches(pattern, pair[0]))


@settings(max_examples=10)
@given(st.lists(MESSAGES, max_size=4))
def test_a_file_has_it_after_each_batch(batches: list[list[Told]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for batch in batches:
            kept = Kept(f"{folder}/last.db", keys=3)
            before = list(kept.values.items())
            kept.take(batch)
            after = list(kept.values.items())
            kept.close()
            again = Kept(f"{folder}/last.db", keys=3)
            assert list(again.values.items()) == after, before
            again.close()


def test_what_is_too_long_to_be_told_is_not_kept_nor_what_was_before() -> None:
    kept = Kept()
    kept.take([Told(b"a", b"x"), Told(b"a", bytes(retain.LONGEST))])
    assert kept.values == {}


def test_a_user_without_room_forgets_its_own_values_only() -> None:
    kept = Kept(keys=100)
    kept.take(Told(b"ours/%d" % number, b"x") for number in range(50))
    kept.take(Told(b"theirs/%d" % number, b"x", 1_000) for number in range(500))
    theirs = [key for key in kept.values if key.startswith(b"theirs/")]
    assert [key for key in kept.values if key.startswith(b"ours/")] == [b"ours/%d" % number for number in range(50)]
    assert theirs == [b"theirs/%d" % number for number in range(500 - len(theirs), 500)]
    assert 10 < len(theirs) < 50


def test_a_key_that_another_user_publishes_is_charged_to_it() -> None:
    kept = Kept(keys=4)
    kept.take([Told(b"k", b"1", 1_000), Told(b"k", b"2", 1_001), Told(b"a", b"", 1_001)])
    kept.take(Told(b"a/%d" % number, b"x", 1_000) for number in range(2))
    assert kept.values == {b"k": b"2", b"a/1": b"x"}


def test_whose_values_are_kept_is_in_the_file(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "last", keys=10)
    kept.take([Told(b"ours", b"x"), *(Told(b"theirs/%d" % number, b"x", 1_000) for number in range(3))])
    kept.close()
    again = Kept(tmp_path / "last", keys=10)
    again.take(Told(b"more/%d" % number, b"x", 1_000) for number in range(20))
    assert b"ours" in again.values
    assert len(again.values) == 1 + 3
    again.close()


def test_a_file_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database" * 1_000)
    used = Kept(tmp_path / "used")
    with sqlite3.connect(tmp_path / "other") as other:
        other.execute("CREATE TABLE kept (key TEXT, payload TEXT, more TEXT)")
        other.execute("INSERT INTO kept VALUES ('a', 'b', 'c')")
    other.close()
    for name in ("text", "used", "other", "nowhere/file"):
        with pytest.raises(StateError, match=name):
            Kept(tmp_path / name)
    used.close()


# -- over hubs ------------------------------------------------------------------------------------------------


@contextmanager
def retaining(address: str, *patterns: bytes, **options: Any) -> Iterator[Retain]:
    """A service in this thread's event loop."""
    service = Retain(address, *patterns, **options)
    greenlet = gevent.spawn(service.run)
    try:
        eventually(service.is_settled.is_set)
        yield service
    finally:
        service.stop()
        greenlet.get(timeout=PATIENCE)


def until_marker(subscription: Subscription, count: int = 1) -> list[tuple[bytes, bytes]]:
    """What comes before the marker."""
    came: list[tuple[bytes, bytes]] = []
    while count:
        message = subscription.receive(timeout=PATIENCE)
        if isinstance(message, CaughtUp):
            count -= 1
        else:
            came.append((message.key, message.payload))
    return came


@pytest.fixture
def service(server: HubThread, address: str) -> Iterator[Retain]:
    """A service in the thread of the hub."""
    service = server.call(lambda: Retain(address, b"a/", b"b"))
    running = server.call(lambda: gevent.spawn(service.run))
    wait_until(service.is_settled.is_set)
    yield service

    def stop() -> None:
        service.stop()
        running.get()

    server.call(stop)


def test_a_subscription_begins_with_what_is_kept(service: Retain, make: Make) -> None:
    publisher, client = make(), make()
    publisher.publish_many(
        [(b"a/1", b"old"), (b"a/1", b"x"), (b"a/2", b"y"), (b"b", b"z"), (b"c", b"c"), (b"a/3", b"")]
    )
    publisher.sync()
    with client.subscribe(b"a/*", b"b", last=True) as subscription:
        publisher.publish(b"a/1", b"new")
        assert until_marker(subscription, 2) == [(b"a/1", b"x"), (b"a/2", b"y"), (b"b", b"z")]
        assert subscription.receive(timeout=PATIENCE).payload == b"new"
    assert [(message.key, message.payload) for message in client.last(b"a/")] == [(b"a/1", b"new"), (b"a/2", b"y")]
    assert client.last(b"a/7") == []
    heard: list[Message] = []
    with client.subscribe(b"b", on_message=heard.append, last=True):
        pass
    assert [(type(message), message.key) for message in heard] == [(Message, b"b"), (CaughtUp, b"b")]


def test_what_the_application_holds_as_well_comes_once(service: Retain, make: Make) -> None:
    client = make()
    client.subscribe(b"a/")
    client.publish(b"a/1", b"x")
    assert client.receive(timeout=PATIENCE).payload == b"x"
    subscription = client.subscribe(b"a/1", last=True)
    client.publish(b"a/1", b"y")
    client.publish(b"a/2", b"z")
    assert until_marker(subscription) == [(b"a/1", b"x")]
    assert subscription.receive(timeout=PATIENCE).payload == b"y"
    assert [client.receive(timeout=PATIENCE).payload for _ in range(2)] == [b"y", b"z"]
    with pytest.raises(TimeoutError):
        client.receive(timeout=0.01)


def test_asyncio_subscribes_with_last_values(service: Retain, address: str) -> None:
    async def test() -> None:
        async with aio.Client(address) as client:
            await client.publish(b"a/1", b"x")
            subscription = await client.subscribe(b"a/", last=True)
            first, second = [await subscription.receive(timeout=PATIENCE) for _ in range(2)]
            assert (first.payload, type(second)) == (b"x", CaughtUp)
            assert [message.payload for message in await client.last(b"a/*")] == [b"x"]

    run(test())


def test_without_a_service_there_is_an_error_and_no_subscription(server: HubThread, make: Make) -> None:
    client = make()
    for ask in (lambda: client.last(b"a/"), lambda: client.subscribe(b"a/", last=True)):
        with pytest.raises(NoServerError):
            ask()
    client.publish(b"a/1")
    with pytest.raises(TimeoutError):
        client.receive(timeout=0.01)


def test_many_values_come_in_pages(make_hub: MakeHub) -> None:
    hub = make_hub(limits=Limits(settle=0.01))
    eventually(lambda: hub.tree.has_settled)  # from then on it knows that there is no other service
    with hub.client() as client, retaining(hub.address, b"") as service:
        pairs = [(b"k/%05d" % number, bytes(300)) for number in range(3_000)]
        client.publish_many(pairs)
        assert until_marker(client.subscribe(b"k/", last=True)) == pairs
        assert list(service.kept.values) == [key for key, _ in pairs], "its own questions are not kept"


def test_a_second_service_takes_over_what_the_first_keeps(server: HubThread, ready: Start, tmp_path: Path) -> None:
    file = str(tmp_path / "last.db")
    with blocking.Client(server.address) as client:

        def kept() -> list[bytes]:
            return [message.payload for message in client.last(b"a/")]

        first = ready("retain", "a/")
        client.publish_many([(b"a/1", b"x"), (b"a/2", b"y")])
        stale = Kept(file)
        stale.take([Told(b"a/9", b"stale")])
        stale.close()
        second = ready("retain", "a/", "--store", file)
        assert "2 keys are kept, 2 of them from another service" in second.told
        assert kept() == [b"x", b"y"]
        first.kill()
        first.wait()
        assert kept() == [b"x", b"y"]
        client.publish(b"a/2", b"z")
        assert kept() == [b"x", b"z"]
        second.kill()
        second.wait()
        assert "2 keys are kept" in ready("retain", "a/", "--store", file).told
        assert kept() == [b"x", b"z"]


def test_a_service_keeps_at_once_although_a_watcher_seems_to_serve(server: HubThread, make: Make) -> None:
    watcher, client = make(), make()
    watcher.subscribe(b"")
    service = server.call(lambda: Retain(server.address, b"a/"))
    service.client.timeout = 0.3
    client.publish(b"a/1", b"x")
    running = server.call(lambda: gevent.spawn(service.run))
    client.publish(b"a/2", b"y")
    wait_until(service.is_settled.is_set)
    assert [message.payload for message in client.last(b"a/")] == [b"x", b"y"], "all that came since it began"
    assert service.taken_over is None
    server.call(service.stop)
    server.call(running.get)


def test_a_service_that_begins_while_many_publish_has_in_the_end_what_the_elder_has(
    server: HubThread, make: Make
) -> None:
    def begin() -> Retain:
        service = server.call(lambda: Retain(server.address, b"a/"))
        running.append((service, server.call(lambda: gevent.spawn(service.run))))
        return service

    def publish() -> None:
        with blocking.Client(server.address) as client:
            number = 0
            while not stop.is_set():
                number += 1
                for key in range(30):  # now and then there is no value
                    client.publish(b"a/%d" % key, b"%d" % number if (number + key) % 7 else b"")
                client.sync()

    running: list[tuple[Retain, Any]] = []
    stop = threading.Event()
    elder = begin()
    wait_until(elder.is_settled.is_set)
    with ThreadPoolExecutor() as threads:
        publishing = threads.submit(publish)
        wait_until(lambda: len(elder.kept.values) > 20)
        younger = [begin() for _ in range(5)]
        wait_until(lambda: all(one.is_settled.is_set() for one in younger))
        stop.set()
        publishing.result()
    make().sync()
    assert [one.taken_over is None for one in younger] == [False] * 5
    wait_until(lambda: all(one.kept.values == elder.kept.values for one in younger))
    for service, greenlet in running:
        server.call(service.stop)
        server.call(greenlet.get)


@settings(max_examples=50)
@given(MESSAGES, MESSAGES, MESSAGES, st.integers(1, 4))
def test_what_is_taken_over_is_older_than_what_came(
    stale: list[Told], older: list[Told], came: list[Told], keys: int
) -> None:
    kept, model = Kept(keys=keys), Kept(keys=keys)
    kept.take([*stale, *came])
    before = [key for key in kept.values if key in {told.key for told in came}]
    kept.take_older(found := [told for told in older if told.payload], {told.key for told in came})
    model.take([*found, *came])
    assert set(before) <= kept.values.keys(), "nothing new is forgotten for what is old"
    assert {*kept.values.items()} <= {(told.key, told.payload) for told in (*found, *came)}
    if keys == 4 and len({told.key for told in (*stale, *older, *came)}) <= keys:
        assert kept.values == model.values


def test_subscriptions_over_relays_miss_nothing_while_many_publish(programs: Programs, ready: Start) -> None:
    """The newest of each key that one publisher numbers: what is kept, and then each that follows."""
    programs.start("top")
    for name in ("bus", "right"):
        programs.start(name, "top")
        programs.wait_until_joined(name)
    ready("retain", "n/")
    stop, keys = threading.Event(), {b"n/1": "right", b"n/2": "right", b"n/3": "top", b"n/4": "top"}

    def publish(hub: str) -> None:
        number = 0
        with blocking.Client(programs.address(hub)) as client:
            while not stop.is_set():
                number += 1
                client.publish_many([(key, b"%d" % number) for key, where in keys.items() if where == hub])
                client.sync("tree")

    def subscribed(client: blocking.Client) -> list[Message]:
        with client.subscribe(b"n/", last=True) as subscription:
            messages = [subscription.receive(timeout=PATIENCE)]
            while not isinstance(messages[-1], CaughtUp):
                messages.append(subscription.receive(timeout=PATIENCE))
            return messages + [subscription.receive(timeout=PATIENCE) for _ in range(20)]

    with (
        ThreadPoolExecutor() as threads,
        blocking.Client(programs.address("bus")) as near,
        blocking.Client(programs.address("right")) as far,
    ):
        publishing = [threads.submit(publish, hub) for hub in ("right", "top")]
        try:
            wait_until(lambda: len(near.last(b"n/")) == 4, "all have published")
            got = [subscribed(client) for client in (near, far) * 3]
        finally:
            stop.set()
        for each in publishing:
            each.result()
    for messages in got:
        marker = next(at for at, message in enumerate(messages) if isinstance(message, CaughtUp))
        assert {message.key for message in messages[:marker]} == {*keys}
        for key in keys:
            numbers = [int(message.payload) for message in messages if message.key == key]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "one is missing or came twice"


def test_a_stranger_cannot_have_the_values_of_others_forgotten(world: World) -> None:
    world.hub("bus")
    with retaining(world.address("bus"), b"room/", keys=100) as service:
        ours = world.client("bus")
        ours.publish_many([(b"room/ours/%d" % number, b"x") for number in range(50)])
        ours.sync()
        world.uids["bus"] = STRANGER
        theirs = world.client("bus")
        theirs.publish_many([(b"room/theirs/%d" % number, b"x") for number in range(1_000)])
        theirs.sync()
        assert len(ours.last(b"room/ours/")) == 50
        assert 0 < len(ours.last(b"room/theirs/")) < 50
        assert service.kept.forgotten > 900
