"""``sbus hub`` as a program, its log, its supervisor and its units."""

from __future__ import annotations

import configparser
import json
import logging
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import gevent
import pytest
from cli.conftest import Run, Start
from docs.pages import DOCS, blocks
from support import PATIENCE, ROOT, HubThread, Peer, eventually

from sbuslib.blocking import Client
from sbuslib.cli import main, process, relay
from sbuslib.cli.arguments import Parser
from sbuslib.cli.hub import read_unit, unit_names
from sbuslib.cli.log import QUIET_SECONDS, HubLog
from sbuslib.kernel.users import name_of_user, program_of
from sbuslib.limits import Limits

# -- ``sbus hub`` as a program: a hub in the foreground


def test_hub_serves_in_the_foreground(ready: Start, path: str) -> None:
    hub = ready("hub")
    assert hub.told == f"sbus: listening at {path} (Ctrl-C ends it)\n"
    assert hub.stdout.read() == b""
    with Client(path) as client:
        client.hub.whoami()
    hub.send_signal(signal.SIGINT)
    assert hub.wait(PATIENCE) == 0
    assert hub.stderr.read() == b""
    assert not os.path.exists(path)


def test_a_hub_that_was_killed_is_started_again(ready: Start, path: str) -> None:
    hub = ready("hub")
    hub.kill()
    hub.wait()
    assert os.path.exists(path)
    ready("hub")
    with Client(path) as client:
        client.hub.whoami()


def test_hub_listens_where_clients_look_first(start: Start, run: Run, folder: str) -> None:
    for environment, address in (
        ({"SBUS_ADDRESS": f"{folder}/a", "XDG_RUNTIME_DIR": folder}, f"{folder}/a"),
        ({"XDG_RUNTIME_DIR": folder}, f"{folder}/sbus/bus"),
    ):
        hub = start("sbuslib", "hub", env=environment)
        hub.stdout.read()
        assert os.path.exists(address)
        assert run("sbuslib", "whoami", env=environment).returncode == 0
    assert stat.S_IMODE(os.stat(f"{folder}/sbus").st_mode) == 0o700


# -- What a hub logs of itself: losing that begins and ends, links that do not answer


