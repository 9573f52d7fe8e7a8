"""``sbus reload`` and SIGHUP: the programs take up a changed file, and lose nobody and nothing by it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from cli.conftest import Program, Run, Start
from support import PATIENCE, Peer, choose

from sbuslib.blocking import Client
from sbuslib.errors import StateError

OWN = os.getuid()


@pytest.fixture
def file(folder: str) -> Path:
    return Path(folder, "sbus.toml")


def rules(publish: str, subscribe: str = '""', more: str = "") -> str:
    return f"{more}\n[[rules]]\nusers = [{OWN}]\npublish = [{publish}]\nsubscribe = [{subscribe}]\n"


@pytest.fixture
def served(serve: Start, file: Path) -> Start:
    """Start ``sbusd`` with the file."""
    return partial(serve, "--config", str(file))


def line(process: Program) -> str:
    """The next line on standard error."""
    return process.stderr.readline().decode()


def refused(path: str, key: bytes) -> bool:
    with Client(path) as client:
        choose(client, b"notices/on")
        client.publish(key)
        try:
            client.sync()
        except ConnectionError:
            return True
        return False


def test_a_changed_file_is_taken_up(served: Start, run: Run, file: Path, path: str) -> None:
    file.write_text(rules('"a"'))
    process = served()
    with Client(path) as client:
        client.subscribe(b"b")
        assert refused(path, b"b")
        file.write_text(rules('"b"'))
        done = run("sbuslib", "reload", "-a", path)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{file} was read again\n", "")
        assert not refused(path, b"b")
        assert refused(path, b"a")
        assert client.receive(timeout=PATIENCE).key == b"b", "a client from before is still there"
    assert "publishing refused" in line(process)
    assert line(process) == f"sbusd: {file} was read again\n"


def test_an_error_keeps_the_old_settings(served: Start, run: Run, file: Path, path: str) -> None:
    file.write_text(rules('"a"'))
    process = served()
    file.write_text("[[rules]]\nusers = 3\n")
    error = f"{file}: rules[0].users: expected list, got int (nothing has changed)\n"
    done = run("sbuslib", "reload", "-a", path)
    assert (done.returncode, done.stderr) == (1, f"sbus: {path}: {error}")
    assert line(process) == f"sbusd: {error}"
    file.write_text(rules('"a"', more='separator = "."'))
    process.send_signal(signal.SIGHUP)
    assert line(process) == f"sbusd: {file}: separator: this takes a restart of the hub (nothing has changed)\n"
    file.unlink()
    process.send_signal(signal.SIGHUP)
    assert line(process) == f"sbusd: {file}: No such file or directory (nothing has changed)\n"
    assert not refused(path, b"a")
    assert refused(path, b"b")


def test_rules_do_not_go_while_a_file_is_written(served: Start, file: Path, path: str) -> None:
    """An empty file is correct, and says that everybody may do anything."""
    file.write_text("")
    process = served()
    with Client(path) as operator:
        file.write_text(rules('"a"'))
        operator.hub.reload()
        assert "was read again" in line(process)
        file.write_text("")
        told = f"{file}: rules: without any, this takes a restart of the hub (nothing has changed)"
        with pytest.raises(StateError, match="rules: without any"):
            operator.hub.reload()
    assert line(process) == f"sbusd: {told}\n"
    assert refused(path, b"b")
    assert not refused(path, b"a")


def test_a_hangup_has_the_file_read_and_tells_what_takes_a_restart(served: Start, file: Path, path: str) -> None:
    file.write_text(rules('"a"'))
    process = served()
    file.write_text(rules('"b"', more="mode = 0o770\nlimits = {queued_packets = 7, settle = 3}"))
    process.send_signal(signal.SIGHUP)
    assert line(process) == (
        f"sbusd: {file} was read again; after a restart: mode, limits.queued_packets, limits.settle\n"
    )
    assert not refused(path, b"b")


def test_a_relay_takes_up_other_bounds_and_another_hub_above(serve: Start, file: Path, folder: str, path: str) -> None:
    above = [os.path.join(folder, name) for name in ("one", "two")]
    for address in above:
        serve("-a", address)

    def write(upstream: str, export: str) -> None:
        file.write_text(f'address = "{path}"\nupstream = "{upstream}"\nexport = ["{export}"]\nimport = ["down/"]\n')

    write(above[0], "a/")
    process = serve("--config", str(file), program="sbuslib.cli.relay")
    with Client(path) as below, Client(above[0]) as one, Client(above[1]) as two:
        for client in (one, two):
            client.subscribe(b"")
        below.subscribe(b"")
        assert below.sync("tree") == "tree"
        for key in (b"b/1", b"a/1"):
            below.publish(key)
        assert one.receive(timeout=PATIENCE).key == b"a/1"
        write(above[0], "b/")
        below.hub.reload()
        below.sync("tree")
        for key in (b"a/2", b"b/2"):
            below.publish(key)
        assert one.receive(timeout=PATIENCE).key == b"b/2"
        write(above[1], "b/")
        below.hub.reload()
        below.publish(b"b/3")
        assert two.receive(timeout=PATIENCE).key == b"b/3"
        file.write_text("upstream = 3")
        process.send_signal(signal.SIGHUP)
        below.publish(b"b/4")
        assert two.receive(timeout=PATIENCE).key == b"b/4", "it still runs"


HUNG_UP = """
import os, signal, sys
from sbuslib.cli import config, daemon, main, relay

