"""What one hostile user costs another: throughput beside it and without it, limits, and the log.

Run as root ``python benchmarks/hostile.py [rounds]``: the hub and its clients are processes of three users. The hostile
user keeps 10,000 connections, none of which ever reads, and without pause subscribes to endless patterns, asks
who it is, publishes to itself, breaks the protocol, and connects again.

What is measured is the hub, and not the scheduler of a machine with few cores: the hub and the good user's clients
have real-time priority, where that is allowed, and the hostile user's processes the lowest there is. Without it, a
process that wakes up waits milliseconds until the time slice of the running process is over, whatever their priorities.

Nor is it how fast the machine is at that moment: there are two hubs with a good user each, of which one is attacked,
and they take turns, some seconds apart, while all processes of the other are stopped. Of the connections that the
hostile user tries to keep, the hub lets it have its share of the descriptors, two thirds or so; the last hub is made
to believe that it has so many descriptors that it holds all of them.

A good user that publishes all that it can leaves little of a small machine to the attacker. So there is one more, that
publishes little: measured is how long its messages take beside the attack, and how long it takes to connect. A run
takes two and a half minutes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

import plain

from sbuslib import blocking
from sbuslib.bench.process import cpu_seconds, resident_bytes
from sbuslib.kernel.receive_buffer import make_receive_buffer
from sbuslib.kernel.sockets import wait
from sbuslib.statistics import HubStatistics

HUB = """
import logging, sys
from sbuslib import Hub
logging.basicConfig(format="%(message)s")
if len(sys.argv) > 2:
    Hub._connections_most = lambda self: int(sys.argv[2])
