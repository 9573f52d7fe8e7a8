"""``sbus bridge`` as a program, and what ``sbus doctor`` tells of it."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from bridge.accounts import Operator
from bridge.servers import Server, mosquitto, nats_server, redis_server, secure_server
from support import PATIENCE, HubThread

from sbuslib.blocking import Client
from sbuslib.border.keys import CONTROL
from sbuslib.border.neighbours import decode_here

pytest_plugins = ["certificate_fixtures"]

Start = Callable[..., "subprocess.Popen[bytes]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
CONNECTED = b"sbus: connected to the server (Ctrl-C ends it)\n"


def carry(here: Client, there: Client, payload: bytes) -> None:
    """Publish until one of these messages has come."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        here.publish(b"room/1", payload)
        with suppress(TimeoutError):
            if there.receive(timeout=0.05).payload == payload:
                return
    raise AssertionError(payload)


def test_two_buses_are_joined_and_doctor_tells_of_it(
    start: Start, run: Run, bus: HubThread, path: str, folder: str
) -> None:
    server = nats_server(folder)
    server.start()
    url = f"nats://127.0.0.1:{server.port}"
    with HubThread(f"{folder}/far") as far, Client(path) as here, Client(far.hub.address) as there:
        start("sbuslib", "bridge", url, "--bus", path, "--export", "room/", "log/")
        away = start("sbuslib", "bridge", url, "--bus", far.hub.address, "--import", "room/", "--prefix", "sbus")
        assert away.stderr is not None
        assert away.stderr.readline() == CONNECTED
        there.subscribe(b"")
        while True:  # until both are there
            here.publish_many([(b"log/1", b"not imported"), (b"room/1", b"crosses")])
            try:
                message = there.receive(timeout=0.1)
            except TimeoutError:
                continue
            if message.key != b"sbus/gateway":
                break
        assert (message.key, message.payload) == (b"room/1", b"crosses")
        told = run("sbuslib", "doctor", "-a", path).stdout
        assert f"bridge: bridge to {url}: connected" in told
        away.send_signal(signal.SIGTERM)
        assert away.wait(PATIENCE) == 0
        assert away.stderr.read() == b""
    server.kill()


def test_options_name_the_files_for_tls_and_for_a_user(
    start: Start, bus: HubThread, path: str, folder: str, certificates: Callable[[], dict[str, str]]
) -> None:
    files, operator = certificates(), Operator()
    configuration, credentials = Path(folder, "configuration"), Path(folder, "credentials")
    configuration.write_text(operator.configuration)
    credentials.write_text(operator.credentials())
    server = secure_server("nats", folder, files, "-c", str(configuration))
    server.start()
    url = f"tls://127.0.0.1:{server.port}"
    options = ["--ca", files["ca"], "--certificate", files["cert"], "--private-key", files["key"]]
    options += ["--credentials", str(credentials)]
    with HubThread(f"{folder}/far") as far, Client(path) as here, Client(far.hub.address) as there:
        start("sbuslib", "bridge", url, "--bus", path, "--export", "room/", *options)
        away = start("sbuslib", "bridge", url, "--bus", far.hub.address, "--import", "room/", *options)
        assert away.stderr is not None
        assert away.stderr.readline() == CONNECTED
        there.subscribe(b"room/")
        carry(here, there, b"over TLS")
        away.send_signal(signal.SIGTERM)
        assert away.wait(PATIENCE) == 0
        assert away.stderr.read() == b""
    server.kill()


def test_a_spare_takes_over_when_the_older_bridge_is_killed(
    start: Start, bus: HubThread, path: str, folder: str
) -> None:
    server = nats_server(folder)
    server.start()
    url = f"nats://127.0.0.1:{server.port}"

    def bridge() -> subprocess.Popen[bytes]:
        return start("sbuslib", "bridge", url, "--bus", path, "--export", "room/")

    with HubThread(f"{folder}/far") as far, Client(path) as here, Client(far.hub.address) as there:
        start("sbuslib", "bridge", url, "--bus", far.hub.address, "--import", "room/")
        there.subscribe(b"room/")

        older = bridge()
        carry(here, there, b"by the older")
        here.subscribe(CONTROL)
        bridge()
        heard: set[str] = set()
        while len(heard) < 2:  # until each has told the other of itself
            if (told := decode_here(here.receive(timeout=PATIENCE).payload)) is not None:
                heard.add(told.gateway)
        older.kill()
        older.wait()
        carry(here, there, b"by the spare")
    server.kill()


