"""``sbus gateway``, ``peer`` and ``bridge`` as programs."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from bridge.accounts import Operator
from bridge.servers import Server, mosquitto, nats_server, redis_server, secure_server
from cli.conftest import Program, Run, Start
from gevent import subprocess as waiting
from support import PATIENCE, ROOT, HubThread, eventually

from sbuslib import Hub
from sbuslib.blocking import Client
from sbuslib.tcp import Discovery, Peer

pytest_plugins = ["certificate_fixtures"]


# -- ``sbus gateway`` as a program: two gateways join two buses

Listening = Callable[..., tuple[Any, str]]


def test_what_is_exported_and_imported_crosses(listening: Listening, bus: HubThread, folder: str, path: str) -> None:
    with HubThread(f"{folder}/far") as far, Client(path) as here, Client(far.hub.address) as there:
        _, address = listening("gateway", "--bus", path, "--listen", ":0", "--export", "room/", "log/")
        listening(
            *("gateway", "--bus", far.hub.address, "--listen", ":0", "--connect", address, "--import", "room/", "hall/")
        )
        there.subscribe(b"hall/", b"log/", b"room/")
        carry(here, there, b"crosses", (b"hall/1", b"not exported"), (b"log/1", b"not imported"))


def test_a_gateway_goes_on_when_its_hub_is_back(listening: Listening, bus: HubThread, folder: str, path: str) -> None:
    with HubThread(f"{folder}/far") as far, Client(far.hub.address) as there:
        process, address = listening("gateway", "-a", path, "--listen", ":0", "--export", "room/")
        listening("gateway", "-a", far.hub.address, "--listen", ":0", "--connect", address, "--import", "room/")
        there.subscribe(b"room/")
        with Client(path) as here:
            carry(here, there, b"before")
        bus.stop()
        assert process.stderr.readline() == b"sbus: gateway bus: the bus has gone; waiting for it\n"
        with HubThread(path), Client(path) as here:
            assert process.stderr.readline() == b"sbus: gateway bus: joined the bus again\n"
            carry(here, there, b"after")
        assert process.stderr.readline() == b"sbus: gateway bus: the bus has gone; waiting for it\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == b""


# -- ``sbus peer`` as a program: what it shows and forwards, and whom it finds

Make = Callable[..., Peer]


def test_a_peer_shows_what_is_published_and_ends_on_a_signal(listening: Listening, make_peer: Make) -> None:
    process, address = listening("peer", "--listen", ":0", "--sub", "//a", "--retain", "//motd", "closed on Monday")
    peer = make_peer()
    peer.connect(address)
    with peer.subscribe("//motd") as inbox:
        assert inbox.receive(timeout=20).data == b"closed on Monday"
    peer.wait_for_subscriber("//a/b", timeout=20)
    peer.publish("//a/b", b"\x1b[2J\n")
    assert process.stdout.readline() == b"//a/b\t\\x1b[2J\\n\n"
    process.terminate()
    assert process.wait(20) == 0


def test_a_peer_forwards_and_is_discovered(listening: Listening, make_peer: Make) -> None:
    _, seed = listening("peer", "--listen", ":0", "--discover", "org", "--who", "seed", "--forward", "chat")
    listening("peer", "--listen", ":0", "--connect", seed, "--discover", "org", "--who", "first")
    peer = make_peer(discover=Discovery(org="org", who="second"))
    peer.connect(seed)
    eventually(lambda: sorted(link.who or "" for link in peer.links) == ["first", "seed"])
    peer.wait_for_subscriber("//chat", timeout=20)


def test_a_message_and_files_are_published_from_the_command_line(
    run: Run, listening: Listening, tmp_path: Path
) -> None:
    into = tmp_path / "into"
    into.mkdir()
    process, address = listening("peer", "--listen", ":0", "--sub", "//a", "--receive", "//docs", str(into))
    source = tmp_path / "report.bin"
    source.write_bytes(os.urandom(3_000_000))
    done = run("sbuslib", "peer", "--connect", address, "--pub", "//a/b", "hello", "--send", "//docs/1", str(source))
    assert (done.returncode, done.stderr) == (0, "")
    assert process.stdout.readline() == b"//a/b\thello\n"
    assert process.stdout.readline().decode() == f"{into}/report.bin\n"
    assert (into / "report.bin").read_bytes() == source.read_bytes()
    process.terminate()
    assert process.wait(20) == 0
    assert os.listdir(into) == ["report.bin"]


# -- What ``sbus peer`` and ``sbus gateway`` share: wrong arguments, and errors that nobody foresaw

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}

PLANTED = """
import sys
from gevent import socket
from sbuslib.cli.main import main
from sbuslib.cli.relay import main as relay
from sbuslib.tcp import gateway, connections, discovery, peer_link
from sbuslib import relay as relays
def fail(*arguments, **options):
    raise ZeroDivisionError("planted")
{0}.__name__  # there is one
{0} = fail
sys.exit({1})
"""


@pytest.mark.parametrize(
    ("planted", "command", "name"),
    [
        ("gateway.Gateway._send_heartbeats", "gateway", "gateway of 'bus'"),
        ("connections.Connections._dial", "peer", "peer at 127.0.0.1:"),
        ("peer_link.PeerLink._read", "peer", "peer at 127.0.0.1:"),
        ("discovery.Discoverer._connect", "peer", "peer at 127.0.0.1:"),
        ("relays.Relay._stay", "relay", "relay to "),
    ],
)
def test_an_unforeseen_error_in_any_greenlet_ends_the_command_and_is_reported_with_its_name(
    hub: Hub, folder: str, make_peer: Make, planted: str, command: str, name: str
) -> None:
    peer = make_peer()  # it wants what the commands offer, so that each of their greenlets has work
    ours = ["--listen", "127.0.0.1:0", "--connect", peer.address]
    run = {
        "gateway": f"main({['gateway', '--bus', hub.address, '--export', 'a', '--import', 'b', *ours]!r})",
        "peer": f"main({['peer', '--discover', 'org', '--sub', 'a', *ours]!r})",
        "relay": f"relay({['--upstream', hub.address, '--listen', os.path.join(folder, 'below')]!r})",
    }[command]
    process: Any = waiting.Popen(
        [sys.executable, "-c", PLANTED.format(planted, run)],
        stdout=waiting.PIPE, stderr=waiting.PIPE, env=ENVIRONMENT, text=True,
    )  # fmt: skip
    said = process.communicate(timeout=50)[1]
    assert process.returncode == 1
    last = said.splitlines()[-1]
    assert last.startswith(f"sbus-relay: {name}" if command == "relay" else f"sbus: {name}"), said
    assert last.endswith("ended by an unforeseen error: ZeroDivisionError: planted")
    assert "Traceback" in said


# -- ``sbus bridge`` as a program, and what ``sbus doctor`` tells of it


Bridged = Callable[..., tuple[Client, Client, Program, Program]]
CONNECTED = b"sbus: connected to the server (Ctrl-C ends it)\n"


def carry(here: Client, there: Client, payload: bytes, *before: tuple[bytes, bytes]) -> None:
    """Publish until one of these messages has come, and nothing of what is published before it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        here.publish_many([*before, (b"room/1", payload)])
        with suppress(TimeoutError):
            message = there.receive(timeout=0.05)
            assert message.key == b"room/1"
            if message.payload == payload:
                return
    raise AssertionError(payload)