hub = Hub(sys.argv[1], mode=0o777)
hub.start()
print("ready", flush=True)
hub.serve_forever()
"""
GOOD, HOSTILE = 2001, 2002
URGENT = -15  # of nice(1)
PR_SET_PDEATHSIG = 1  # of prctl(2)
CONNECTIONS = 10_000
PROCESSES = 4
ROUNDS = 3
PAIRS = 5
"""Times that the hub that is attacked takes turns with the one that is not."""
SECONDS = 1.0
SETTLE = 0.3
"""Seconds for which a hub that was stopped runs again before it is measured."""
WARM = 8.0
"""Seconds of attack before anything is measured, and in which the hostile user opens no more than a few connections
more before it counts as having all that it gets."""
WARM_MOST = 60.0
FLOOR = 0.8
MODEST = 20_000
"""Messages a second of a good user that leaves the hub idle most of the time."""
PROBES = 300
STRANGER = 2003
NEWCOMERS_WAIT = 1.0
"""Seconds in which a client that connects during the attack is to have an answer."""


def apart(priority: int) -> None:
    """Be a session of this priority: Linux shares the processor out among sessions first, whatever nice(1) says."""
    os.setsid()
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(str(priority))


def end_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal once its parent has died, however that came."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how, 0, 0, 0)


def urge(pid: int) -> bool:
    """Give a process, 0 for this one, the processor before all others; whether that is allowed."""
    try:
        os.setpriority(os.PRIO_PROCESS, pid, URGENT)
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    return True


def child(function: Callable[[], None], uid: int, priority: int = 0) -> int:
    """Do something in a process of another user."""
    pid = os.fork()
    if pid:
        return pid
    try:
        if priority > 0:
            apart(priority)
            os.nice(priority)
        elif priority < 0:
            urge(0)
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        end_with_parent()
        function()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


# -- the good user ----------------------------------------------------------------------------------------


def subscriber(address: str, pipe: int) -> None:
    """Count what comes, and tell the count and the time now and then, a line each."""
    sock = plain.reader(address, b"bench/")
    os.write(pipe, b"0\n")
    buffer, count = make_receive_buffer(), 0
    told = time.monotonic()
    while True:
        wait(sock, select.POLLIN, 0.05)
        count += len(buffer.receive(sock))
        now = time.monotonic()
        if now - told > 0.05:
            os.write(pipe, b"%d %f\n" % (count, now))
            told = now


def publisher(address: str) -> None:
    plain.publish(address, b"bench/one", b"x" * 90)


def modest_publisher(address: str) -> None:
    """Publish ``MODEST`` messages a second, in as many batches as there are milliseconds."""
    with blocking.Client(address) as client:
        due = time.monotonic()
        while True:
            client.publish_many((b"bench/one", b"x" * 90) for _ in range(MODEST // 1_000))
            due += 0.001
            time.sleep(max(0.0, due - time.monotonic()))


def probe(address: str, pipe: int) -> None:
    """Tell how long each of some messages to oneself takes, in seconds, a line for each."""
    with blocking.Client(address, timeout=60) as client:
        client.subscribe(b"probe")
        for _ in range(PROBES):
            began = time.monotonic()
            client.publish(b"probe")
            client.receive(timeout=60)
            os.write(pipe, b"%f\n" % (time.monotonic() - began))
            time.sleep(0.002)


def newcomer(address: str, pipe: int) -> None:
    """Tell how long it takes until a client that connects has an answer."""
    began = time.monotonic()
    with blocking.Client(address, timeout=60) as client:
        client.sync()
    os.write(pipe, b"%f\n" % (time.monotonic() - began))


def more_of_the_good_user(address: str) -> Callable[[], None]:
    """What another client of the good user finds while the attack goes on: connections, patterns, its queue."""

    def run() -> None:
        clients = [blocking.Client(address, timeout=60) for _ in range(50)]
        for number, client in enumerate(clients):
            client.subscribe(*(b"mine/%d/%d" % (number, n) for n in range(200)))
        clients[0].subscribe(b"burst/*")
        clients[1].publish_many((b"burst/%d" % (n % 10), b"%d" % n) for n in range(20_000))
        for n in range(20_000):
            assert clients[0].receive(timeout=60).payload == b"%d" % n
        print("limits: the good user opened 50 more connections, put 10,000 patterns in force, and had 20,000 "
              "messages wait for it and come in order", flush=True)  # fmt: skip

    return run


# -- the hostile user -------------------------------------------------------------------------------------


def hostile(address: str, connections: int, seed: int) -> None:
    rng = random.Random(seed)
    socks: list[socket.socket] = []

    def connect() -> socket.socket | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        try:
            sock.connect(address)
        except OSError:
            sock.close()
            return None
        return sock

    def patterns() -> list[bytes]:
        kinds = (b"SUB %x/*/%x", b"SUB x*/%x/%x/", b"SUB %x/%x", b"SUB */*/%x/%x")
        return [rng.choice(kinds) % (rng.getrandbits(40), rng.getrandbits(40)) for _ in range(50)]

    def flood() -> list[bytes]:
        return [b"MSG hostile/%d\0" % rng.randrange(100) + b"x" * rng.choice((10, 1_000, 100_000)) for _ in range(20)]

    acts: list[Callable[[], list[bytes]]] = [
        patterns,
        patterns,
        lambda: [b"CMSG !/cred/whoami"] * 200,
        lambda: [b"CMSG hub/statistics", b"CMSG hub/features"] * 50,
        lambda: [b"SUB hostile/", b"CMSG blocking/soft/block", b"CMSG blocking/hard/block", b"CMSG notices/on"],
        flood,
        lambda: [b"SUB !/cred/0/0/1/x"],
        lambda: [b"nonsense"],
        lambda: [b"SUB a", b"UNSUB a"] * 100,
        lambda: [b"MSG %x\0" % rng.getrandbits(64) for _ in range(100)],
    ]
    while True:
        for _ in range(50):
            if len(socks) < connections and (sock := connect()) is not None:
                socks.append(sock)
        for _ in range(50):
            if not socks:
                break
            number = rng.randrange(len(socks))
            try:
                for packet in rng.choice(acts)():
                    socks[number].send(packet)
            except BlockingIOError:
                pass
            except OSError:
                socks[number].close()
                socks[number] = socks[-1]
                socks.pop()


# -- measuring --------------------------------------------------------------------------------------------


class Meter:
    """Reads what the subscriber tells."""

    def __init__(self, pipe: int) -> None:
        self._file = os.fdopen(pipe, "rb")
        self._file.readline()

    def rate(self, seconds: float, hub: int) -> tuple[float, float]:
        """Messages over the next ``seconds``: each second, and each second of the hub's CPU time."""
        start, began = self._fresh(time.monotonic()), cpu_seconds([hub])
        end = self._fresh(start[1] + seconds)
        count = end[0] - start[0]
        return count / (end[1] - start[1]), count / (cpu_seconds([hub]) - began)

    def _fresh(self, since: float) -> tuple[int, float]:
        while True:
            count, at = self._file.readline().split()
            if float(at) >= since:
                return int(count), float(at)


