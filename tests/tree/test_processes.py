"""Hubs as processes: ``sbus-relay``, a master that is killed, systemd's socket activation and notices."""

from __future__ import annotations

import configparser
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import PATIENCE, ROOT

from sbuslib.blocking import Client
from sbuslib.cli import relay

Start = Callable[..., "subprocess.Popen[bytes]"]
UNITS = ROOT / "sbuslib" / "cli" / "systemd"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program of ours as ``python -m``; killed after the test."""
    with contextlib.ExitStack() as stack:

        def run(*arguments: str, before: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [*before, sys.executable, "-m", *arguments],
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield run


def listening(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Wait until a hub listens: it closes its standard output then."""
    assert process.stdout is not None
    process.stdout.read()
    return process


def test_a_relay_joins_and_ends(start: Start, folder: str) -> None:
    top, below = f"{folder}/top", f"{folder}/below"
    listening(start("sbuslib.cli.daemon", "-f", "-a", top))
    slave = listening(
        start(
            "sbuslib.cli.relay", "--upstream", f"{folder}/none", "--upstream", top, "--listen", below, "--import", "a/"
        )
    )
    with Client(top) as above, Client(below) as client:
        assert client.whoami().startswith(b"!/cred/%d/%d/%d/!/cred/" % (os.getgid(), os.getuid(), slave.pid))
        client.subscribe(b"")
        client.subscribe(client.whoami() + b"/box")
        assert client.sync("tree") == "tree"
        above.publish(b"b/1", b"not imported")
        above.publish(b"a/1", b"imported")
        assert client.receive(PATIENCE).key == b"a/1"
        above.publish(client.whoami() + b"/box", b"secret")
        assert client.receive(PATIENCE).payload == b"secret"
    slave.terminate()
    assert slave.wait(PATIENCE) == 0
    assert not os.path.exists(below)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), 2),
        (("--listen", "{}/x"), 2),
        (("--upstream", "", "--listen", "{}/x"), 1),
        (("--upstream", "{}/top", "--listen", "/nowhere/at/all"), 1),
        (("--upstream", "{}/top", "--listen", "{}/x", "--upstream-user", "no such user"), 1),
        (("--upstream", "{}/top", "--listen", "{}/x", "--relay", "@no such group"), 1),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(
    start: Start, folder: str, arguments: tuple[str, ...], status: int
) -> None:
    process = start("sbuslib.cli.relay", *(argument.format(folder) for argument in arguments))
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == status
    assert status == 2 or errors.count(b"\n") == 1
    assert b"Traceback" not in errors


def test_all_messages_lost_with_a_killed_master_are_counted(start: Start, folder: str) -> None:
    top, below = f"{folder}/top", f"{folder}/below"
    master = listening(start("sbuslib.cli.daemon", "-f", "-a", top))
    listening(start("sbuslib.cli.relay", "--upstream", top, "--listen", below))
    lost: list[int] = []
    with Client(below, on_notice=lambda notice: lost.append(getattr(notice, "count", 0))) as publisher:
        publisher.whoami()
        subscriber = Client(top)
        subscriber.subscribe(b"k")
        assert subscriber.sync("tree") == "tree"
        stop = threading.Event()
        published = 0

        def publish() -> None:
            nonlocal published
            while not stop.is_set():
                publisher.publish_many((b"k", b"%d" % n) for n in range(published, published + 50))
                published += 50
                stop.wait(0.001)

        load = threading.Thread(target=publish)
        load.start()
        before = [int(subscriber.receive(PATIENCE).payload) for _ in range(500)]
        master.kill()
        with contextlib.suppress(ConnectionError):
            while True:
                before.append(int(subscriber.receive(PATIENCE).payload))
        subscriber.close()
        assert before == list(range(len(before)))
        master.wait()
        at_kill = published
        while published < at_kill + 500:
            stop.wait(0.001)
        listening(start("sbuslib.cli.daemon", "-f", "-r", "-a", top))
        with Client(top) as again:  # back before the new master says that it knows what is wanted
            again.subscribe(b"k")
            stop.set()
            load.join()
            after: list[int] = []
            while not after or after[-1] != published - 1:
                after.append(int(again.receive(PATIENCE).payload))
        publisher.sync()
    assert after == list(range(after[0], published)), "once, and in order"
    # What is missing was sent to the hub that was killed: it is uncertain, and told so.
    assert len(before) <= after[0] <= at_kill + 50  # those that were being published
    assert after[0] - len(before) <= sum(lost)


