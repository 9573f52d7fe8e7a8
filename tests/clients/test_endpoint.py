"""What the gevent and the blocking client share, each against a hub in another thread."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import gevent
import pytest
from support import PATIENCE, HubThread, own_key

import sbuslib
from sbuslib import blocking
from sbuslib.clients import channel
from sbuslib.clients.endpoint import Endpoint
from sbuslib.errors import (
    AddressError,
    DisconnectedError,
    HubIdentityError,
    KeyFormatError,
    NoHubError,
    PayloadError,
    SbusError,
    UsageError,
)
from sbuslib.kernel.sockets import wait
from sbuslib.limits import PACKET_BYTES, ClientLimits
from sbuslib.wire.packets import Message

Make: TypeAlias = Callable[..., Endpoint]


@pytest.fixture(params=[sbuslib.Client, blocking.Client], ids=["gevent", "blocking"])
def kind(request: pytest.FixtureRequest) -> type[Endpoint]:
    found: type[Endpoint] = request.param
    return found


@pytest.fixture
def server(address: str) -> Iterator[HubThread]:
    with HubThread(address) as server:
        yield server


@pytest.fixture
def make(kind: type[Endpoint], address: str) -> Iterator[Make]:
    made: list[Endpoint] = []

    def make(to: str | None = address, **options: Any) -> Endpoint:
        made.append(kind(to, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


def test_publish_and_receive(server: HubThread, make: Make) -> None:
    one, other = make(), make()
    one.subscribe(b"a/*", b"b")
    other.publish(b"a/1", b"x")
    other.publish(b"c")
    other.publish(b"b")
    assert one.receive(10) == Message(b"a/1", b"x")
    assert one.receive(10) == Message(b"b", b"")
    with pytest.raises(TimeoutError, match=r"0\.01"):
        one.receive(0.01)
    with pytest.raises(TimeoutError):
        one.receive(0)


def test_a_client_knows_its_credentials_and_its_hub(
    server: HubThread, make: Make, address: str, kind: type[Endpoint]
) -> None:
    client = make()
    assert client.credentials == client.whoami() == own_key()
    assert client.address == address
    assert client.epoch == 1
    assert client.features is not None
    assert client.features.hub_id == server.hub.hub_id
    assert address in repr(client)
    assert not client.closed
    assert client.fileno() == client.socket.fileno() >= 0
    assert isinstance(client.socket, socket.SocketType)
    assert client.sync() == "local"
    assert client.sync("tree") == "tree"


def test_subscribe_is_in_force_when_it_returns(server: HubThread, make: Make) -> None:
    client = make()
    for number in range(50):
        client.subscribe(b"k%d" % number)
        server.call(server.hub.publish, b"k%d" % number, b"")
        assert client.receive(10).key == b"k%d" % number


def test_subscriptions_are_counted(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"a", b"a")
    client.unsubscribe(b"a")
    client.publish(b"a", b"1")
    client.sync()
    client.unsubscribe(b"a")
    client.publish(b"a", b"2")
    client.sync()
    assert client.receive(10).payload == b"1"
    with pytest.raises(TimeoutError):
        client.receive(0)


def test_publish_many_keeps_the_order_of_large_and_small_messages(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"")
    sizes = [100_000, 100_000, 10, 10, 100_000, 10, 10, 10, 130_000, 10, 10]
    pairs = [(b"k", b"%d " % number + bytes(size)) for number, size in enumerate(sizes)]
    assert client.publish_many(pairs) == len(pairs)
    assert [client.receive(10).payload for _ in sizes] == [payload for _, payload in pairs]


def test_publish_many(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"")
    pairs = [(b"k%d" % (number % 7), b"%d" % number) for number in range(1_000)]
    assert client.publish_many(iter(pairs)) == 1_000
    got: list[Message] = []
    while len(got) < 1_000:
        got += client.receive_many(timeout=10)
    assert [(message.key, message.payload) for message in got] == pairs
    assert client.publish_many([]) == 0


def test_publish_many_sends_the_messages_before_a_wrong_one(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"")
    with pytest.raises(KeyFormatError):
        client.publish_many([(b"a", b"1"), (b"b", b"2"), (b"\0", b"3"), (b"c", b"4")])
    client.sync()
    assert [message.key for message in client.receive_many(timeout=10)] == [b"a", b"b"]


def test_receive_many(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"")
    for number in range(5):
        client.publish(b"k", b"%d" % number)
    client.sync()
    assert [message.payload for message in client.receive_many(2)] == [b"0", b"1"]
    assert len(client.receive_many()) == 3
    with pytest.raises(TimeoutError):
        client.receive_many(timeout=0)


def test_the_longest_message_is_sent_and_a_longer_one_is_refused(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"k")
    payload = bytes(range(256)) * (PACKET_BYTES // 256)
    client.publish(b"k", payload[: PACKET_BYTES - 6])
    assert client.receive(10).payload == payload[: PACKET_BYTES - 6]
    with pytest.raises(PayloadError):
        client.publish(b"k", payload[: PACKET_BYTES - 5])
    client.senders(True)
    client.publish(b"k", payload[: PACKET_BYTES - 6])
    assert client.receive(10) == Message(b"k", payload[: PACKET_BYTES - 6], own_key())


def test_prepare_message(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"")
    message = client.prepare_message(b"a/b")
    assert len(message.payload) == PACKET_BYTES - len(b"MSG a/b\0")
    for text in (b"hello", b"world!", b""):
        message.payload[: len(text)] = text
        message.send(len(text))
        assert client.receive(10) == Message(b"a/b", text)
    message.send(len(message.payload))
    assert len(client.receive(10).payload) == len(message.payload)
    for size in (-1, len(message.payload) + 1):
        with pytest.raises(PayloadError):
            message.send(size)
    with pytest.raises(PayloadError):
        client.prepare_message(b"k" * PACKET_BYTES)
    with pytest.raises(KeyFormatError):
        client.prepare_message(b"\0")


def test_flags_of_send_and_recv(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"a")
    with pytest.raises(BlockingIOError):
        client.receive(flags=socket.MSG_DONTWAIT)
    client.publish(b"a", b"1", flags=socket.MSG_DONTWAIT)
    client.publish(b"a", b"2")
    assert client.receive(10, flags=socket.MSG_PEEK).payload == b"1"
    assert client.receive(10, flags=socket.MSG_PEEK).payload == b"1"
    assert client.receive(10).payload == b"1"
    client.sync()
    assert client.receive(10, flags=socket.MSG_PEEK).payload == b"2"
    assert client.receive(flags=socket.MSG_DONTWAIT).payload == b"2"
    client.senders(True)
    client.publish(b"a", b"3")
    assert client.receive(10, flags=socket.MSG_PEEK) == Message(b"a", b"3", own_key())
    assert client.receive(10) == Message(b"a", b"3", own_key())
    with pytest.raises(TimeoutError):
        client.receive(0.01, flags=socket.MSG_PEEK)


def test_dontwait_raises_while_there_is_no_room(server: HubThread, make: Make) -> None:
    client = make()
    with pytest.raises(BlockingIOError):
        server.call(_fill, client)
    client.sync()


def _fill(client: Endpoint) -> None:
    """Fill the connection. Runs in the thread of the hub, so that the hub cannot receive meanwhile."""
    for _ in range(100_000):
        client._socket.send(b"MSG a\0" + bytes(10_000), socket.MSG_DONTWAIT)


def test_echo_off_keeps_own_messages_away(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"a")
    client.echo(False)
    client.publish(b"a", b"1")
    client.echo(True)
    client.publish(b"a", b"2")
    assert client.receive(10).payload == b"2"


def test_senders(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"a")
    client.senders()
    client.publish(b"a", b"1")
    assert client.receive(10) == Message(b"a", b"1", own_key())
    client.senders(False)
    client.publish(b"a", b"2")
    assert client.receive(10) == Message(b"a", b"2", None)


def test_secrets(server: HubThread, make: Make) -> None:
    holder, other = make(), make()
    key = holder.credentials + b"/inbox"
    holder.subscribe(key)
    other.subscribe(b"")
    other.publish(key, b"hush")
    assert holder.receive(10) == Message(key, b"hush")
    other.sync()
    with pytest.raises(TimeoutError):
        other.receive(0)


def test_a_refused_subscription_ends_the_connection(server: HubThread, make: Make) -> None:
    client, bystander = make(), make()
    with pytest.raises(DisconnectedError):
        client.subscribe(b"!/cred/*/*/*/x")
    bystander.sync()


@pytest.mark.parametrize("pattern", [b"\0", "text", None, b"x" * PACKET_BYTES])
def test_a_wrong_pattern_raises_and_changes_nothing(server: HubThread, make: Make, pattern: Any) -> None:
    client = make()
    for verb in (client.subscribe, client.unsubscribe):
        with pytest.raises(KeyFormatError):
            verb(b"a", pattern)
    client.publish(b"a", b"x")
    client.sync()
    with pytest.raises(TimeoutError):
        client.receive(0)


def test_wrong_arguments(server: HubThread, make: Make) -> None:
    client = make()
    with pytest.raises(UsageError):
        client.subscribe()
    with pytest.raises(UsageError):
        client.sync("world")
    with pytest.raises(KeyFormatError):
        client.publish(b"a\0", b"")
    with pytest.raises(PayloadError):
        client.publish(b"a", "text")  # type: ignore[arg-type]
    with pytest.raises(AddressError):
        make("")
    with pytest.raises(UsageError):
        make(hub_user="no such user")
    client.sync()  # still there


def test_a_wrong_payload_is_refused_under_a_key_that_was_used_before(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"a")
    wrong: list[tuple[Any, Any, type[Exception]]] = [
        (b"a", bytes(PACKET_BYTES - 5), PayloadError),
        (b"a", "text", PayloadError),
        (b"a", None, PayloadError),
        ("a", b"", KeyFormatError),
        ([b"a"], b"", KeyFormatError),
    ]
    for key, payload, error in wrong:
        client.publish(b"a", b"good")
        with pytest.raises(error):
            client.publish(key, payload)
    for payload in (bytearray(b"1"), memoryview(b"2"), bytes(PACKET_BYTES - 6)):
        client.publish(b"a", payload)  # type: ignore[arg-type]
    got = [client.receive(10).payload for _ in range(8)]
    assert got == [b"good"] * 5 + [b"1", b"2", bytes(PACKET_BYTES - 6)]


def test_iteration(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"a")
    for number in range(10):
        client.publish(b"a", b"%d" % number)
    got = []
    for message in client:
        got.append(message.payload)
        if len(got) == 4:
            break
    assert client.receive(10).payload == b"4"
    for message in client:  # leaving the loop lost nothing
        got.append(message.payload)
        if message.payload == b"9":
            break
    assert got == [b"0", b"1", b"2", b"3", b"5", b"6", b"7", b"8", b"9"]


def test_callbacks(server: HubThread, make: Make) -> None:
    failures: list[tuple[Exception, Message]] = []
    client = make(on_error=lambda error, message: failures.append((error, message)))
    got: list[tuple[str, bytes]] = []
    client.subscribe(b"a/", callback=lambda message: got.append(("a", message.payload)))
    client.subscribe(b"a/b", callback=lambda message: got.append(("ab", message.payload)))
    client.subscribe(b"bad", callback=lambda message: 1 / 0)
    client.subscribe(b"end", callback=lambda message: client.close())
    client.subscribe(b"nobody")
    client.publish_many(
        [(b"a/b", b"1"), (b"a/c", b"2"), (b"nobody", b"3"), (b"bad", b"4"), (b"a/d", b"5"), (b"end", b"")]
    )
    client.run()
    assert sorted(got[:2]) == [("a", b"1"), ("ab", b"1")]
    assert got[2:] == [("a", b"2"), ("a", b"5")]
    assert [(type(error), message.payload) for error, message in failures] == [(ZeroDivisionError, b"4")]


def test_callbacks_without_on_error(server: HubThread, make: Make) -> None:
    client = make()
    got: list[bytes] = []
    client.subscribe(b"bad", callback=lambda message: 1 / 0)
    client.subscribe(b"good", callback=lambda message: got.append(message.payload))
    client.publish(b"bad")
    client.publish(b"good", b"x")
    with pytest.raises(ZeroDivisionError):
        client.run()
    client.sync()
    client.run(timeout=0)
    assert got == [b"x"]


def test_callbacks_end_with_the_last_subscription(server: HubThread, make: Make) -> None:
    client = make()
    got: list[bytes] = []
    callback = lambda message: got.append(message.payload)  # noqa: E731
    client.subscribe(b"a", callback=callback)
    client.subscribe(b"a", callback=callback)
    client.subscribe(b"")
    client.unsubscribe(b"a")
    client.publish(b"a", b"1")
    client.sync()
    client.run(timeout=0)
    client.unsubscribe(b"a")
    client.publish(b"a", b"2")
    client.sync()
    client.run(timeout=0)
    assert got == [b"1"]


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


def test_no_hub(make: Make, address: str, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    with pytest.raises(NoHubError, match=address):
        make()
    monkeypatch.delenv("SBUS_ADDRESS", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.setattr("sbuslib.wire.defaults.SYSTEM_ADDRESS", folder + "/system")
    with pytest.raises(NoHubError) as caught:
        make(None)
    assert f"{folder}/sbus/bus" in str(caught.value)
    assert f"{folder}/system" in str(caught.value)
    monkeypatch.setenv("SBUS_ADDRESS", folder + "/elsewhere")
    with pytest.raises(NoHubError) as caught:
        make(None)
    assert "elsewhere" in str(caught.value)
    assert "system" not in str(caught.value)


def test_the_default_address(
    server: HubThread, make: Make, address: str, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("SBUS_ADDRESS", address)
    assert make(None).address == address
    monkeypatch.delenv("SBUS_ADDRESS")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.setattr("sbuslib.wire.defaults.SYSTEM_ADDRESS", address)
    assert make(None).address == address  # the second of two


def test_a_client_refuses_a_hub_of_another_user(server: HubThread, make: Make) -> None:
    assert make(hub_user=os.getuid()).whoami()
    with pytest.raises(HubIdentityError, match=str(os.getuid())):
        make(hub_user=os.getuid() + 1)


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


def test_a_client_with_a_small_batch_limit_sends_and_receives_the_same(server: HubThread, make: Make) -> None:
    client = make(limits=ClientLimits(batch=2))
    client.subscribe(b"a")
    assert client.publish_many([(b"a", b"%d" % number) for number in range(9)]) == 9
    assert [client.receive(10).payload for _ in range(9)] == [b"%d" % number for number in range(9)]


def test_callbacks_use_the_separator_of_the_hub(address: str, make: Make) -> None:
    with HubThread(address, separator="."):
        client = make()
        got: list[bytes] = []
        client.subscribe(b"a.*", callback=lambda message: got.append(message.payload))
        client.publish(b"a.b/c", b"x")
        client.sync()
        client.run(timeout=0)
        assert got == [b"x"]
        client.close()


# -- reconnect=True -------------------------------------------------------------------------------------

SWIFT = ClientLimits(reconnect_pause=0.005, reconnect_pause_most=0.01)


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


class Starved:
    """A socket whose first ``failures`` sends of packets that start with ``about`` fail for want of memory."""

    def __init__(self, sock: Any, about: bytes, failures: float) -> None:
        self._socket, self._about, self._failures = sock, about, failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def send(self, packet: bytes, flags: int = 0) -> int:
        if bytes(packet).startswith(self._about) and self._failures > 0:
            self._failures -= 1
            raise OSError(errno.ENOBUFS, "no memory")
        sent: int = self._socket.send(packet, flags)
        return sent


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