def read_settings(*arguments, read=config.read_settings):
    os.kill(os.getpid(), signal.SIGHUP)
    return read(*arguments)

config.read_settings = read_settings
mains = {"sbus": main.main, "sbusd": daemon.main, "sbus-relay": relay.main}
sys.exit(mains[sys.argv[1]](sys.argv[2:]))
"""
"""Runs a program that gets a SIGHUP while it starts."""


@pytest.mark.parametrize(
    "words",
    [["sbusd", "-f"], ["sbus", "hub"], ["sbus", "broker", "--memory"], ["sbus-relay", "--upstream", "/nowhere"]],
    ids=["sbusd", "hub", "broker", "relay"],
)
def test_a_hangup_while_a_program_starts_is_a_reload_once_it_serves(words: list[str], file: Path, path: str) -> None:
    file.write_text(rules('"a"'))
    where = "--listen" if words[0] == "sbus-relay" else "-a"
    command = [sys.executable, "-c", HUNG_UP, *words, where, path, "--config", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any("was read again" in said for said in process.stderr)
            assert process.poll() is None
        finally:
            process.terminate()


# -- under load -----------------------------------------------------------------------------------------

CLIENTS = 200
RELOADS = 10


def test_many_clients_lose_nothing_by_reloads(served: Start, file: Path, path: str) -> None:
    """Each reload changes what everybody may publish and read beside ``k/``. No client is lost, and no message."""

    def write(number: int) -> None:
        odd = number % 2
        file.write_text(rules(f'"k/", "odd/{odd}"', f'"k/", "other/{odd}/"', "limits = {turn_deliveries = 512}"))

    write(0)
    served()
    peers = []
    try:
        for _ in range(CLIENTS):
            peers.append(Peer(path))
            peers[-1].subscribe(b"k/", b"other/0/")
        with Client(path) as operator, Client(path) as publisher:
            for number in range(RELOADS):
                key = b"k/%d" % number
                for part in (b"1", b"2", b"3"):
                    publisher.publish(key, part)
                    peers[number].publish(key, b"own")
                write(number + 1)
                operator.hub.reload()
                publisher.publish(key, b"last")
                for peer in peers:  # what was on its way during the reload, and what came after it
                    got = [peer.receive() for _ in range(7)]
                    assert [one for one in got if not one.endswith(b"own")] == [
                        b"MSG %b\0%b" % (key, part) for part in (b"1", b"2", b"3", b"last")
                    ]
            statistics = operator.hub.statistics()
            assert (statistics.violations, statistics.lost) == ({}, {})
            assert statistics.clients == CLIENTS + 2
            assert statistics.patterns == CLIENTS, "the others were withdrawn"
    finally:
        for peer in peers:
            peer.close()