@pytest.fixture
def bridged(start: Start, bus: HubThread, path: str, folder: str) -> Iterator[Bridged]:
    """Join two buses over a server: clients of both, and the bridges that export and import ``room/``."""
    with HubThread(f"{folder}/far") as far, Client(path) as here, Client(far.hub.address) as there:

        def bridged(url: str, *options: str) -> tuple[Client, Client, Program, Program]:
            leaving = start("sbuslib", "bridge", url, "--bus", path, "--export", "room/", "log/", *options)
            coming = start("sbuslib", "bridge", url, "--bus", far.hub.address, "--import", "room/", *options)
            there.subscribe(b"log/", b"room/")
            return here, there, leaving, coming

        yield bridged


def test_two_buses_are_joined_and_doctor_tells_of_it(bridged: Bridged, run: Run, path: str, folder: str) -> None:
    server = nats_server(folder)
    server.start()
    url = f"nats://127.0.0.1:{server.port}"
    here, there, _, coming = bridged(url)
    assert coming.stderr.readline() == CONNECTED
    carry(here, there, b"crosses", (b"log/1", b"not imported"))
    assert f"bridge: bridge to {url}: connected" in run("sbuslib", "doctor", "-a", path).stdout
    coming.send_signal(signal.SIGTERM)
    assert coming.wait(PATIENCE) == 0
    assert coming.stderr.read() == b""
    server.kill()


def test_options_name_the_files_for_tls_and_for_a_user(
    bridged: Bridged, folder: str, certificates: Callable[[], dict[str, str]]
) -> None:
    files, operator = certificates(), Operator()
    configuration, credentials = Path(folder, "configuration"), Path(folder, "credentials")
    configuration.write_text(operator.configuration)
    credentials.write_text(operator.credentials())
    server = secure_server("nats", folder, files, "-c", str(configuration))
    server.start()
    options = ["--tls-ca", files["ca"], "--tls-cert", files["cert"], "--tls-key", files["key"]]
    options += ["--credentials", str(credentials)]
    here, there, _, coming = bridged(f"tls://127.0.0.1:{server.port}", *options)
    assert coming.stderr.readline() == CONNECTED
    carry(here, there, b"over TLS")
    server.kill()


@pytest.mark.parametrize(("scheme", "make"), [("mqtt", mosquitto), ("redis", redis_server)])
def test_a_bridge_that_writes_to_a_server_that_went_away_keeps_what_it_has(
    bridged: Bridged, folder: str, scheme: str, make: Callable[[str], Server]
) -> None:
    server = make(folder)
    here, there, leaving, _ = bridged(f"{scheme}://127.0.0.1:{server.port}")
    server.start()
    carry(here, there, b"before")
    server.kill()
    leaving.send_signal(signal.SIGPIPE)  # as the kernel does when the client library writes just now
    here.publish(b"room/1", b"while it is away")
    here.sync()
    server.start()
    carry(here, there, b"after")
    assert leaving.poll() is None
    server.kill()


def test_a_bridge_goes_on_when_its_hub_is_back(bridged: Bridged, bus: HubThread, path: str, folder: str) -> None:
    server = nats_server(folder)
    server.start()
    here, there, leaving, _ = bridged(f"nats://127.0.0.1:{server.port}")
    carry(here, there, b"before")
    bus.stop()
    lines = iter(leaving.stderr.readline, b"")
    assert any(line.endswith(b"; waiting for it\n") for line in lines)
    with HubThread(path), Client(path) as here:
        assert next(lines) == b"sbus: joined the bus again\n"
        carry(here, there, b"after")
    assert any(line.endswith(b"; waiting for it\n") for line in lines)
    leaving.send_signal(signal.SIGTERM)
    assert leaving.wait(PATIENCE) == 0
    assert leaving.stderr.read() == b""
    server.kill()
