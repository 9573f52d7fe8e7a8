"""Buses joined over TCP: exact keys and payloads, borders, secrets, circles, and two network namespaces."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gevent.subprocess
import pytest
from support import PATIENCE, ROOT, eventually

from sbuslib import Client, Hub
from sbuslib.core.embedder import Inbox
from sbuslib.errors import NoHubError, ServiceError, StateError, UsageError
from sbuslib.keys.own_keys import CONTROL
from sbuslib.tcp import Gateway, Peer
from sbuslib.tcp import gateway as gateway_module
from sbuslib.tcp.framing import Publish
from sbuslib.wire.packets import Message

from .conftest import Connect, Make

Join = Callable[..., list[Gateway]]

EVERYTHING: dict[str, Any] = {"export": [b""], "import_": [b""]}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("SETTLE_SECONDS", 0.01), ("HEARTBEAT_SECONDS", 0.05), ("_AWAY_SECONDS", 0.01)):
        monkeypatch.setattr(gateway_module, name, seconds)


@pytest.fixture
def buses(folder: str) -> Iterator[list[Hub]]:
    """Three hubs that are not connected."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Hub(os.path.join(folder, name))) for name in "abc"]


@pytest.fixture
def join(make_peer: Make) -> Iterator[Join]:
    """Join two buses by a gateway at each, whose peers are connected, and wait until both know the other."""
    gateways: list[Gateway] = []

    def make(one: Hub, two: Hub, *, there: dict[str, Any] | None = None, **options: Any) -> list[Gateway]:
        peers = [make_peer(), make_peer()]
        peers[1].connect(peers[0].address)
        options = options or EVERYTHING
        made = [Gateway(one, peers[0], **options), Gateway(two, peers[1], **(there or options))]
        for gateway in made:
            gateway.start()
        gateways.extend(made)
        for peer, other in zip(peers, reversed(made), strict=True):
            for name in other._substrings(other._import):
                peer.wait_for_subscriber(name, timeout=PATIENCE)
        return made

    yield make
    for gateway in gateways:
        gateway.stop()


def drain(inbox: Inbox) -> list[tuple[bytes, bytes]]:
    """The received messages, without those of gateways to each other."""
    found = [inbox.receive() for _ in range(len(inbox))]
    return [(message.key, message.payload) for message in found if message.key != CONTROL]


def quiet(gateways: list[Gateway]) -> None:
    """Wait until all exported messages were imported and no queue holds any."""
    eventually(
        lambda: (
            sum(gateway.statistics().exported for gateway in gateways) > 0
            and not any(len(gateway._arrivals) for gateway in gateways)
            and sum(gateway._peer.statistics().sent for gateway in gateways)
            == sum(gateway._peer.statistics().received for gateway in gateways)
            and not any(gateway._peer.statistics().waiting_bytes for gateway in gateways)
        )
    )


def until(inbox: Inbox, last: bytes) -> list[tuple[bytes, bytes]]:
    """The messages before the one with key ``last``, without those of gateways to each other."""
    found: list[Message] = []
    while not found or found[-1].key != last:
        found.append(inbox.receive(timeout=20))
    return [(message.key, message.payload) for message in found[:-1] if message.key != CONTROL]


def test_any_key_and_payload_crosses_unchanged_but_for_keys_too_long_for_a_name(buses: list[Hub], join: Join) -> None:
    gateways = join(buses[0], buses[1])
    inboxes = [hub.subscribe(b"") for hub in buses[:2]]
    messages = [
        (bytes(range(1, 256)).replace(b"!", b""), bytes(range(256))),
        (b"", b""),
        (b"a!/b", b"\n"),
        (b"a b\r\n%41/\xff", b"pub x 1 y\n"),
        ("né/\U0001f600".encode(), b"\0" * 100_000),
        (b"k" * 4_000, b"x" * 400_000),
        (b"a/*", b"1"),
        (b"a/*", b"1"),
    ]
    for here, there in ((0, 1), (1, 0)):
        for key, payload in [(b"\xff" * 20_000, b"x"), *messages, (b"end", b"")]:
            buses[here].publish(key, payload)
        assert until(inboxes[there], b"end") == messages
        assert gateways[here].statistics().refused == {"name too long": 1}
        until(inboxes[here], b"end")


