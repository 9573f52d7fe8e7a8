"""What Python programs feel of each pattern: CPU of all processes for a message, on this bus and on others.

Run ``python benchmarks/patterns.py [PATTERN ...] [--rounds N]``; without a name, all. ``request`` goes one at a time,
``submit`` waits until each job is accepted, and ``take`` says of each that it is done. The others are used as their
pages show: redis-py without pipelines, its queue a list that is moved from (``BLMOVE``, ``LREM``), that of NATS
JetStream in memory. ZeroMQ and ``multiprocessing.connection`` join two programs, with nothing between them that could
keep, share out or forbid. The sides take turns. What is missing is left out: ``pip install redis nats-py pyzmq``, and
``apt-get install redis-server nats-server``.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing.connection
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from typing import Any, Final

from frameworks import PATIENCE, Part, Side, program, redis, sbus

from sbuslib.bench.process import cpu_seconds

KEY, DATA = "bench/key", b"x" * 100
PREFETCH: Final = 64
"""Jobs that a worker takes at once."""


def say(word: str) -> None:
    print(word, flush=True)


def go() -> None:
    say("ready")
    sys.stdin.readline()


class Waiting:
    """Called with each message: says so after the last."""

    def __init__(self, count: int) -> None:
        self._left = count

    def __call__(self, *_: object) -> None:
        self._left -= 1
        if not self._left:
            say("done")

    async def awaited(self, *_: object) -> None:
        self()


class Ours:
    """``sbuslib.blocking``, and the client for gevent."""

    def __init__(self, address: str) -> None:
        from sbuslib.blocking import Client

        self.client: Any = Client(address)

    def publish(self, count: int) -> None:
        go()
        for _ in range(count):
            self.client.publish(KEY, DATA)

    def receive(self, count: int) -> None:
        messages = self.client.subscribe(KEY)
        say("ready")
        for _ in range(count):
            messages.receive()

    def on_message(self, count: int) -> None:
        self.client.subscribe(KEY, on_message=Waiting(count))
        self.stay()

    def stay(self) -> None:
        say("ready")
        time.sleep(PATIENCE)

    def request(self, count: int) -> None:
        go()
        for _ in range(count):
            self.client.request(KEY, DATA)

    def serve(self, _: int) -> None:
        self.client.serve(KEY, lambda question: question.payload)
        self.stay()

    def submit(self, count: int) -> None:
        queue = self.client.queue("jobs")
        go()
        for _ in range(count):
            queue.submit(KEY, DATA)

    def take(self, count: int) -> None:
        go()
        with self.client.queue("jobs").take(prefetch=PREFETCH) as worker:
            for _ in range(count):
                worker.receive().done()


class Gevent(Ours):
    def __init__(self, address: str) -> None:
        from sbuslib import Client

        self.client = Client(address)

    def stay(self) -> None:
        import gevent

        say("ready")
        gevent.sleep(PATIENCE)


class Aio:
    def __init__(self, address: str) -> None:
        from sbuslib.aio import Client

        self.client: Any = Client(address)

    async def publish(self, count: int) -> None:
        client = await self.client
        go()
        for _ in range(count):
            await client.publish(KEY, DATA)

    async def receive(self, count: int) -> None:
        messages = await (await self.client).subscribe(KEY)
        say("ready")
        for _ in range(count):
            await messages.receive()

    async def on_message(self, count: int) -> None:
        await (await self.client).subscribe(KEY, on_message=Waiting(count))
        say("ready")
        await asyncio.sleep(PATIENCE)

    async def request(self, count: int) -> None:
        client = await self.client
        go()
        for _ in range(count):
            await client.request(KEY, DATA)

    async def serve(self, _: int) -> None:
        await (await self.client).serve(KEY, lambda question: question.payload)
        say("ready")
        await asyncio.sleep(PATIENCE)

    async def submit(self, count: int) -> None:
        queue = (await self.client).queue("jobs")
        go()
        for _ in range(count):
            await queue.submit(KEY, DATA)

    async def take(self, count: int) -> None:
        queue = (await self.client).queue("jobs")
        go()
        async with queue.take(prefetch=PREFETCH) as worker:
            for _ in range(count):
                await (await worker.receive()).done()


class Redis:
    def __init__(self, address: str) -> None:
        from redis import Redis

        self.client: Any = Redis(unix_socket_path=address)

    def publish(self, count: int) -> None:
        go()
        for _ in range(count):
            self.client.publish(KEY, DATA)

    def receive(self, count: int) -> None:
        messages = self.client.pubsub()
        messages.subscribe(KEY)
        messages.get_message(timeout=PATIENCE)
        say("ready")
        for _ in range(count):
            next(messages.listen())

    def on_message(self, count: int) -> None:
        messages = self.client.pubsub()
        messages.subscribe(**{KEY: Waiting(count)})
        messages.get_message(timeout=PATIENCE)
        messages.run_in_thread(sleep_time=PATIENCE)
        say("ready")
        time.sleep(PATIENCE)

    def request(self, count: int) -> None:
        go()
        for _ in range(count):
            self.client.lpush("questions", DATA)
            self.client.brpop(["answers"])

    def serve(self, _: int) -> None:
        say("ready")
        while True:
            self.client.lpush("answers", self.client.brpop(["questions"])[1])

    def submit(self, count: int) -> None:
        go()
        for _ in range(count):
            self.client.lpush("jobs", DATA)

    def take(self, count: int) -> None:
        go()
        for _ in range(count):
            self.client.lrem("held", 1, self.client.blmove("jobs", "held", PATIENCE, "RIGHT", "LEFT"))


class Nats:
    def __init__(self, address: str) -> None:
        import nats

        self.client: Any = nats.connect(address)

    async def publish(self, count: int) -> None:
        client = await self.client
        go()
        for _ in range(count):
            await client.publish(KEY, DATA)
        await client.flush()

    async def receive(self, count: int) -> None:
        client = await self.client
        messages = await client.subscribe(KEY)
        await client.flush()
        say("ready")
        async for _ in messages.messages:
            count -= 1
            if not count:
                return

    async def on_message(self, count: int) -> None:
        client = await self.client
        await client.subscribe(KEY, cb=Waiting(count).awaited)
        await client.flush()
        say("ready")
        await asyncio.sleep(PATIENCE)

    async def request(self, count: int) -> None:
        client = await self.client
        go()
        for _ in range(count):
            await client.request(KEY, DATA, PATIENCE)

    async def serve(self, _: int) -> None:
        async def answer(message: Any) -> None:
            await message.respond(message.data)

        client = await self.client
        await client.subscribe(KEY, cb=answer)
        await client.flush()
        say("ready")
        await asyncio.sleep(PATIENCE)

    async def submit(self, count: int) -> None:
        stream = (await self.client).jetstream()
        await stream.add_stream(name="jobs", subjects=["jobs"], storage="memory", retention="workqueue")
        go()
        for _ in range(count):
            await stream.publish("jobs", DATA)

    async def take(self, count: int) -> None:
        jobs = await (await self.client).jetstream().pull_subscribe("jobs", "workers")
        go()
        while count > 0:
            for job in await jobs.fetch(min(PREFETCH, count)):
                await job.ack()
                count -= 1


class ZeroMq:
    def __init__(self, address: str) -> None:
        import zmq

        self.zmq, self.address = zmq, address

    def _socket(self, kind: str, does: str) -> Any:
        made: Any = self.zmq.Context.instance().socket(getattr(self.zmq, kind))
        made.sndhwm = made.rcvhwm = 0
        getattr(made, does)(f"ipc://{self.address}")
        return made

    def publish(self, count: int) -> None:
        sock = self._socket("XPUB", "connect")
        sock.recv()  # the subscription
        go()
        for _ in range(count):
            sock.send_multipart([KEY.encode(), DATA])

    def receive(self, count: int) -> None:
        sock = self._socket("SUB", "bind")
        sock.subscribe(KEY)
        say("ready")
        for _ in range(count):
            sock.recv_multipart()

    def request(self, count: int) -> None:
        sock = self._socket("REQ", "connect")
        go()
        for _ in range(count):
            sock.send(DATA)
            sock.recv()

    def serve(self, _: int) -> None:
        sock = self._socket("REP", "bind")
        say("ready")
        while True:
            sock.send(sock.recv())


class Pipe:
    """``multiprocessing.connection``: one program to one."""

    def __init__(self, address: str) -> None:
        self.address = address

    def publish(self, count: int) -> None:
        with multiprocessing.connection.Client(self.address) as pipe:
            go()
            for _ in range(count):
                pipe.send((KEY, DATA))

    def receive(self, count: int) -> None:
        with multiprocessing.connection.Listener(self.address) as listener:
            say("ready")
            with listener.accept() as pipe:
                for _ in range(count):
                    pipe.recv()

    def request(self, count: int) -> None:
        with multiprocessing.connection.Client(self.address) as pipe:
            go()
            for _ in range(count):
                pipe.send((KEY, DATA))
                pipe.recv()

    def serve(self, _: int) -> None:
        with multiprocessing.connection.Listener(self.address) as listener:
            say("ready")
            with listener.accept() as pipe, suppress(EOFError):
                while True:
                    pipe.send(pipe.recv()[1])


CLIENTS: Final[dict[str, tuple[type[Any], str]]] = {
    "gevent": (Gevent, "sbus"),
    "blocking": (Ours, "sbus"),
    "aio": (Aio, "sbus"),
    "redis-py": (Redis, "redis"),
    "nats-py": (Nats, "nats"),
    "pyzmq": (ZeroMq, "zmq"),
    "multiprocessing": (Pipe, "multiprocessing"),
}
"""Each with the side that carries it."""
STEPS: Final = {
    "receive": ("publish", "receive", 20_000),
    "on_message": ("publish", "on_message", 20_000),
    "request": ("request", "serve", 2_000),
    "submit": ("submit", None, 2_000),
    "take": ("take", None, 2_000),
}
"""Who begins, who is there before, and how many messages."""
PATTERNS: Final = {name: [name] for name in ("receive", "on_message", "request")} | {"queue": ["submit", "take"]}


@contextmanager
def nats() -> Iterator[Side]:
    """A NATS server at loopback."""
    from comparison.broker import find_program, free_port

    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [find_program("nats-server"), "-a", "127.0.0.1", "-p", f"{port}", "-js", "-sd", folder]
        with program(command, b"Server is ready", stderr=True) as pid:
            yield Side("nats", [pid], {"": f"nats://127.0.0.1:{port}"})


def measure(client: str, side: Side, step: str) -> list[float]:
    """CPU microseconds a message: of who begins, of the daemon, and of the other end."""
    first, second, count = STEPS[step]
    address = next(iter(side.urls.values())).rpartition("unix://" if side.name == "redis" else "sbus://")[2]
    with ExitStack() as stack:
        if not side.pids:
            address = f"{stack.enter_context(tempfile.TemporaryDirectory())}/socket"

        def part(role: str) -> Part:
            made = Part(stack, command=[sys.executable, __file__, "--part", client, role, address, f"{count}"])
            made.hear("ready")
            return made

        others = [part(second)] if second else []
        beginner = part(first)
        pids = [[beginner.pid], side.pids, [other.pid for other in others]]
        before = [cpu_seconds(some) for some in pids]
        beginner.tell("go")
        beginner.hear("done")
        if first == "publish":
            others[0].hear("done")
        return [(cpu_seconds(some) - old) / count * 1e6 for some, old in zip(pids, before, strict=True)]


def main(patterns: list[str], rounds: int) -> None:
    with ExitStack() as stack:
        sides = {name: Side(name, [], {"": ""}) for name in ("zmq", "multiprocessing") if find_spec(name)}
        sides["sbus"] = stack.enter_context(sbus("--memory"))
        for name, module, run in ("redis", "redis", redis), ("nats", "nats", nats):
            if find_spec(module) and shutil.which(f"{name}-server", path=f"{os.environ['PATH']}:/usr/sbin"):
                sides[name] = stack.enter_context(run())
        found: dict[tuple[str, str], list[list[float]]] = {}
        for _ in range(rounds):
            for step in (step for pattern in patterns for step in PATTERNS[pattern]):
                for client, (made, carrier) in CLIENTS.items():
                    if carrier in sides and hasattr(made, STEPS[step][1] or step):
                        found.setdefault((step, client), []).append(measure(client, sides[carrier], step))

    print(f"load {os.getloadavg()[0]:.1f}; us of CPU a message: of all = who begins + daemon + other end; of gevent's")
    for (step, client), figures in found.items():
        parts = [statistics.median(each) for each in zip(*figures, strict=True)]
        ratios = [sum(one) / sum(ours) for one, ours in zip(figures, found[step, "gevent"], strict=True)]
        each = " + ".join(f"{one:6.1f}" for one in parts)
        print(f"{step:10} {client:15} {sum(parts):6.1f} = {each}  {statistics.median(ratios):5.2f}")


def run_part(client: str, role: str, address: str, count: str) -> None:
    signal.alarm(int(PATIENCE))
    done = getattr(CLIENTS[client][0](address), role)(int(count))
    if asyncio.iscoroutine(done):
        asyncio.run(done)
    say("done")
    time.sleep(PATIENCE)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        run_part(*sys.argv[2:])
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", choices=[*PATTERNS, []], metavar="PATTERN")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    main(arguments.patterns or [*PATTERNS], arguments.rounds)