@pytest.mark.parametrize("how", ["it is quiet", "the hub ends"])
def test_losing_is_reported_when_it_begins_and_with_the_sum_when_it_ends(
    path: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    user = name_of_user(os.getuid())
    with caplog.at_level(logging.INFO, "sbuslib"), HubThread(path, limits=Limits(queued_packets=4)) as bus:
        log = bus.call(lambda: HubLog(bus.hub))
        log._timer.stop()
        with Peer(path) as slow, Peer(path) as publisher:
            slow.send(b"CMSG blocking/hard/discard")
            slow.subscribe(b"k")
            slow.barrier()
            for now in (1.0, 2.0):
                for _ in range(500):
                    publisher.publish(b"k", bytes(10_000))
                publisher.barrier()
                log._not_before = 0.0
                bus.call(lambda now=now: log.look(now))
            lost = sum(bus.call(lambda: bus.hub.statistics()).lost.values())
            log._not_before = 0.0
            if how == "it is quiet":
                bus.call(lambda: log.look(2.0 + QUIET_SECONDS))
            bus.call(log.close)
    whose = f"; user {user} ({os.getuid()}), process {os.getpid()} ({program_of(os.getpid())}), at k"
    assert [record.getMessage() for record in caplog.records if "lost" in record.getMessage()] == [
        f"sbus hub at {path}: messages are being lost: overflow{whose}",
        f"sbus hub at {path}: {lost:,} messages were lost in 1 s: overflow{whose}",
    ]


def test_what_was_lost_before_a_hub_was_taken_over_is_not_logged_again(ready: Start, path: str) -> None:
    old = ready("hub")
    with Peer(path) as slow, Peer(path) as publisher:
        slow.send(b"CMSG blocking/soft/discard")
        slow.subscribe(b"k")
        for _ in range(500):
            publisher.publish(b"k", bytes(10_000))
        publisher.barrier()
        told = old.stderr.readline().decode()
        hubs = [old, ready("hub", "--take-over")]
        for _ in range(500):
            publisher.publish(b"k", bytes(10_000))
        publisher.barrier()
        hubs.append(ready("hub", "--take-over"))
        with Client(path) as client:
            lost = sum(client.hub.statistics().lost.values())
        hubs[-1].send_signal(signal.SIGINT)
        told += "".join(hub.stderr.read().decode() for hub in hubs)
    sums = [int(count) for count in re.findall(r" (\d+) messages were lost in", told)]
    assert (sum(sums), len(sums)) == (lost, 2), told


def test_a_link_is_reported_when_it_joins_does_not_answer_and_ends(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sbuslib"), HubThread(path, limits=Limits(sync_wait=0.01)) as bus:
        log = bus.call(lambda: HubLog(bus.hub))
        bus.call(log.close)

        def look() -> str:
            log._not_before = 0.0
            bus.call(log.look)
            return caplog.messages[-1] if caplog.messages else ""

        with Peer(path) as silent:
            silent.send(b"CMSG interest/on")
            silent.barrier()
            assert "a link has joined: child; user " in look()
            while "a link does not answer: child; user " not in look():  # it is asked now and then
                silent.barrier()
        with Peer(path) as other:
            other.barrier()
        while "a link has ended: child; user " not in look():
            pass


# -- What systemd is told: that a service is ready, and that it is alive


def notices(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind("\0" + address[1:] if address.startswith("@") else address)
    sock.settimeout(PATIENCE)
    return sock


def test_systemd_has_a_hub_replaced(start: Start, folder: str, tmp_path: Path) -> None:
    """As ``systemctl reload`` does it: the unit's command is told nothing, and the old process says who is next."""
    address, rules = f"{folder}/bus", tmp_path / "sbus.toml"
    rules.write_text('[[rules]]\nusers = ["*"]\npublish = [""]\nsubscribe = ["old"]\n')
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNITS / "sbus.service")
    reload = unit["Service"]["ExecReload"].replace("/run/sbus.socket", address).replace("/etc/sbus.toml", str(rules))
    _, *arguments = reload.replace("$SBUSD_OPTIONS", "").split()

    with notices(f"{folder}/notify") as supervisor, ExitStack() as stack:
        told = {"NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": "200000"}
        old = start("sbuslib.cli.daemon", "-f", "-a", address, "--config", str(rules), env=told)
        assert supervisor.recv(100) == b"READY=1"
        client = stack.enter_context(Client(address))
        rules.write_text(rules.read_text().replace("old", "new"))
        assert start("sbuslib.cli.daemon", *arguments).wait(PATIENCE) == 0
        while not (said := supervisor.recv(100)).startswith(b"MAINPID="):
            assert said == b"WATCHDOG=1"
        process_id = said.removeprefix(b"MAINPID=").removesuffix(b"\nWATCHDOG=1")
        assert old.wait(PATIENCE) == 0
        stack.callback(eventually, lambda: not os.path.exists(address))  # the new process takes it away as it ends
        stack.callback(os.kill, int(process_id), signal.SIGTERM)
        assert [supervisor.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2

        # The connection is the old one, the rules are the new ones.
        with client.subscribe(b"new") as subscription:
            client.publish(b"new", b"1")
            assert subscription.receive(timeout=PATIENCE).payload == b"1"

        # An error in the rules, and the hub goes on.
        rules.write_text("rules = 3")
        assert start("sbuslib.cli.daemon", *arguments).wait(PATIENCE) == 2
        assert client.sync() == "local"


def test_a_supervisor_may_have_an_abstract_address(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    with notices(f"@{folder}") as supervisor:
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{folder}")
        process.notify_supervisor(b"READY=1")
        assert supervisor.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "/nowhere/at/all", "@sbus-nobody", "unix:/tmp", "/" + 200 * "x"])
def test_a_supervisor_that_is_not_there_is_no_error(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    process.notify_supervisor(b"READY=1")


def test_an_interval_without_a_meaning_and_one_of_another_process_is_no_watchdog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for interval, pid in (*((one, os.getpid()) for one in ("", "0", "-1", "soon", "²", "1" * 19)), ("30000000", 1)):
        monkeypatch.setenv("WATCHDOG_USEC", interval)
        monkeypatch.setenv("WATCHDOG_PID", str(pid))
        assert process.watchdog(gevent.get_hub().loop) is None


# -- ``sbus units``: what it prints and writes, and that the page shows the same units

UNITS = ROOT / "sbuslib" / "cli" / "systemd"


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """An environment in which ``sbusd`` is found in a folder of the test, where it is not beside Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbusd").write_text("#!/bin/sh\n")
    (folder / "sbusd").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize("user", [False, True])
def test_units_are_installed_with_the_path_of_the_programs(
    run: Run, programs: dict[str, str], tmp_path: Path, user: bool
) -> None:
    listed = [line[:22].strip() for line in run("sbuslib", "units").stdout.splitlines() if line[22:].strip()]
    assert listed == unit_names(), "each with what it is for"
    as_json = run("sbuslib", "units", "--json", env=programs).stdout.splitlines()
    assert [json.loads(line)["unit"] for line in as_json] == unit_names()
    target = tmp_path / "units"
    done = run("sbuslib", "units", "--install", str(target), *["--session"] * user, env=programs)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(target)) == unit_names(user)
    assert done.stdout.split() == [str(target / name) for name in unit_names(user)]
    for path in target.iterdir():
        assert "@BIN@" not in path.read_text()
    service = (target / ("sbus-user.service" if user else "sbus.service")).read_text()
    (line,) = [line for line in service.splitlines() if line.startswith("ExecStart=")]
    program = line.removeprefix("ExecStart=").split()[0]
    assert os.access(os.path.join(os.path.dirname(program), "sbusd"), os.X_OK)
    if not user:  # it is meant to be changed
        (target / "sbus.toml").write_text("mine")
    again = run("sbuslib", "units", "--install", str(target), *["--session"] * user, env=programs)
    assert again.returncode == 0, "what is there already is the same"
    assert user or (target / "sbus.toml").read_text() == "mine"


def test_a_changed_unit_is_not_replaced(run: Run, programs: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sbus.socket").write_text("mine")
    done = run("sbuslib", "units", "--install", str(tmp_path), env=programs)
    assert done.returncode == 1
    assert done.stderr.startswith(f"sbus: {tmp_path}/sbus.socket is there with other contents: remove it")
    assert sorted(os.listdir(tmp_path)) == ["bin", "sbus.socket"]


def test_the_page_shows_the_rules() -> None:
    (rules,) = [block.text for block in blocks(DOCS / "how-to" / "multi-tenant.md") if block.language == "toml"]
    assert rules == read_unit("sbus.toml", "")


@pytest.mark.parametrize("name", unit_names())
def test_no_unit_gives_its_service_a_user_namespace(name: str) -> None:
    """In one, every user but its own is unknown: the hub would not know its clients."""
    assert not re.search("^PrivateUsers=", read_unit(name, ""), re.MULTILINE)


def test_units_start_existing_programs_with_existing_arguments() -> None:
    from sbuslib.cli import daemon

    parsers: dict[str, Callable[..., Parser]] = {
        "@BIN@/sbusd": daemon.build_parser,
        "@BIN@/sbus-relay": relay.build_parser,
        "@BIN@/sbus": main.command_parser,
    }
    services = sorted(path for path in UNITS.glob("*.service") if "-serve@" not in path.name)
    assert len(services) == 4
    for path in services:
        unit = configparser.RawConfigParser(strict=False)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read(path)
        program, *arguments = re.sub(r" \$\w+", "", unit["Service"]["ExecStart"]).split()
        command = [arguments.pop(0)] if program == "@BIN@/sbus" else []
        parsed = parsers[program](*command).parse_args(arguments)
        assert unit["Service"]["Type"] == "notify"
        if "ExecReload" in unit["Service"]:
            program, *arguments = unit["Service"]["ExecReload"].replace("$SBUSD_OPTIONS", "").split()
            assert parsers[program]().parse_args(arguments).take_over
        if parsed.address == "/dev/fd/3":
            assert (UNITS / path.name.replace(".service", ".socket")).exists()
        if program == "@BIN@/sbus-relay":
            assert parsed.export_patterns, "a tenant exports named patterns only"
            assert parsed.import_patterns, "and imports named ones"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze: apt-get install systemd")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for path in (one for one in UNITS.iterdir() if one.suffix != ".toml"):
        # The programs need not be installed where this is tested.
        text = path.read_text().replace("@BIN@/sbusd", "/bin/true").replace("@BIN@/sbus-relay", "/bin/true")
        text = text.replace("@BIN@/sbus", "/bin/true")
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