def test_patterns_bound_what_crosses(buses: list[Hub], join: Join) -> None:
    one, two = join(
        buses[0],
        buses[1],
        export=[b"room/*/temp", b"end"],
        import_=[b"alarm/"],
        there={"export": [b"alarm/", b"other", b"end"], "import_": [b"room/1/*", b"end"]},
    )
    inboxes = [hub.subscribe(b"") for hub in buses[:2]]
    for key in (b"room/1/temp", b"room/2/temp", b"room/1/hum", b"alarm/x", b"end"):
        buses[0].publish(key, b"from one")
    assert until(inboxes[1], b"end") == [(b"room/1/temp", b"from one")]
    for key in (b"other", b"room/1/temp", b"alarm/fire"):
        buses[1].publish(key, b"from two")
    assert (b"other", b"from two") not in until(inboxes[0], b"alarm/fire")
    assert one.statistics().imported == 1
    assert two.statistics().exported == 2  # nothing that no pattern matches even leaves
    assert one.statistics().exported == 3


def test_import_patterns_apply_to_any_peer(buses: list[Hub], make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    inbox = buses[0].subscribe(b"")
    stranger = raw(peer)
    with Gateway(buses[0], peer, import_=[b"in/", b"*/never"]) as gateway:
        ours = "sbus/gateway", "sbus/bridge/lost", "alerts/lost"
        for key in ("in/a", "out/a", "!/cred////x", "in/!/x", "%69n/a", "in/%00", *ours, "in/end"):
            name = f"//sbus/bus/{key}".encode()
            stranger.send(b"pub %b 1 x\n" % name)
        assert until(inbox, b"in/end") == [(b"in/a", b"x")]
        assert gateway.statistics().refused == {
            "outside the patterns": 1,
            "reserved key": 2,
            "not the name for a key": 2,
            "key of the gateways": 1,
            "key of our programs": 2,
        }


@pytest.mark.parametrize("separator", [b"/", b"."])
def test_reserved_keys_and_long_messages_from_a_peer_are_counted_and_importing_goes_on(
    folder: str, make_peer: Make, raw: Connect, separator: bytes
) -> None:
    peer = make_peer()
    with (
        Hub(os.path.join(folder, "bus"), separator=separator) as hub,
        hub.tap(secrets=True) as everything,
        Client(hub.address) as client,
        Gateway(client, peer, import_=[b""]) as gateway,
    ):
        stranger = raw(peer)
        secret = separator.join([b"!", b"cred", b"", b"", b"", b"x"])
        for key in (secret, b"a%b!%bb" % (separator, separator), b"!", b"a%b!" % separator, b"!%bx" % separator):
            stranger.send(b"pub //sbus/bus/%b 1 x\n" % key)
        stranger.send(b"pub //sbus/bus/room/1 500000 %b\n" % bytes(500_000))
        stranger.send(b"pub //sbus/bus/end 1 x\n")
        assert until(everything, b"end") == []
        assert gateway.started
        assert gateway.statistics().refused == {"reserved key": 5, "message too long": 1}
        assert gateway.statistics().imported == 1


def test_messages_that_wait_for_the_bus_are_bounded_in_bytes(buses: list[Hub], make_peer: Make) -> None:
    peer = make_peer()
    with Gateway(buses[0], peer, import_=[b""]) as gateway:
        gateway._arrivals.take([Publish("//sbus/bus/a", bytes(1_000_000))] * 100, None)
        assert gateway.statistics().lost == {"outage": 84}
        eventually(lambda: not len(gateway._arrivals))
        assert gateway._arrivals._bytes == 0


def test_an_unforeseen_error_ends_the_gateway_and_is_raised(
    buses: list[Hub], make_peer: Make, raw: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = make_peer()
    gateway = Gateway(buses[0], peer, **EVERYTHING)
    gateway.start()
    monkeypatch.setattr(gateway._mapping, "key_for", lambda name, payload: 1 // 0)
    raw(peer).send(b"pub //sbus/bus/a 1 x\n")
    assert gateway.ended.wait(20)
    assert not gateway.started
    with pytest.raises(ServiceError, match="gateway of 'bus' ended by an unforeseen error: ZeroDivisionError"):
        gateway.__exit__(None, None, None)
    assert peer.started


def test_secrets_never_cross(buses: list[Hub], join: Join) -> None:
    gateways = join(buses[0], buses[1])
    inboxes = [hub.subscribe(b"") for hub in buses[:2]]
    secret = buses[0].whoami() + b"/x"
    own = [hub.subscribe(secret) for hub in buses[:2]]
    taps = [hub.tap(secrets=True) for hub in buses[:2]]
    buses[0].publish(secret, b"secret")
    buses[0].publish(b"!/cred////x", b"secret")
    buses[0].publish(b"end", b"")
    assert until(inboxes[1], b"end") == []
    assert own[0].receive(timeout=10).payload == b"secret"
    assert len(own[1]) == 0
    assert all(b"secret" not in message.payload for message in [taps[1].receive() for _ in range(len(taps[1]))])
    assert gateways[0].statistics().exported == 1
    for pattern in (b"!/cred/1/2/3/x", b"a/!/b"):
        with pytest.raises(UsageError):
            Gateway(buses[0], gateways[0]._peer, export=[pattern]).start()


def test_two_gateways_between_the_same_buses_make_no_circle(buses: list[Hub], join: Join) -> None:
    gateways = [*join(buses[0], buses[1]), *join(buses[0], buses[1])]
    eventually(lambda: all(gateway._membership.others == 1 for gateway in gateways))
    inbox = buses[1].subscribe(b"from/")
    for number in range(50):
        buses[0].publish(b"from/a", b"%d" % number)
    eventually(lambda: len(inbox) == 100)
    assert sorted(drain(inbox)) == sorted([(b"from/a", b"%d" % number) for number in range(50)] * 2)
    eventually(lambda: [one.statistics().refused for one in gateways[1::2]] == [{"brought by another": 50}] * 2)
    quiet(gateways)
    assert len(inbox) == 0


def test_a_triangle_of_buses_makes_no_circle(buses: list[Hub], join: Join) -> None:
    a, b, c = buses
    gateways = [
        gateway
        for one, two, name in ((a, b, "ab"), (b, c, "bc"), (c, a, "ca"))
        for gateway in join(one, two, name=name, **EVERYTHING)
    ]
    eventually(lambda: all(gateway._membership.others == 1 for gateway in gateways))
    inboxes = [hub.subscribe(b"x") for hub in buses]
    a.publish(b"x", b"1")
    for inbox in inboxes:
        assert inbox.receive(timeout=20).payload == b"1"
    quiet(gateways)
    assert [len(inbox) for inbox in inboxes] == [0, 0, 0]


def test_plain_peers_see_the_bus_and_speak_to_it(buses: list[Hub], make_peer: Make, raw: Connect) -> None:
    peer = make_peer()
    stranger = raw(peer)
    with Gateway(buses[0], peer, export=[b"out/"], import_=[b"in/"], name="home"):
        stranger.expect(b"sub //sbus/home/in/\n")
        stranger.send(b"sub //sbus/home/\n")
        peer.wait_for_subscriber("//sbus/home/", timeout=10)
        buses[0].publish(b"out/1 2", b"hello")
        stranger.expect(b"pub //sbus/home/out/1%202 5 hello\n")
        inbox = buses[0].subscribe(b"in/")
        stranger.send(b"pub //sbus/home/in/x 3 abc\n")
        message = inbox.receive(timeout=10)
        assert (message.key, message.payload) == (b"in/x", b"abc")
    stranger.expect(b"unsub //sbus/home/in/\n")


def test_messages_cross_over_forwarding_peers_once(buses: list[Hub], make_peer: Make) -> None:
    ends = [make_peer(forward=["sbus/bus"]) for _ in range(2)]
    between = [make_peer(forward=["sbus/bus"]) for _ in range(2)]
    for peer in between:  # two ways from one to the other
        for end in ends:
            peer.connect(end.address)
    with Gateway(buses[0], ends[0], **EVERYTHING), Gateway(buses[1], ends[1], **EVERYTHING) as there:
        for peer in (*ends, *between):
            peer.wait_for_subscriber("//fwd/sbus/bus/x", 2, timeout=20)
        inbox = buses[1].subscribe(b"")
        for number in range(20):
            buses[0].publish(b"a", b"%d" % (number % 2))
        buses[0].publish(b"end", b"")
        assert until(inbox, b"end") == [(b"a", b"%d" % (number % 2)) for number in range(20)]
        assert there.statistics().imported == 21


def test_a_gateway_that_serves_outlives_its_bus(folder: str, make_peer: Make, raw: Connect) -> None:
    """The next hub may have another separator, and so other keys that are reserved."""
    address, peer = os.path.join(folder, "a"), make_peer()
    gateway, stranger = Gateway(address, peer, **EVERYTHING), raw(peer)
    stranger.send(b"sub //sbus/bus/\n")
    peer.wait_for_subscriber("//sbus/bus/", timeout=PATIENCE)
    for start in (gateway.serve_forever, gateway.start):
        with pytest.raises(NoHubError):
            start()
    serving = None
    for number, separator in enumerate((b"/", b".")):
        with Hub(address, separator=separator) as hub:
            serving = serving or gevent.spawn(gateway.serve_forever)
            stranger.expect(b"sub //sbus/bus/\n")
            with pytest.raises(StateError):
                gateway.start()
            inbox = hub.subscribe(b"")
            stranger.send(b"pub //sbus/bus/!.x 1 %d\npub //sbus/bus/in 1 %d\n" % (number, number))
            assert until(inbox, b"in") == ([(b"!.x", b"0")] if separator == b"/" else [])
            hub.publish(b"out", b"%d" % number)
            stranger.expect(b"pub //sbus/bus/out 1 %d\n" % number)
        stranger.expect(b"unsub //sbus/bus/\n")
        assert gateway.ended.is_set()
    assert (gateway.statistics().imported, gateway.statistics().refused) == (3, {"reserved key": 1})
    gateway.stop()
    assert serving is not None
    serving.get(timeout=PATIENCE)


@pytest.mark.parametrize(
    "options", [{}, {"export": [], "import_": []}, {"export": b"a"}, {"export": [b"a"], "name": "a b"}]
)
def test_wrong_arguments_of_a_gateway_are_refused(buses: list[Hub], options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Gateway(buses[0], Peer("127.0.0.1:0"), **options)
    with pytest.raises(StateError, match="peer"):
        Gateway(buses[0], Peer("127.0.0.1:0"), export=[b"a"]).start()


# -- two machines -----------------------------------------------------------------------------------


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


@pytest.fixture
def machines() -> Iterator[tuple[list[list[str]], list[str], list[str]]]:
    """Two network namespaces, or two loopback addresses: how to run a command there, the address, more arguments."""
    spaces = [f"sbus{os.getpid()}{side}" for side in "ab"]
    try:
        for space in spaces:
            ip("netns", "add", space)
        ip("link", "add", "left", "netns", spaces[0], "type", "veth", "peer", "name", "right", "netns", spaces[1])
        for space, device, address in zip(spaces, ("left", "right"), ("10.77.0.1", "10.77.0.2"), strict=True):
            ip("-n", space, "addr", "add", f"{address}/24", "dev", device)
            ip("-n", space, "link", "set", device, "up")
            ip("-n", space, "link", "set", "lo", "up")
        yield [["ip", "netns", "exec", space] for space in spaces], ["10.77.0.1", "10.77.0.2"], ["--insecure"]
    except (subprocess.CalledProcessError, FileNotFoundError):  # they need root and ip(8)
        yield [[], []], ["127.0.0.1", "127.0.0.2"], []
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True, timeout=20)


def test_messages_cross_between_two_machines(
    machines: tuple[list[list[str]], list[str], list[str]], buses: list[Hub]
) -> None:
    prefixes, hosts, more = machines
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def gateway(side: int, *arguments: str) -> Any:
        command = [*prefixes[side], sys.executable, "-m", "sbuslib", "gateway", "--bus", buses[side].address, *more]
        return gevent.subprocess.Popen([*command, *arguments], stderr=gevent.subprocess.PIPE, env=environment)

    first = gateway(0, "--listen", f"{hosts[0]}:0", "--export", "ping/", "--import", "pong/")
    second = None
    try:
        said = first.stderr.readline().decode()
        assert said.startswith(f"sbus: listening at {hosts[0]}:")
        address = said.split()[3]
        second = gateway(1, "--connect", address, "--export", "pong/", "other/", "--import", "ping/")
        # When one has the other's first message, both directions work now or soon.
        for here, key, payload in ((0, b"ping/\xff \n", b"\x00\r\n"), (1, b"pong/1", b"back")):
            inbox = buses[1 - here].subscribe(b"ping/", b"pong/", b"other/")
            while not len(inbox):
                buses[here].publish(b"other/x", b"never")
                buses[here].publish(key, payload)
                gevent.sleep(0.02)
                assert second.poll() is None
            assert {(got.key, got.payload) for got in inbox.receive_many()} == {(key, payload)}
            inbox.unsubscribe()
    finally:
        for process in (first, second):
            if process is not None:
                process.terminate()
                process.wait(20)
                process.stderr.close()
    assert (first.returncode, second.returncode) == (0, 0)
