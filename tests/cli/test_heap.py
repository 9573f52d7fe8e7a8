"""The memory that a hub's program gives back to the system."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from cli.conftest import Program
from support import PATIENCE, Peer, eventually

from sbuslib import Hub
from sbuslib.blocking import Client
from sbuslib.cli import heap
from sbuslib.cli.heap import GONE, GROWN, SHARE, HeapTrimmer, trimmer_of

Connect = Callable[..., Peer]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine whose clock, and whose word on the size of this process, are made up."""
    machine = SimpleNamespace(now=1_000.0, resident=100 * GROWN, asked=0, takes=0.0)

    def give_back() -> None:
        machine.asked += 1
        machine.now += machine.takes

    monkeypatch.setattr(heap, "give_back", give_back)
    monkeypatch.setattr(heap, "monotonic", lambda: machine.now)
    monkeypatch.setattr(heap, "resident_bytes", lambda: machine.resident)
    return machine


@pytest.fixture
def trimmer(hub: Hub, machine: SimpleNamespace) -> Iterator[HeapTrimmer]:
    with contextlib.closing(trimmer_of(hub.context)) as trimmer:
        yield trimmer


def test_memory_is_given_back_once_many_patterns_have_gone(
    hub: Hub, connect: Connect, machine: SimpleNamespace, trimmer: HeapTrimmer
) -> None:
    leaving, staying = connect(), connect()
    leaving.subscribe(*(b"leaving/%d" % number for number in range(GONE)))
    staying.subscribe(*(b"staying/%d" % number for number in range(GONE)))
    staying.barrier()
    trimmer.look()
    assert machine.asked == 0
    leaving.close()
    eventually(lambda: sum(account.patterns for account in hub.context.quotas.accounts()) == GONE)
    trimmer.look()
    assert machine.asked == 1
    trimmer.look()
    assert machine.asked == 1, "nothing has gone since"


def test_memory_is_given_back_when_the_process_has_grown_and_nothing_waits_any_more(
    hub: Hub, connect: Connect, machine: SimpleNamespace, trimmer: HeapTrimmer
) -> None:
    slow, publisher = connect(), connect()
    slow.subscribe(b"k")
    for number in range(5_000):  # more than the kernel takes for a client that does not read
        publisher.publish(b"k", b"%d" % number)
    publisher.barrier()
    assert hub.context.quotas.waiting()
    machine.resident += GROWN
    trimmer.look()
    assert machine.asked == 0, "something waits"
    while hub.context.quotas.waiting():
        slow.receive()
    trimmer.look()
    assert machine.asked == 1
    machine.resident += GROWN - 1
    trimmer.look()
    assert machine.asked == 1, "the process has grown by less since"


def test_giving_memory_back_takes_no_more_than_its_share_of_the_time(
    machine: SimpleNamespace, trimmer: HeapTrimmer
) -> None:
    machine.takes = 0.05
    began = machine.now
    for number in range(1, 4):
        machine.resident += GROWN
        trimmer.look()
        assert machine.asked == number
        machine.resident += GROWN
        machine.now = began + number * (machine.takes / SHARE) - 1
        trimmer.look()
        assert machine.asked == number, "it is too soon"
        machine.now = began + number * (machine.takes / SHARE)


SBUSD = """
import os, sys
from sbuslib.cli import daemon, heap
heap.LOOK_SECONDS = 0.005
heap.give_back = lambda: os.write(2, b"given back")
sys.exit(daemon.main(["-f", "-a", sys.argv[1]]))
"""


def test_sbusd_gives_memory_back(path: str, environment: dict[str, str]) -> None:
    process = Program(
        [sys.executable, "-c", SBUSD, path], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        process.stdout.read()  # to its end: it listens
        client = Client(path, timeout=PATIENCE)
        client.subscribe(*(b"%d" % number for number in range(20_000)))
        client.sync()
        client.close()
        assert process.stderr.read(len(b"given back")) == b"given back"
        process.terminate()
        assert process.wait(PATIENCE) == 0


COLLECTED = """
import gc, sys
from sbuslib.cli import daemon
status = daemon.main(["-f", "-c", "-a", sys.argv[1]])
gc.collect()
print(len(gc.get_objects()), gc.get_freeze_count(), file=sys.stderr)
sys.exit(status)
"""


def test_sbusd_keeps_what_survived_a_full_collection_from_the_next(path: str, environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", COLLECTED, path]
    with Program(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as sbusd:
        sbusd.stdout.read()  # closed once clients can connect
        Client(path).close()
        looked_at, frozen = map(int, sbusd.stderr.read().split())
        assert sbusd.wait(PATIENCE) == 0
    assert looked_at < 100 < frozen
