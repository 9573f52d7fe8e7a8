"""Clients that are processes: killed at any moment, or stopped and continued. Nobody else notices.

Each ends with nothing charged to anybody: ``bus`` sees to it.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn

import gevent
import pytest
from accounting import balance
from programs import Programs
from support import PATIENCE, Bus, Connect, eventually

import sbuslib

Start = Callable[..., int]


@pytest.fixture
def start(address: str) -> Iterator[Start]:
    """Run a function of a connected socket in a process of its own, which is killed after the test."""
    children: list[int] = []

    def run(function: Callable[..., object], *arguments: object) -> int:
        pid = os.fork()
        if pid:
            children.append(pid)
            return pid
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.connect(address)
                function(sock, *arguments)
            os._exit(0)
        finally:
            os._exit(1)

    yield run
    for pid in children:
        with suppress(ProcessLookupError, ChildProcessError):
            end(pid)


def end(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)
    os.waitpid(pid, 0)


# What the processes do. They know nothing of gevent, whose loop is the parent's.


def publish_for_ever(sock: socket.socket) -> NoReturn:
    number = 0
    while True:
        sock.send(b"MSG flood\0%d" % number)
        number += 1


def subscribe_and_wait(sock: socket.socket, *packets: bytes) -> NoReturn:
    for packet in packets:
        sock.send(packet)
    while True:
        signal.pause()


def echo(sock: socket.socket) -> NoReturn:
    """Read everything, slowly, and say how much came."""
    sock.send(b"SUB flood")
    while True:
        sock.recv(1_000)
        sock.send(b"MSG echo\0")


def count_up(sock: socket.socket, stop: int) -> None:
    """Read numbers from 0 on until ``stop``; a wrong one is a failure."""
    sock.send(b"SUB k")
    for number in range(stop):
        packet = sock.recv(100_000)
        assert packet.startswith(b"MSG k\0%d " % number), packet


@pytest.mark.parametrize("victim", [publish_for_ever, echo, subscribe_and_wait])
def test_processes_that_are_killed(bus: Bus, connect: Connect, start: Start, victim: Callable[..., object]) -> None:
    """Publishers in the middle of a batch, readers with packets unread, stuck ones: ten of each, beside a flood."""
    hub = bus(queued_packets=500)
    reader, publisher = connect(), connect()
    reader.subscribe(b"mine")
    packets = (b"SUB flood", b"CMSG notices/on") if victim is subscribe_and_wait else ()
    start(publish_for_ever)
    victims = [start(victim, *packets) for _ in range(10)]
    eventually(lambda: hub.statistics().clients == 13)
    for number, pid in enumerate(victims):
        before = hub.statistics().published
        eventually(lambda before=before: hub.statistics().published > before + 50)  # type: ignore[misc]
        end(pid)
        publisher.publish(b"mine", b"%d" % number)
        assert reader.receive() == b"MSG mine\0%d" % number
        balance(hub)
    eventually(lambda: hub.statistics().clients == 3)


def test_a_subscriber_that_is_stopped_and_continued(bus: Bus, connect: Connect, start: Start) -> None:
    """Nothing is lost for it, in order, and others read on meanwhile."""
    count = 4_000
    hub = bus()
    reader, publisher = connect(), connect()
    reader.subscribe(b"k")
    pid = start(count_up, count)
    eventually(lambda: hub.statistics().patterns == 2)
    got: list[bytes] = []
    reading = gevent.spawn(lambda: got.extend(reader.receive() for _ in range(count)))
    for number in range(count):
        if number == 500:
            os.kill(pid, signal.SIGSTOP)
        publisher.publish(b"k", b"%d " % number + bytes(500))
        if not number % 100:
            eventually(lambda seen=number: len(got) >= seen)  # type: ignore[misc]
    reading.get(timeout=20)
    assert hub.statistics().waiting > 0
    balance(hub)
    os.kill(pid, signal.SIGCONT)
    ended = (0, 0)

    def has_ended() -> bool:
        nonlocal ended
        ended = os.waitpid(pid, os.WNOHANG)
        return ended != (0, 0)

    eventually(has_ended)
    assert ended == (pid, 0)


def test_a_hub_that_is_stopped_and_continued(programs: Programs) -> None:
    """Its clients wait, no longer than their timeout, and nothing is lost."""
    programs.start("bus")
    address = programs.address("bus")
    with sbuslib.Client(address) as reader, sbuslib.Client(address) as publisher:
        reader.subscribe(b"k")
        programs.send("bus", signal.SIGSTOP)
        publisher.timeout = 0.02
        publisher.publish(b"k", b"while it sleeps")
        with pytest.raises(TimeoutError):
            publisher.sync()
        programs.send("bus", signal.SIGCONT)
        publisher.timeout = PATIENCE
        publisher.publish(b"k", b"after")
        assert [reader.receive(timeout=PATIENCE).payload for _ in range(2)] == [b"while it sleeps", b"after"]
