"""The connection of the gevent and the blocking client: callers that share it, hubs that go away, reconnection."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from clients.makers import Make, MakeClient, StartsHub, Starved, greeted
from gevent.event import Event
from support import PATIENCE, WHOAMI, FakeHub, HubThread, eventually, own_key

from sbuslib import Client, Hub, blocking
from sbuslib.clients import channel
from sbuslib.clients.endpoint import Endpoint
from sbuslib.clients.reconnect import CONNECT_PAUSE, CONNECT_PAUSE_MOST
from sbuslib.errors import (
    AddressError,
    DisconnectedError,
    NoHubError,
    PeerError,
    SbusError,
)
from sbuslib.kernel.sockets import Listener, wait
from sbuslib.limits import ClientLimits
from sbuslib.wire.addresses import PathAddress
from sbuslib.wire.packets import Message


def test_close(server: HubThread, make: Make) -> None:
    client, other = make(), make()
    other.subscribe(b"")
    for number in range(100):
        client.publish(b"a", b"%d" % number)
    client.close()
    client.close()
    assert client.closed
    for verb in (
        client.receive,
        lambda: client.publish(b"a"),
        lambda: client.subscribe(b"a"),
        client.whoami,
        client.sync,
    ):
        with pytest.raises(DisconnectedError, match="closed"):
            verb()
    assert list(client) == []
    client.run()
    assert [other.receive(10).payload for _ in range(100)] == [b"%d" % number for number in range(100)]


def test_with_closes_the_client(server: HubThread, kind: type[Endpoint], address: str) -> None:
    with kind(address) as client:
        client.sync()
    assert client.closed


def test_messages_sent_before_the_hub_closed_are_received(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"a")
    for number in range(100):
        server.call(server.hub.publish, b"a", b"%d" % number)
    server.stop()
    assert [client.receive(10).payload for _ in range(100)] == [b"%d" % number for number in range(100)]
    with pytest.raises(DisconnectedError, match="hub closed"):
        client.receive(10)
    with pytest.raises(DisconnectedError):
        list(client)
    with pytest.raises(DisconnectedError):
        client.run()
    for _ in range(2):
        with pytest.raises(DisconnectedError):
            client.publish(b"a")


def test_several_threads_or_greenlets_use_one_client_at_once(
    server: HubThread, make: Make, kind: type[Endpoint]
) -> None:
    """Threads share the blocking client, greenlets the gevent one. Each answer and each message reaches one of them."""
    client = make()
    client.subscribe(b"a")
    got: list[bytes] = []
    failures: list[Exception] = []

    def take() -> None:
        try:
            got.extend(client.receive(20).payload for _ in range(250))
        except Exception as error:
            failures.append(error)

    def ask() -> None:
        try:
            for _ in range(50):
                assert client.whoami() == own_key()
                assert client.sync() == "local"
        except Exception as error:
            failures.append(error)

    def say() -> None:
        try:
            for number in range(500):
                client.publish(b"a", b"%d" % number)
        except Exception as error:
            failures.append(error)

    run_together(kind, [take, take, take, take, ask, ask, say, say])
    assert failures == []
    assert sorted(got, key=int) == sorted([b"%d" % number for number in range(500)] * 2, key=int)


def run_together(kind: type[Endpoint], functions: list[Callable[[], None]]) -> None:
    if kind is blocking.Client:
        threads = [threading.Thread(target=function) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        gevent.joinall([gevent.spawn(function) for function in functions], raise_error=True)


def test_close_wakes_callers_that_wait_for_a_message(server: HubThread, make: Make, kind: type[Endpoint]) -> None:
    client = make(timeout=None)
    outcomes: list[object] = []

    def wait() -> None:
        try:
            client.receive()
        except SbusError as error:
            outcomes.append(type(error))

    def iterate() -> None:
        outcomes.append(list(client))

    def close() -> None:
        client.sync()
        client.close()

    run_together(kind, [wait, iterate, wait, close])
    assert sorted(map(str, outcomes)) == sorted(map(str, [DisconnectedError, DisconnectedError, []]))


SWIFT = ClientLimits(reconnect_pause=0.001, reconnect_pause_most=0.002)


def test_reconnect_restores_everything(make: Make, address: str) -> None:
    epochs: list[int] = []
    with HubThread(address):
        client = make(reconnect=True, limits=SWIFT, on_reconnect=lambda who: epochs.append(who.epoch))
        client.subscribe(b"a", b"a", b"b/*", client.credentials + b"/x")
        client.unsubscribe(b"a")
        client.echo(False)
        client.senders(True)
    for epoch in (2, 3):
        with HubThread(address) as server, blocking.Client(address) as other:
            client.sync()
            assert epochs[-1] == client.epoch == epoch
            client.publish(b"a", b"own")
            client.sync()
            other.publish(b"a", b"1")
            other.publish(b"b/c", b"2")
            other.publish(client.credentials + b"/x", b"3")
            assert [client.receive(10).payload for _ in range(3)] == [b"1", b"2", b"3"]
            client.echo(True)
            client.publish(b"a", b"4")
            assert client.receive(10) == Message(b"a", b"4", own_key())
            client.echo(False)
            client.sync()
            assert server.call(server.hub.statistics).patterns == 3


def test_secrets_are_renewed_when_the_prefix_changes(server: HubThread, make: Make) -> None:
    called: list[bytes] = []
    notices: list[object] = []
    client = make(reconnect=True, limits=SWIFT, on_notice=notices.append)
    client.subscribe(client.credentials + b"/x", callback=lambda message: called.append(message.payload))
    other = make()
    for prefix in (b"!/cred/1/2/3/", b"!/cred/4/5/6/!/cred/1/2/3/", b""):
        server.call(server.hub.tree.set_prefix, prefix)
        client.sync()
        client.sync()  # by now what it said on hearing of that is in force
        assert client.credentials == prefix + own_key()
        other.publish(client.credentials + b"/x", prefix)
        other.publish(b"!/cred/7/8/9/x", b"nobody's")
        other.sync()
        client.sync()
        client.run(timeout=0)
        assert called[-1:] == [prefix]
    assert len(called) == len(notices) == 3


def test_notices_are_told_to_a_client_that_receives_with_flags(server: HubThread, make: Make) -> None:
    notices: list[object] = []
    client = make(on_notice=notices.append)
    client.sync()  # by now the hub knows that it wants notices
    server.call(server.hub.tree.set_prefix, b"!/cred/1/2/3/")
    assert wait(client.socket, select.POLLIN, PATIENCE)
    with pytest.raises(BlockingIOError):
        client.receive(flags=socket.MSG_DONTWAIT)
    assert len(notices) == 1


@pytest.mark.parametrize("flags", [0, socket.MSG_PEEK], ids=["plain", "with flags"])
def test_reconnect_while_receiving(make: Make, address: str, flags: int) -> None:
    first = HubThread(address)
    first.__enter__()
    client = make(reconnect=True, limits=SWIFT)
    client.subscribe(b"a")
    first.call(first.hub.publish, b"a", b"1")
    first.stop()
    with HubThread(address) as second:
        assert client.receive(10).payload == b"1"
        publishing = threading.Thread(target=publish_when_wanted, args=(second, b"a", b"2"))
        publishing.start()
        assert client.receive(20, flags=flags).payload == b"2"
        publishing.join()


def publish_when_wanted(server: HubThread, key: bytes, payload: bytes) -> None:
    """Publish when a client has subscribed."""
    while not server.call(server.hub.statistics).patterns:
        pass
    server.call(server.hub.publish, key, payload)


def test_reconnect_while_publishing(make: Make, address: str) -> None:
    with HubThread(address):
        client = make(reconnect=True, limits=SWIFT)
    with HubThread(address) as second:
        inbox = second.call(second.hub.subscribe, b"a")
        client.publish(b"a", b"x")
        client.publish_many([(b"a", b"y")])
        client.sync()
        assert [second.call(inbox.get, 5).payload for _ in range(2)] == [b"x", b"y"]


def test_a_client_that_reconnects_waits_for_its_first_hub(make: Make, address: str) -> None:
    with StartsHub(address) as starter:
        client = make(reconnect=True, limits=SWIFT)
        assert client.connected
        assert client.epoch == 1
        client.subscribe(b"a")
        client.publish(b"a", b"x")
        assert client.receive(PATIENCE).payload == b"x"
    assert starter.logged[0] == (
        f"client of {address}: waiting for a hub: no hub at {address}: No such file or directory"
    )


def test_it_waits_for_its_first_hub_no_longer_than_the_timeout(make: Make, address: str) -> None:
    with pytest.raises(NoHubError, match="No such file or directory"):
        make(reconnect=True, limits=SWIFT, timeout=0.02)
    with pytest.raises(NoHubError):
        make()
    with pytest.raises(AddressError):
        make(to="x" * 200, reconnect=True, timeout=None)


def test_the_state_of_the_connection_is_told(make: Make, address: str) -> None:
    told: list[object] = []
    options: dict[str, Any] = {
        "limits": SWIFT,
        "on_reconnect": lambda client: told.append((client.connected, client.epoch)),
        "on_disconnect": lambda client, error: told.append((client.connected, str(error))),
    }
    with HubThread(address):
        client = make(reconnect=True, **options)
        other = make(**options)
        assert client.connected
        assert told == []
    with HubThread(address) as second:
        assert client.whoami() == own_key()
        assert told == [(False, f"{address}: the hub closed the connection"), (True, 2)]
        told.clear()
        with pytest.raises(DisconnectedError):
            other.receive(PATIENCE)
        assert not other.connected
        with pytest.raises(DisconnectedError):
            other.whoami()
        assert told == [(False, f"{address}: the hub closed the connection")], "once"
        told.clear()
        second.call(second.hub.tree.set_prefix, b"!/cred/1/2/3/")
        client.close()
        assert not client.connected
        assert told == [], "the application knows that it closed the client"


def test_reconnect_gives_up_at_the_timeout(make: Make, address: str) -> None:
    with HubThread(address):
        client = make(reconnect=True, limits=SWIFT, timeout=0.05)
    with pytest.raises(TimeoutError):
        client.receive(0.05)
    with pytest.raises(BlockingIOError):
        client.receive(flags=socket.MSG_DONTWAIT)
    with pytest.raises(TimeoutError):
        client.whoami()
    with pytest.raises(TimeoutError):
        client.publish(b"a")
    with HubThread(address):
        client.timeout = 10
        assert client.whoami() == own_key()


def test_without_reconnect_a_client_does_not_connect_again(make: Make, address: str) -> None:
    with HubThread(address):
        client = make()
    with HubThread(address), pytest.raises(DisconnectedError):
        client.receive(10)


def test_a_refused_subscription_is_not_restored(make: Make, address: str) -> None:
    """If it were restored, the hub would close the new connection too, and so on for ever."""
    with HubThread(address) as server:
        client = make(reconnect=True, limits=SWIFT)
        with pytest.raises(SbusError):
            client.subscribe(b"!/cred/*/*/*/x")
        assert client.whoami() == own_key()
        assert server.call(server.hub.statistics).breaches == {"secret pattern of another": 1}


SAYING: dict[str, tuple[bytes, Callable[[Endpoint], object]]] = {
    "publish": (b"MSG", lambda client: client.publish(b"k", b"x")),
    "publish_many": (b"MSG", lambda client: client.publish_many([(b"k", b"x")])),
    "unsubscribe": (b"UNSUB", lambda client: client.unsubscribe(b"j")),
}


@pytest.mark.parametrize("verb", SAYING)
def test_sending_waits_while_the_kernel_has_no_memory(
    server: HubThread, make: Make, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MEMORY_PAUSE", 0.001)
    reader, client = make(), make()
    reader.subscribe(b"k")
    client.subscribe(b"j")
    about, say = SAYING[verb]
    client._socket = Starved(client._socket, about, 3)  # type: ignore[assignment]
    say(client)
    client.publish(b"k", b"after")
    payloads = [reader.receive(20).payload]
    if verb != "unsubscribe":
        payloads.append(reader.receive(20).payload)
    assert payloads == ([b"after"] if verb == "unsubscribe" else [b"x", b"after"])


@pytest.mark.parametrize("verb", SAYING)
def test_sending_times_out_if_the_kernel_stays_without_memory(
    server: HubThread, make: Make, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MEMORY_PAUSE", 0.001)
    client = make()
    client.subscribe(b"j")
    client.timeout = 0.01
    about, say = SAYING[verb]
    client._socket = Starved(client._socket, about, 1e9)  # type: ignore[assignment]
    with pytest.raises(TimeoutError, match="takes no more"):
        say(client)
    if verb == "publish":
        with pytest.raises(BlockingIOError):
            client.publish(b"k", b"x", flags=socket.MSG_DONTWAIT)


def test_a_full_backlog_is_waited_out(address: str, client: MakeClient) -> None:
    """The client pauses between its attempts."""
    listener = Listener(PathAddress(address), backlog=0)
    pauses: list[float] = []

    class Counting(Client):
        def _sleep(self, seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 5:
                first.close()
                hub.start()  # which accepts, and so makes room
            super()._sleep(seconds)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
        first.connect(address)
        hub = Hub(listener)
        try:
            with Counting(address, timeout=20) as late:
                assert late.whoami() == own_key()
        finally:
            hub.stop()
    assert len(pauses) >= 5
    assert all(CONNECT_PAUSE <= pause <= CONNECT_PAUSE_MOST for pause in pauses)


def test_a_backlog_that_stays_full_raises_at_the_timeout(address: str, client: MakeClient) -> None:
    listener = Listener(PathAddress(address), backlog=0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
        first.connect(address)
        with pytest.raises(TimeoutError, match="backlog"):
            client(timeout=0.01)
    listener.close()


def test_a_hub_that_closes_at_once(fake: FakeHub, client: MakeClient) -> None:
    closing = gevent.spawn(lambda: fake.accept().close())
    with pytest.raises(DisconnectedError):
        client()
    closing.get()


def test_a_hub_that_never_answers(fake: FakeHub, client: MakeClient) -> None:
    with pytest.raises(TimeoutError):
        client(timeout=0.01)


@pytest.mark.parametrize("packet", [b"SUB a", b"MSG a", b"nonsense", b"CMSG from\0x\0y"])
def test_a_hub_that_breaks_the_protocol(fake: FakeHub, client: MakeClient, packet: bytes) -> None:
    wary, peer = greeted(fake, client)
    peer.send(packet)
    with pytest.raises(PeerError):
        wary.receive(10)
    with pytest.raises(DisconnectedError):
        wary.receive(10)


def test_a_daemon_without_features(fake: FakeHub, client: MakeClient) -> None:
    plain, peer = greeted(fake, client)
    assert plain.features is None
    subscribing = gevent.spawn(plain.subscribe, b"a")
    assert peer.receive() == b"SUB a"
    assert peer.receive() == WHOAMI + b"\0"  # which comes after the SUB, and so does its answer
    assert not subscribing.ready()
    peer.send(WHOAMI + b"\0" + own_key())
    subscribing.get(timeout=10)


def test_a_hub_with_features_that_are_unknown_here(fake: FakeHub, client: MakeClient) -> None:
    modern, peer = greeted(fake, client, b"hub/sync time/travel id=1 path=1")
    assert modern.features is not None
    assert b"time/travel" in modern.features.words
    peer.send(b"CMSG time/travel\0 back", b"MSG a\0x")
    assert modern.receive(10).payload == b"x"


def test_there_are_pauses_between_connections_to_a_hub_that_always_closes_them(fake: FakeHub) -> None:
    """The hub accepts, greets and closes each connection. The client must still pause between them.

    So it is when the hub refuses what the client restores.
    """
    pauses: list[float] = []

    class Counting(Client):
        def _sleep(self, seconds: float) -> None:
            pauses.append(seconds)
            super()._sleep(seconds)

    connections = 0
    subscribed = Event()

    def serve() -> None:
        nonlocal connections
        first = fake.greet()
        subscribed.wait()
        first.close()
        while True:
            with fake.greet() as peer:
                assert peer.receive() == b"SUB a"
            connections += 1

    serving = gevent.spawn(serve)
    with Counting(fake.socket.getsockname(), reconnect=True, limits=SWIFT) as client:
        client._session.held[b"a"] = 1
        subscribed.set()
        receiving = gevent.spawn(client.receive)
        eventually(lambda: connections >= 40)
        receiving.kill()
        serving.kill()
    assert len(pauses) >= 30


def test_close_ends_a_reconnection(hub: Hub, client: MakeClient) -> None:
    loyal = client(reconnect=True, limits=SWIFT, timeout=None)
    hub.stop()
    receiving = gevent.spawn(loyal.receive)
    gevent.sleep(0.01)
    loyal.close()
    with pytest.raises(DisconnectedError):
        receiving.get(timeout=10)


def test_an_error_in_on_reconnect_reaches_the_caller(make_hub: Callable[..., Hub], client: MakeClient) -> None:
    def fail(who: object) -> None:
        raise KeyError("caller's")

    hub = make_hub()
    loyal = client(reconnect=True, limits=SWIFT, on_reconnect=fail)
    loyal.subscribe(b"a")
    hub.stop()
    hub.start()
    with pytest.raises(KeyError, match="caller's"):
        loyal.receive(10)
    loyal.sync()
    hub.publish(b"a", b"x")
    assert loyal.receive(10).payload == b"x"


def test_a_subscription_made_during_a_reconnection_counts_once(fake: FakeHub, client: MakeClient) -> None:
    loyal, peer = greeted(fake, client, reconnect=True, limits=SWIFT)
    peer.close()
    receiving = gevent.spawn(loyal.receive)
    again = fake.accept()
    assert again.receive() == b"CMSG hub/features\0"
    assert again.receive() == WHOAMI + b"\0"
    subscribing = gevent.spawn(loyal.subscribe, b"a")  # while the new connection waits for its first answer
    gevent.sleep(0)
    again.send(WHOAMI + b"\0" + own_key())
    said: list[bytes] = []
    while not said or not said[-1].startswith(WHOAMI):
        said.append(again.receive())
    again.send(WHOAMI + b"\0" + own_key())
    subscribing.get(timeout=10)
    again.send(b"MSG end\0")
    receiving.get(timeout=10)
    said += iter(lambda: again.receive() if select.select([again.socket], [], [], 0)[0] else None, None)
    assert said.count(b"SUB a") == 1


def test_subscribe_over_a_reconnection_returns_when_it_is_in_force(fake: FakeHub, client: MakeClient) -> None:
    loyal, peer = greeted(fake, client, b"hub/sync id=1 path=1", reconnect=True, limits=SWIFT)
    subscribing = gevent.spawn(loyal.subscribe, b"a")
    assert peer.receive() == b"SUB a"
    peer.close()
    again = fake.greet(b"hub/sync id=1 path=1")
    assert again.receive() == b"SUB a"
    for _ in range(50):
        gevent.sleep(0)
    assert not subscribing.ready(), "it returned, though this hub has not acknowledged anything"
    question = again.receive()
    assert question.startswith(b"CMSG ")
    again.send(question if question.startswith(b"CMSG hub/sync") else WHOAMI + b"\0" + own_key())
    subscribing.get(timeout=10)