@contextlib.contextmanager
def hub_process(folder: str, *options: str) -> Iterator[tuple[str, int, str]]:
    address, log = f"{folder}/bus", f"{folder}/log"
    command = [sys.executable, "-c", HUB, address, *options]
    with open(log, "wb") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, preexec_fn=end_with_parent)
    if not urge(process.pid):
        print("real-time priority is not allowed here, so the scheduler has its part in this:")
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield address, process.pid, log
    finally:
        process.terminate()
        process.send_signal(signal.SIGCONT)
        process.wait()


class Scene(NamedTuple):
    """A hub with the good user's two clients, and the processes of the attacker."""

    address: str
    hub: int
    log: str
    meter: Meter
    children: list[int]

    def stop(self) -> None:
        """Let none of its processes run."""
        for pid in (*self.children, self.hub):
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let them run again."""
        for pid in (self.hub, *self.children):
            os.kill(pid, signal.SIGCONT)

    def rate(self) -> tuple[float, float]:
        """What the meter says once it has settled."""
        time.sleep(SETTLE)
        return self.meter.rate(SECONDS, self.hub)

    def told(self) -> tuple[HubStatistics, int]:
        """The hub's statistics, and how many messages the good user lost."""
        with blocking.Client(self.address, timeout=60) as root:
            told = root.hub.statistics()
        mine = (client for client in told.per_client if f"/{GOOD}/" in client.credentials)
        return told, sum(sum(client.lost.values()) for client in mine)


@contextlib.contextmanager
def good_user(*options: str, publishes: Callable[[str], None] = publisher) -> Iterator[Scene]:
    """A hub of its own with a publisher and a subscriber; in the end all processes are killed."""
    children: list[int] = []
    with tempfile.TemporaryDirectory() as folder, hub_process(folder, *options) as (address, hub, log):
        os.chmod(folder, 0o755)
        try:
            reading, writing = os.pipe()
            children.append(child(lambda: subscriber(address, writing), GOOD, URGENT))
            os.close(writing)
            meter = Meter(reading)
            children.append(child(lambda: publishes(address), GOOD, URGENT))
            meter.rate(SECONDS, hub)
            yield Scene(address, hub, log, meter, children)
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            for pid in children:
                os.waitpid(pid, 0)


@contextlib.contextmanager
def two_hubs(*options: str) -> Iterator[tuple[Scene, Scene]]:
    """Two hubs with a good user each, to be compared :func:`in_turns`: the first is stopped."""
    with good_user(*options) as quiet:
        quiet.stop()
        with good_user(*options) as scene:
            yield quiet, scene


def wait_for_connections(hub: int) -> None:
    """Until the hub has no more of them than a moment ago."""
    deadline, before = time.monotonic() + WARM_MOST, 0
    time.sleep(WARM)
    while (count := len(os.listdir(f"/proc/{hub}/fd"))) > 1.02 * before and time.monotonic() < deadline:
        before = count
        time.sleep(WARM / 2)


