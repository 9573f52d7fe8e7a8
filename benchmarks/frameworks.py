"""What Socket.IO, Channels and Celery cost on this bus and on Redis: CPU of all processes, and memory.

Run ``python benchmarks/frameworks.py [socketio|channels|celery|memory ...] [--rounds N]``; without a name, all. The two
sides take turns, and what is compared is CPU time, so other work on the machine matters little. What is not installed
is left out: ``pip install '.[socketio,channels,celery]' channels_redis redis``, and ``apt-get install redis-server``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sbuslib.bench.process import cpu_seconds

PATIENCE: Final = 60.0
EMITS: Final = 5_000
SENDS: Final = 1_000
TASKS: Final = 1_500
PAUSE: Final = 0.002
"""Seconds between emits, twenty at a time: an application does not emit at full speed."""
QUIET: Final = 10.0
"""Seconds without a message after which a receiver takes the rest for lost."""

TASKS_MODULE: Final = """\
import os, time
from celery import Celery
try:
    import sbuslib.integrations.kombu
except ImportError:
    pass
app = Celery("tasks", broker=os.environ["BROKER"])
app.conf.update(worker_prefetch_multiplier=8, task_ignore_result=True, worker_redirect_stdouts=False)
done = 0
@app.task(acks_late=True)
def add(x, y, last):
    global done
    done += 1
    if last:
        print("done", done, flush=True)
@app.task(acks_late=True)
def hold():
    print("holds", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.05)
"""


class Side:
    """What carries the messages: its processes, and its URL for each framework."""

    def __init__(self, name: str, pids: list[int], urls: dict[str, str]) -> None:
        self.name = name
        self.pids = pids
        self.urls = urls


@contextmanager
def sbus(*options: str) -> Iterator[Side]:
    """``sbus broker``: a hub, and the service of queues in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/bus"
        where = ["--store", f"{folder}/kept"] if "--memory" not in options else []
        command = [sys.executable, "-m", "sbuslib", "broker", "-a", address, "--limit", "1d", *where, *options]
        with program(command, b"listening", stderr=True) as pid:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            url = f"sbus://{address}"
            yield Side("sbus", [pid, *map(int, children)], dict.fromkeys(("socketio", "channels", "celery"), url))


@contextmanager
def redis(*options: str) -> Iterator[Side]:
    """A Redis server at a Unix socket, which is its quickest."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/redis"
        command = ["redis-server", "--port", "0", "--unixsocket", path, "--dir", folder, "--save", "", *options]
        with program(command, b"ready to accept") as pid:
            urls = {"socketio": f"unix://{path}", "channels": f"unix://{path}", "celery": f"redis+socket://{path}"}
            yield Side("redis", [pid], urls)


@contextmanager
def program(command: list[str], until: bytes, *, stderr: bool = False) -> Iterator[int]:
    """A process that has said that it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT if stderr else None)
    assert process.stdout is not None
    try:
        while until not in (line := process.stdout.readline()):
            if not line:
                sys.exit(f"{command[0]} ended")
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield process.pid
    finally:
        process.terminate()
        process.wait(PATIENCE)