# -- systemd ----------------------------------------------------------------------------------------


def notices(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind("\0" + address[1:] if address.startswith("@") else address)
    sock.settimeout(PATIENCE)
    return sock


@pytest.mark.parametrize("abstract", [True, False])
def test_ready_and_watchdog_are_told(start: Start, folder: str, abstract: bool) -> None:
    address = f"@{folder}/notify" if abstract else f"{folder}/notify"
    with notices(address) as supervisor:
        hub = start("sbuslib.cli.daemon", "-f", "-a", f"{folder}/bus", NOTIFY_SOCKET=address, WATCHDOG_USEC="20000")
        assert supervisor.recv(100) == b"READY=1"
        assert [supervisor.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        hub.send_signal(signal.SIGTERM)
        assert hub.wait(PATIENCE) == 0


def test_the_watchdog_of_another_process_is_ignored(start: Start, folder: str) -> None:
    with notices(f"{folder}/notify") as supervisor:
        start(
            "sbuslib.cli.daemon",
            *("-f", "-a", f"{folder}/bus"),
            NOTIFY_SOCKET=f"{folder}/notify",
            WATCHDOG_USEC="1000",
            WATCHDOG_PID="1",
        )
        assert supervisor.recv(100) == b"READY=1"
        with Client(f"{folder}/bus") as client:
            for _ in range(100):
                client.sync()
        supervisor.setblocking(False)
        with pytest.raises(BlockingIOError):
            supervisor.recv(100)


@pytest.mark.skipif(
    not shutil.which("systemd-socket-activate"), reason="needs systemd-socket-activate: apt-get install systemd"
)
@pytest.mark.parametrize("program", ["sbuslib.cli.daemon", "sbuslib.cli.relay"])
def test_socket_activation(start: Start, folder: str, program: str) -> None:
    address = f"{folder}/bus"
    arguments = {
        "sbuslib.cli.daemon": ("-f", "-a", "/dev/fd/3"),
        "sbuslib.cli.relay": ("--upstream", f"{folder}/top", "--listen", "/dev/fd/3"),
    }[program]
    if program == "sbuslib.cli.relay":
        listening(start("sbuslib.cli.daemon", "-f", "-a", f"{folder}/top"))
    activate = ("systemd-socket-activate", "--seqpacket", "-l", address, "-E", "PYTHONPATH")
    process = start(program, *arguments, before=activate)
    while not os.path.exists(address):
        assert process.poll() is None
    while True:  # it binds, and listens a moment later
        with contextlib.suppress(ConnectionError):
            client = Client(address)
            break
    with client:
        assert client.whoami().count(b"!/cred/") == (1 if program == "sbuslib.cli.daemon" else 2)
        client.subscribe(b"k")
        client.publish(b"k", b"1")
        assert client.receive(PATIENCE).payload == b"1"
    process.terminate()
    assert process.wait(PATIENCE) == 0


def test_units_start_existing_programs_with_existing_arguments() -> None:
    from sbuslib.cli import daemon

    parsers = {"@BIN@/sbusd": daemon.build_parser, "@BIN@/sbus-relay": relay.build_parser}
    services = sorted(UNITS.glob("*.service"))
    assert len(services) == 3
    for path in services:
        unit = configparser.RawConfigParser(strict=False)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read(path)
        program, *arguments = unit["Service"]["ExecStart"].replace("$SBUSD_OPTIONS", "").split()
        parsed = parsers[program]().parse_args(arguments)
        assert unit["Service"]["Type"] == "notify"
        if parsed.address == "/dev/fd/3":
            assert (UNITS / path.name.replace(".service", ".socket")).exists()
        if program == "@BIN@/sbus-relay":
            assert parsed.export, "a tenant exports named patterns only"
            assert parsed.import_, "and imports named ones"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze: apt-get install systemd")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for path in (one for one in UNITS.iterdir() if one.suffix != ".toml"):
        # The programs need not be installed where this is tested.
        text = path.read_text().replace("@BIN@/sbusd", "/bin/true").replace("@BIN@/sbus-relay", "/bin/true")
        (tmp_path / path.name.replace("@.", "@root.")).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "Unknown" not in done.stderr
    assert [line for line in done.stderr.splitlines() if "sbus" in line and "specifier" in line] == []