def attack(address: str) -> list[int]:
    """Start the hostile user's processes."""
    return [
        child(lambda n=n: hostile(address, CONNECTIONS // PROCESSES, n), HOSTILE, 19)  # type: ignore[misc]
        for n in range(PROCESSES)
    ]


def measure(all_held: bool) -> tuple[float, bool]:
    """With hubs of its own: the good user's rate with the hostile one, as part of that without, and if all is well."""
    options = [str(4 * CONNECTIONS)] if all_held else []
    with two_hubs(*options) as (quiet, scene):
        address, hub = scene.address, scene.hub
        scene.children.extend(attack(address))
        wait_for_connections(hub)
        compared = in_turns(quiet, scene)
        if all_held:
            other = child(more_of_the_good_user(address), GOOD)
            _, status = os.waitpid(other, 0)
            assert status == 0
        told, lost = scene.told()
        with open(scene.log) as file:
            lines = file.read().splitlines()
        users = {user.uid: user for user in told.per_user}
        print(
            f"{compared.text}; {lost} lost. "
            f"Hostile: {users[HOSTILE].connections:,} connections ({told.clients_total:,} in all), "
            f"{users[HOSTILE].patterns:,} patterns, {users[HOSTILE].waiting_bytes / 2**20:.0f} MiB queued, "
            f"{sum(told.violations.values()):,} violations of "
            f"{len(told.violations)} kinds; log of {len(lines)} lines; hub of {resident_bytes(hub) / 2**20:.0f} MiB",
            flush=True,
        )
        return compared.share, not lost and len(lines) >= len(told.violations) > 0 and len(set(lines)) == len(lines)


def check_alive(scene: Scene) -> None:
    """Raise :exc:`RuntimeError` if a process has ended: what is measured would be no attack."""
    for pid in scene.children:
        if os.waitpid(pid, os.WNOHANG)[0]:
            scene.children.remove(pid)
            raise RuntimeError(f"process {pid} has ended")


class Compared(NamedTuple):
    """The good user's rate on one hub as part of that on another, and all of it in words."""

    share: float
    text: str


def in_turns(quiet: Scene, scene: Scene) -> Compared:
    """Measure two hubs in turns, of which one, which is stopped so far, has the good user alone."""
    pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for _ in range(PAIRS):
        scene.stop()
        quiet.go_on()
        alone = quiet.rate()
        quiet.stop()
        scene.go_on()
        pairs.append((alone, scene.rate()))
        check_alive(scene)
    shares = sorted(beside[0] / alone[0] for alone, beside in pairs)
    share = statistics.median(shares)
    by_cpu = statistics.median(beside[1] / alone[1] for alone, beside in pairs)
    return Compared(
        share,
        f"{statistics.median(alone[0] for alone, _ in pairs):9,.0f} messages/s without, "
        f"{statistics.median(beside[0] for _, beside in pairs):9,.0f} with: {share:.2f} "
        f"({shares[0]:.2f} to {shares[-1]:.2f}; {by_cpu:.2f} for each second of the hub's CPU)",
    )


def told_by(function: Callable[[str, int], None], address: str, uid: int, priority: int = 0) -> list[float]:
    """The numbers that a process of another user tells, a line each."""
    reading, writing = os.pipe()
    pid = child(lambda: function(address, writing), uid, priority)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        numbers = sorted(map(float, file))
    os.waitpid(pid, 0)
    return numbers


def measure_at_leisure() -> bool:
    """The same for a good user that has little to say, so that the hub has time, and who attacks has it, too."""
    with good_user(publishes=modest_publisher) as scene:
        alone = scene.rate()[0]
        quiet = told_by(probe, scene.address, GOOD, URGENT)
        attackers = attack(scene.address)
        scene.children.extend(attackers)
        wait_for_connections(scene.hub)
        began, spent, worked = time.monotonic(), cpu_seconds(attackers), cpu_seconds([scene.hub])
        beside = scene.rate()[0]
        loud = told_by(probe, scene.address, GOOD, URGENT)
        elapsed = time.monotonic() - began
        spent, worked = cpu_seconds(attackers) - spent, cpu_seconds([scene.hub]) - worked
        waits = [told_by(newcomer, scene.address, uid, URGENT) for uid in (GOOD, STRANGER) for _ in range(5)]
        check_alive(scene)
        _, lost = scene.told()
        slowest = max((wait[0] if wait else WARM_MOST) for wait in waits)

        def show(times: list[float]) -> str:
            return f"{1e3 * statistics.median(times):.2f} ms (99 of 100 within {1e3 * times[-PROBES // 100 - 1]:.1f})"

        print(
            f"a good user of {MODEST:,} messages/s: {alone:,.0f} without, {beside:,.0f} with, {lost} lost; a message "
            f"to itself takes {show(quiet)} without, {show(loud)} with; a client that connects has an answer within "
            f"{slowest:.2f} s ({NEWCOMERS_WAIT:g} wanted). The hub works for {worked / elapsed:.2f} of the time, and "
            f"the hostile processes for {spent / elapsed:.2f}",
            flush=True,
        )
        return not lost and beside >= FLOOR * alone and slowest <= NEWCOMERS_WAIT


def main() -> int:
    print(f"python {' '.join(sys.argv)}")
    if os.getuid() != 0:
        print("hostile: needs root, to be three users")
        return 0
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return in_a_session(run)


def in_a_session(run: Callable[[], int]) -> int:
    """Run something in a session of its own, which a child of a shell may not begin; its exit status."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    end_with_parent(signal.SIGTERM)
    apart(URGENT)
    sys.exit(run())


def run() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    results = [measure(False) for _ in range(rounds)]
    share = statistics.median(share for share, _ in results)
    print("with descriptors for all of its connections:")
    results.append(measure(True))
    at_leisure = measure_at_leisure()
    fine = at_leisure and min(share, results[-1][0]) >= FLOOR and all(well for _, well in results)
    print(
        f"hostile: {share:.2f} of the rate without it, median of {rounds} hubs, and {results[-1][0]:.2f} where it has "
        f"all of its connections (at least {FLOOR} is wanted)"
    )
    wanted = "that rate, nothing lost, one line in the log for each kind of violation, and an answer to each newcomer"
    print("fine" if fine else f"NOT FINE: {wanted}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