class Part:
    """A process of this file that plays one part: it says a line, and is told a line."""

    def __init__(self, stack: ExitStack, *words: str, command: list[str] | None = None, **options: Any) -> None:
        self._process = subprocess.Popen(
            command or [sys.executable, __file__, "--part", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        self.pid = self._process.pid
        stack.callback(self._end)

    def _end(self) -> None:
        self._process.terminate()  # a worker acknowledges its last task
        self._process.wait(PATIENCE)

    def hear(self, word: str) -> str:
        """The rest of the next line that begins so."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise SystemExit(f"a part ended before it said {word}")

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()


def carried(side: Side, framework: str, kind: str, count: int) -> tuple[float, int]:
    """CPU microseconds of all for each of so many messages from one process to three; how many of three times as many
    did not come."""
    with ExitStack() as stack:
        url = side.urls[framework]
        receivers = [Part(stack, f"{framework}-receive", kind, url, f"{count}") for _ in range(3)]
        sender = Part(stack, f"{framework}-send", kind, url, f"{count}")
        for receiver in receivers:
            receiver.hear("ready")
        pids = [*side.pids, sender.pid, *(receiver.pid for receiver in receivers)]
        before = cpu_seconds(pids)
        sender.tell("go")
        sender.hear("sent")
        came = [int(receiver.hear("came")) for receiver in receivers]
        return (cpu_seconds(pids) - before) / count * 1e6, 3 * count - sum(came)


# -- Socket.IO --------------------------------------------------------------------------------------


def socketio_manager(kind: str, url: str, **options: Any) -> Any:
    if kind == "redis":
        from socketio import RedisManager

        return RedisManager(url, **options)
    from sbuslib.integrations.socketio import SbusManager

    return SbusManager(url, **options)


def socketio_receive(kind: str, url: str, count: str) -> None:
    from socketio import Server

    manager = socketio_manager(kind, url)
    counter = Counter(int(count))
    manager._handle_emit = lambda message: counter.take(message["event"] == "warm")
    server = Server(client_manager=manager, async_mode="threading")
    server.manager_initialized = True
    manager.initialize()
    counter.tell()


def socketio_send(kind: str, url: str, count: str) -> None:
    manager = socketio_manager(kind, url, write_only=True)
    emit = {"text": "x" * 100}
    warm_until_told(lambda: manager.emit("warm", emit))
    for number in range(int(count)):
        manager.emit("news", emit)
        if number % 20 == 0:
            time.sleep(PAUSE)
    finish("sent")


class Counter:
    """Counts what comes in another thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._came = 0
        self._ready = threading.Event()

    def take(self, is_warm: bool) -> None:
        if is_warm:
            self._ready.set()
            return
        self._came += 1

    def tell(self) -> None:
        """Say when the first has come, and when all have, or no more do."""
        self._ready.wait(PATIENCE)
        print("ready", flush=True)
        before, since = 0, time.monotonic()
        while self._came < self._most and (not self._came or time.monotonic() < since + QUIET):
            time.sleep(0.05)
            if self._came > before:
                before, since = self._came, time.monotonic()
        finish(f"came {self._came}")


def warm_until_told(warm: Callable[[], object]) -> None:
    """Send something now and then, until all are there."""
    told = threading.Thread(target=sys.stdin.readline, daemon=True)
    told.start()
    while told.is_alive():
        warm()
        told.join(0.1)


def finish(word: str) -> None:
    """Say it, and stay until this process is ended: its CPU time is still to be read."""
    print(word, flush=True)
    time.sleep(2 * PATIENCE)


# -- Channels ---------------------------------------------------------------------------------------


def channel_layer(kind: str, url: str) -> Any:
    if kind == "core":
        from channels_redis.core import RedisChannelLayer

        return RedisChannelLayer(hosts=[url], capacity=100_000)
    if kind == "pubsub":
        from channels_redis.pubsub import RedisPubSubChannelLayer

        return RedisPubSubChannelLayer(hosts=[url])
    from sbuslib.integrations.channels import SbusChannelLayer

    return SbusChannelLayer(url, capacity=100_000)


def channels_receive(kind: str, url: str, count: str) -> None:
    async def receive() -> None:
        layer, came = channel_layer(kind, url), 0
        channel = await layer.new_channel()
        await layer.group_add("room", channel)
        while (await layer.receive(channel))["type"] == "warm":
            if not came:
                print("ready", flush=True)
                came = 1
        while came < int(count):
            try:
                async with asyncio.timeout(QUIET):
                    await layer.receive(channel)
            except TimeoutError:
                break
            came += 1
        finish(f"came {came}")

    asyncio.run(receive())


def channels_send(kind: str, url: str, count: str) -> None:
    async def send() -> None:
        layer = channel_layer(kind, url)
        told = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
        while not told.done():
            await layer.group_send("room", {"type": "warm"})
            await asyncio.wait([told], timeout=0.1)
        for _ in range(int(count)):
            await layer.group_send("room", {"type": "news", "text": "x" * 100})
        finish("sent")

    asyncio.run(send())


# -- Celery -----------------------------------------------------------------------------------------


def worked_off(side: Side) -> tuple[float, int]:
    """CPU microseconds of the worker and of what keeps the tasks, for each task; how many were not done."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        Path(folder, "tasks.py").write_text(TASKS_MODULE)
        environment = os.environ | {"BROKER": side.urls["celery"]}
        options: dict[str, Any] = {"cwd": folder, "env": environment, "stderr": subprocess.DEVNULL}
        command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-P", "solo", "--without-mingle"]
        worker = Part(stack, command=[*command, "--without-gossip", "--without-heartbeat", "-l", "WARNING"], **options)

        def submit(text: str) -> None:
            command = [sys.executable, "-c", f"from tasks import add, hold; {text}"]
            subprocess.run(command, cwd=folder, env=environment, check=True)

        # All wait before the first is worked on: what submitting costs is not in it.
        submit("hold.delay()")
        worker.hear("holds")
        submit(f"[add.delay(n, n, n == {TASKS - 1}) for n in range({TASKS})]")
        before = cpu_seconds([*side.pids, worker.pid])
        Path(folder, "go").touch()
        done = int(worker.hear("done"))
        return (cpu_seconds([*side.pids, worker.pid]) - before) / TASKS * 1e6, TASKS - done


# -- the comparisons --------------------------------------------------------------------------------


def compare(title: str, rounds: int, sides: dict[str, Callable[[], tuple[float, int]]]) -> None:
    """Measure the sides in turn, and print what they cost beside the first."""
    costs: dict[str, list[float]] = {name: [] for name in sides}
    lost = dict.fromkeys(sides, 0)
    for _ in range(rounds):
        for name, measure in sides.items():
            cost, missing = measure()
            costs[name].append(cost)
            lost[name] += missing
    first = next(iter(costs))
    for name, all_costs in costs.items():
        ratios = [theirs / ours for theirs, ours in zip(all_costs, costs[first], strict=True)]
        times = "" if name == first else f", {statistics.median(ratios):.2f} times as much"
        times += f" (of {rounds} pairs {min(ratios):.2f} to {max(ratios):.2f})" if name != first else ""
        text = f"{statistics.median(all_costs):,.0f} us ({min(all_costs):,.0f}-{max(all_costs):,.0f})"
        print(f"{title}: {name}: {text}{times}; {lost[name]:,} did not come", flush=True)


def run_socketio(rounds: int) -> None:
    if not installed("socketio", "redis"):
        return
    with sbus("--memory") as ours, redis() as theirs:
        sides = {side.name: lambda side=side: carried(side, "socketio", side.name, EMITS) for side in (ours, theirs)}
        compare("Socket.IO, an emit to three other servers", rounds, sides)


def run_channels(rounds: int) -> None:
    if not installed("channels", "channels_redis", "redis", "sbuslib.integrations.channels"):
        return
    with sbus("--memory") as ours, redis() as theirs:
        kinds = (("sbus", ours), ("core", theirs), ("pubsub", theirs))
        sides = {
            f"{side.name} {kind}" if side is theirs else kind: lambda kind=kind, side=side: carried(
                side, "channels", kind, SENDS
            )
            for kind, side in kinds
        }
        compare("Channels, a group_send to three other processes", rounds, sides)


def run_celery(rounds: int) -> None:
    if not installed("celery", "redis", "sbuslib.integrations.kombu"):
        return
    with sbus("--memory") as ours, redis() as theirs:
        sides = {side.name: lambda side=side: worked_off(side) for side in (ours, theirs)}
        compare("Celery, a task in memory", rounds, sides)
    with sbus() as ours, redis("--appendonly", "yes", "--appendfsync", "always") as theirs:
        sides = {side.name: lambda side=side: worked_off(side) for side in (ours, theirs)}
        compare("Celery, a task on disk when it is accepted", rounds, sides)


def run_memory(_: int) -> None:
    """Memory that is no other process's as well, as it is divided by the kernel, of all processes at the start."""
    with sbus("--memory") as ours, redis() as theirs:
        for side in (ours, theirs):
            shares = [share_of(pid) / 1e6 for pid in side.pids]
            each = ", of its processes " + " and ".join(f"{one:.0f}" for one in shares) if len(shares) > 1 else ""
            print(f"memory: {side.name}: {sum(shares):.0f} MB{each}")


def share_of(pid: int) -> int:
    """Bytes of memory of a process; what several share is divided among them."""
    (line,) = [one for one in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if one.startswith("Pss:")]
    return int(line.split()[1]) * 1_024


def installed(*modules: str) -> bool:
    missing = [name for name in modules if find_spec(name) is None]
    missing += [] if shutil.which("redis-server") else ["redis-server"]
    if missing:
        print(f"left out: {', '.join(missing)} missing")
    return not missing


RUNS: Final = {"socketio": run_socketio, "channels": run_channels, "celery": run_celery, "memory": run_memory}
PARTS: Final = {
    "socketio-receive": socketio_receive,
    "socketio-send": socketio_send,
    "channels-receive": channels_receive,
    "channels-send": channels_send,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        PARTS[sys.argv[2]](*sys.argv[3:])
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*RUNS, []], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for name in arguments.names or RUNS:
        RUNS[name](arguments.rounds)
