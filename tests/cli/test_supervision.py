"""What systemd is told: that a service is ready, and that it is alive."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable

import gevent
import pytest
from support import PATIENCE

from sbuslib.blocking import Client
from sbuslib.cli import process

Start = Callable[..., "subprocess.Popen[bytes]"]


def notices(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind("\0" + address[1:] if address.startswith("@") else address)
    sock.settimeout(PATIENCE)
    return sock


@pytest.mark.parametrize("abstract", [True, False])
def test_a_hub_says_that_it_is_ready_and_alive(start: Start, folder: str, abstract: bool) -> None:
    address = f"@{folder}/notify" if abstract else f"{folder}/notify"
    with notices(address) as supervisor:
        told = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000"}
        hub = start("sbuslib.cli.daemon", "-f", "-a", f"{folder}/bus", env=told)
        assert supervisor.recv(100) == b"READY=1"
        assert [supervisor.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        hub.send_signal(signal.SIGTERM)
        assert hub.wait(PATIENCE) == 0


def test_the_watchdog_of_another_process_is_ignored(start: Start, folder: str) -> None:
    with notices(f"{folder}/notify") as supervisor:
        told = {"NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
        start("sbuslib.cli.daemon", "-f", "-a", f"{folder}/bus", env=told)
        assert supervisor.recv(100) == b"READY=1"
        with Client(f"{folder}/bus") as client:
            for _ in range(100):
                client.sync()
        supervisor.setblocking(False)
        with pytest.raises(BlockingIOError):
            supervisor.recv(100)


@pytest.mark.parametrize("address", ["", "/nowhere/at/all", "@sbus-nobody", "unix:/tmp", "/" + 200 * "x"])
def test_a_supervisor_that_is_not_there_is_no_error(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    process.tell_supervisor(b"READY=1")


@pytest.mark.parametrize("interval", ["", "0", "-1", "soon", "²", "1" * 19])
def test_an_interval_without_a_meaning_is_no_watchdog(monkeypatch: pytest.MonkeyPatch, interval: str) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", interval)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert process.watchdog(gevent.get_hub().loop) is None


def test_the_watchdog_is_told_twice_in_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    timer = process.watchdog(gevent.get_hub().loop)
    assert timer.active
    timer.stop()
    timer.close()