@pytest.mark.parametrize("make", [nats_server, mosquitto, redis_server], ids=["nats", "mqtt", "redis"])
def test_a_bridge_that_writes_to_a_server_that_went_away_keeps_what_it_has(
    start: Start, bus: HubThread, path: str, folder: str, make: Callable[[str], Server]
) -> None:
    server = make(folder)
    scheme = {"nats_server": "nats", "mosquitto": "mqtt", "redis_server": "redis"}[make.__name__]
    url = f"{scheme}://127.0.0.1:{server.port}"
    with HubThread(f"{folder}/far") as far, Client(path) as here, Client(far.hub.address) as there:
        exporting = start("sbuslib", "bridge", url, "--bus", path, "--export", "room/")
        start("sbuslib", "bridge", url, "--bus", far.hub.address, "--import", "room/")
        there.subscribe(b"room/")
        server.start()
        carry(here, there, b"before")
        server.kill()
        exporting.send_signal(signal.SIGPIPE)  # as the kernel does when the client library writes just now
        here.publish(b"room/1", b"while it is away")
        here.sync()
        server.start()
        carry(here, there, b"after")
        assert exporting.poll() is None
    server.kill()


def test_a_gateway_beside_a_bridge_doubles_messages_and_doctor_tells(
    start: Start, run: Run, listening: Callable[..., Any], bus: HubThread, path: str, folder: str
) -> None:
    server = nats_server(folder)
    server.start()
    url, lists = f"nats://127.0.0.1:{server.port}", ("--export", "room/", "--import", "room/")
    with HubThread(f"{folder}/far") as far, Client(path) as here, Client(far.hub.address) as there:
        _, place = listening("gateway", "-a", path, "--listen", ":0", *lists)
        start("sbuslib", "gateway", "-a", far.hub.address, "--connect", place, *lists)
        for address in (path, far.hub.address):
            start("sbuslib", "bridge", url, "-a", address, *lists)
        there.subscribe(b"room/")
        came: Counter[bytes] = Counter()
        deadline, number, told = time.monotonic() + 2 * PATIENCE, 0, ""
        while "come twice" not in told:
            assert time.monotonic() < deadline, (told, came)
            for _ in range(50):
                number += 1
                here.publish(b"room/1", b"%d" % number)
            with suppress(TimeoutError):
                while True:
                    came[there.receive(timeout=0.1).payload] += 1
            told = run("sbuslib", "doctor", "-a", far.hub.address).stdout
        assert 2 in came.values()
        assert "gateway bus: connected, " in told
    server.kill()


def test_a_bridge_goes_on_when_its_hub_is_back(start: Start, bus: HubThread, path: str, folder: str) -> None:
    server = nats_server(folder)
    url = f"nats://127.0.0.1:{server.port}"
    with HubThread(f"{folder}/far") as far, Client(far.hub.address) as there:
        start("sbuslib", "bridge", url, "-a", far.hub.address, "--import", "room/")
        process = start("sbuslib", "bridge", url, "-a", path, "--export", "room/")
        assert process.stderr is not None
        there.subscribe(b"room/")
        server.start()
        with Client(path) as here:
            carry(here, there, b"before")
        bus.stop()
        lines = iter(process.stderr.readline, b"")
        assert any(line.endswith(b"; waiting for it\n") for line in lines)
        with HubThread(path), Client(path) as here:
            assert next(lines) == b"sbus: joined the bus again\n"
            carry(here, there, b"after")
        assert any(line.endswith(b"; waiting for it\n") for line in lines)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == b""
    server.kill()
