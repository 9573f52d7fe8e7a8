"""A hub is replaced under its clients: nobody is disconnected, and nothing is lost, comes twice or out of order.

``SBUS_TAKE_OVERS=20 SBUS_TAKE_OVER_CLIENTS=1000 pytest -s`` does what the documentation promises.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from crowds import KINDS, Crowd
from programs import Programs, wait_until
from support import PATIENCE, ROOT

from sbuslib.blocking import Client

TAKE_OVERS = int(os.environ.get("SBUS_TAKE_OVERS", "3"))
CLIENTS = int(os.environ.get("SBUS_TAKE_OVER_CLIENTS", str(2 * len(KINDS))))
KILL, STOP = signal.SIGKILL, signal.SIGSTOP
COMMIT = 5
"""The step at which the new process commits; before it, a hub of one lot of clients says and hears four things."""


@pytest.fixture(scope="module")
def forking() -> Iterator[Programs]:
    """What all tests fork their hubs from."""
    with tempfile.TemporaryDirectory(prefix="sbus-") as folder, open(f"{folder}/log", "ab") as log:
        os.chmod(folder, 0o711)  # for clients of another user
        with contextlib.closing(Programs(folder, log.fileno())) as programs:
            yield programs


@pytest.fixture
def programs(forking: Programs) -> Iterator[Programs]:
    os.truncate(forking.address("log"), 0)
    yield forking
    forking.kill_all()


@pytest.fixture
def crowd(programs: Programs) -> Iterator[Callable[[int], Crowd]]:
    with contextlib.ExitStack() as stack:
        yield lambda readers: stack.enter_context(contextlib.closing(Crowd(programs.address("bus"), readers)))


def take_over(programs: Programs) -> None:
    old = programs.pids["bus"]
    programs.start("bus", None, "-o", "--take-over")
    wait_until(lambda: not os.path.exists(f"/proc/{old}"), "the old hub is gone")
    assert os.path.exists(f"/proc/{programs.pids['bus']}"), "the new hub did not take over"


@contextlib.contextmanager
def dying(step: int, number: int, programs: Programs, *arguments: str) -> Iterator[Popen[bytes]]:
    """``sbusd`` that dies, or stops, at a step; left alone until then."""
    program = [sys.executable, str(Path(__file__).with_name("dying.py")), str(step), str(int(number))]
    command = [*program, "-f", "-o", "-r", "-a", programs.address("bus"), *arguments]
    with Popen(command, stdout=PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_signal(process: Popen[bytes], number: int) -> None:
    """Wait until a process has died of a signal, or was stopped by it."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert (os.WSTOPSIG(status) if os.WIFSTOPPED(status) else os.WTERMSIG(status)) == number


@pytest.mark.promise("how-to/service.md", "No client is disconnected, and no message is lost, doubled or out of order")
def test_clients_notice_nothing(programs: Programs, crowd: Callable[[int], Crowd]) -> None:
    programs.start("bus", None, "-o")
    clients = crowd(CLIENTS)
    for _ in range(TAKE_OVERS):
        for _ in range(20):
            clients.step()
        take_over(programs)
        for _ in range(20):
            clients.step()
    for reader in clients.readers:
        reader.take_one_back()
    clients.step()
    clients.finish()
    print(f"{clients.received:,} messages")


@pytest.mark.parametrize(
    ("number", "step"), [*((KILL, step) for step in range(1, COMMIT + 1)), (STOP, 1), (STOP, 3), (STOP, COMMIT)]
)
def test_a_new_process_that_does_not_commit_changes_nothing(
    programs: Programs, crowd: Callable[[int], Crowd], number: int, step: int
) -> None:
    programs.start("bus", None, "-o")
    clients = crowd(len(KINDS))
    with dying(step, number, programs, "--take-over") as new:
        clients.step()
        wait_for_signal(new, number)
        clients.step()
        if step > 1:  # it has asked
            wait_until(lambda: " goes on: " in Path(programs.address("log")).read_text(), "the old hub gives up")
        clients.finish()
        new.send_signal(signal.SIGCONT)
        if number == STOP and step > 1:
            assert new.wait(PATIENCE) == 1
            clients.step()
            clients.finish()
    take_over(programs)
    clients.step()
    clients.finish()


@pytest.mark.parametrize("step", [4, 5])
@pytest.mark.parametrize("number", [KILL, STOP])
def test_an_old_hub_that_has_given_all_may_die(
    programs: Programs, crowd: Callable[[int], Crowd], step: int, number: int
) -> None:
    with dying(step, number, programs) as old:
        assert old.stdout is not None
        old.stdout.read()  # it listens
        clients = crowd(len(KINDS))
        clients.step()
        programs.start("bus", None, "-o", "--take-over")
        if step == 4:
            wait_for_signal(old, number)
        clients.step()
        clients.finish()
        old.send_signal(signal.SIGCONT)
    assert os.path.exists(f"/proc/{programs.pids['bus']}")


@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_old_hub_that_dies_before_is_dead(programs: Programs, step: int) -> None:
    with dying(step, KILL, programs) as old:
        assert old.stdout is not None
        old.stdout.read()
        with Client(programs.address("bus")) as client:
            client.subscribe(b"k")
            programs.start("bus", None, "-o", "--take-over")
            wait_for_signal(old, KILL)
            with pytest.raises(ConnectionError):
                client.receive(timeout=PATIENCE)
    wait_until(lambda: not os.path.exists(f"/proc/{programs.pids['bus']}"), "the new process gave up")


def one_is_left(processes: list[Popen[bytes]]) -> bool:
    return [one.poll() for one in processes].count(None) == 1


def test_two_processes_ask_at_once(programs: Programs, crowd: Callable[[int], Crowd]) -> None:
    """One is refused, or takes over from the other."""
    programs.start("bus", None, "-o")
    clients = crowd(len(KINDS))
    command = [sys.executable, "-m", "sbuslib.cli.daemon", "-f", "-o", "--take-over", "-a", programs.address("bus")]
    for _ in range(3):
        with contextlib.ExitStack() as stack:
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            both = [stack.enter_context(Popen(command, env=environment, stdout=PIPE)) for _ in range(2)]
            for one in both:
                stack.callback(one.kill)
                clients.step()
                assert one.stdout is not None
                one.stdout.read()  # it serves, or has given up
            wait_until(partial(one_is_left, both), "one hub is left")
            clients.finish()
            programs.start("bus", None, "-o", "--take-over")
            clients.step()
            clients.finish()


def test_nothing_is_left_behind(programs: Programs) -> None:
    """Memory and descriptors are those of before, and so are the counts."""

    def state() -> tuple[int, object]:
        pid = programs.pids["bus"]
        with Client(programs.address("bus")) as client:
            told = client.hub.statistics()
        return len(os.listdir(f"/proc/{pid}/fd")), (told.hub_id, told.clients, told.patterns, told.published, told.lost)

    programs.start("bus", None, "-o")
    with contextlib.closing(Crowd(programs.address("bus"), len(KINDS))) as crowd:
        crowd.step()
        crowd.finish()
        before = state()
        for _ in range(3):
            take_over(programs)
        wait_until(lambda: state() == before, "the new hub is as the old one was")


def test_hubs_below_lose_nothing(programs: Programs) -> None:
    programs.start("bus", None, "-o")
    programs.start("below", "bus")
    programs.wait_until_joined("below")
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Client(programs.address("bus"))).subscribe(b"up")
        below = stack.enter_context(Client(programs.address("below")))
        below.sync("tree")
        for number in range(3):
            take_over(programs)
            below.publish(b"up", b"%d" % number)
            assert parent.receive(timeout=PATIENCE).payload == b"%d" % number


def test_an_old_hub_ends_although_interest_is_watched_and_changes_meanwhile(programs: Programs) -> None:
    """What has still to be looked at there is looked at by the new one, and keeps no job of the old one alive."""
    programs.start("bus", None, "-o")
    stop = threading.Event()

    def change() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(programs.address("bus"))
            while not stop.is_set():
                for verb in (b"SUB", b"UNSUB"):
                    for number in range(100):
                        sock.send(b"%b x/%d/*" % (verb, number))

    with Client(programs.address("bus")) as client, Client(programs.address("bus")) as other:
        watches = [client.hub.watch_interest(pattern) for pattern in (b"x/*/a", b"x/1/b", b"y")]
        changing = threading.Thread(target=change)
        changing.start()
        try:
            for _ in range(2):
                take_over(programs)
        finally:
            stop.set()
            changing.join()
        other.subscribe(b"y")
        while watches[2].wanted is not True:
            watches[2].receive(timeout=PATIENCE)
        while any(watch.wanted is not False for watch in watches[:2]):
            client.sync()
