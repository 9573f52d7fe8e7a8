"""Measurement of Python clients as users write them: one process publishes in a loop, others iterate over messages.

    python -m sbuslib.bench.python_clients ROLE KIND ADDRESS COUNT SIZE RECEIVERS

A process prints ``ready``, waits for a line on standard input, does its work, and prints a line of JSON. Times are
those of ``CLOCK_MONOTONIC``, which is the same for all processes of a machine.
"""

from __future__ import annotations

import asyncio
import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeAlias

from ..clients.endpoint import Endpoint
from ..errors import StateError
from .process import cpu_seconds
from .results import Run

Publish: TypeAlias = Callable[[str, int, bytes, int], None]
"""A publisher. Its arguments are an address, the count of messages, their payload, and the count of receivers."""
Receive: TypeAlias = Callable[[str, int, int], None]
"""A receiver. Its arguments are an address, the count of messages, and the count of receivers."""

KEY = "bench/0000000/00000000"
END = b"end"
MANY = 1_000
"""Messages of one call of ``publish_many``."""
_PATIENCE = 120.0


# ---------------------------------------------------------------------------------------------------
# The director: starts the processes, and makes a Run of their answers


_PROGRAM = (sys.executable, "-m", "sbuslib.bench.python_clients")


def run(
    kind: str,
    address: str,
    pids: Iterable[int],
    count: int,
    *,
    size: int = 100,
    receivers: int = 1,
    program: Sequence[str] = _PROGRAM,
) -> Run:
    """Measure messages from one Python client to others. Each is a process of ``program``, which calls :func:`main`.

    Raises :exc:`~sbuslib.errors.StateError` when a process fails.
    """
    pids = list(pids)
    with ExitStack() as stack:

        def start(role: str) -> subprocess.Popen[str]:
            command = [*program, role, kind, address, str(count), str(size), str(receivers)]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            stack.callback(_end, process)
            return process

        receiver, publisher = start("receive"), start("publish")
        for process in (receiver, publisher):
            _hear(process)
        before = cpu_seconds(pids)
        for process in (receiver, publisher):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        began = json.loads(_hear(publisher))["began"]
        result = json.loads(_hear(receiver))
        used = cpu_seconds(pids) - before
    return Run(
        messages=count,
        deliveries=count * receivers,
        received=result["received"],
        lost=count * receivers - result["received"],
        seconds=result["ended"] - began,
        cpu=used,
    )


def _hear(process: subprocess.Popen[str]) -> str:
    """Read the next line that a process prints."""
    assert process.stdout is not None
    assert process.stderr is not None
    poll = select.poll()  # select(2) knows no descriptor above 1,023, and this process may have very many
    poll.register(process.stdout, select.POLLIN)
    if not poll.poll(_PATIENCE * 1_000):
        raise StateError(f"a client said nothing for {_PATIENCE:.0f} s")
    line = process.stdout.readline()
    if not line:
        process.wait()
        raise StateError(process.stderr.read().strip().rpartition("\n")[2] or "a client ended")
    return line


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


# ---------------------------------------------------------------------------------------------------
# Common functions of publishers and receivers


def report_ready() -> None:
    print("ready", flush=True)


def await_start() -> None:
    sys.stdin.readline()


def report_begun() -> None:
    """Print the time, as publishing begins."""
    print(json.dumps({"began": time.monotonic()}), flush=True)


def report_ended(received: int) -> None:
    print(json.dumps({"received": received, "ended": time.monotonic()}), flush=True)


# ---------------------------------------------------------------------------------------------------
# sbuslib


def _publish(client: Endpoint, count: int, payload: bytes) -> None:
    key = KEY.encode()
    with client:
        report_ready()
        await_start()
        report_begun()
        for _ in range(count):
            client.publish(key, payload)
        client.publish(key, END)
        client.sync()


def _receive(client: Endpoint) -> None:
    received = 0
    with client:
        client.subscribe(KEY.encode())
        report_ready()
        for message in client:
            if message.payload == END:
                break
            received += 1
    report_ended(received)


def _client(kind: str, address: str) -> Endpoint:
    if kind == "gevent":
        from ..client import Client
    else:
        from ..blocking import Client  # type: ignore[assignment]
    return Client(address)


def publish_aio(address: str, count: int, payload: bytes, receivers: int) -> None:
    from ..aio import Client

    async def work() -> None:
        key = KEY.encode()
        async with Client(address) as client:
            report_ready()
            await_start()
            report_begun()
            for _ in range(count):
                await client.publish(key, payload)
            await client.publish(key, END)
            await client.sync()

    asyncio.run(work())


def receive_aio(address: str, count: int, receivers: int) -> None:
    from ..aio import Client

    async def work() -> None:
        received = 0
        async with Client(address, soft="block") as client:
            await client.subscribe(KEY.encode())
            report_ready()
            async for message in client:
                if message.payload == END:
                    break
                received += 1
        report_ended(received)

    asyncio.run(work())


def publish_many(address: str, count: int, payload: bytes, receivers: int) -> None:
    from ..blocking import Client

    pairs = [(KEY.encode(), payload)] * MANY
    with Client(address) as client:
        report_ready()
        await_start()
        report_begun()
        for remaining in range(count, 0, -MANY):
            client.publish_many(pairs[:remaining])
        client.publish(KEY.encode(), END)
        client.sync()


def receive_many(address: str, count: int, receivers: int) -> None:
    from ..blocking import Client

    received = 0
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(address, soft="block")) for _ in range(receivers)]
        for client in clients:
            client.subscribe(KEY.encode())
        report_ready()
        poll = select.poll()
        by_fd = {client.socket.fileno(): client for client in clients}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        while by_fd:
            for fd, _ in poll.poll():
                messages = by_fd[fd].receive_many()
                received += len(messages)
                if messages[-1].payload == END:
                    received -= 1
                    poll.unregister(fd)
                    del by_fd[fd]
    report_ended(received)


# ---------------------------------------------------------------------------------------------------

_PUBLISH: dict[str, Publish] = {
    "gevent": lambda address, count, payload, _: _publish(_client("gevent", address), count, payload),
    "blocking": lambda address, count, payload, _: _publish(_client("blocking", address), count, payload),
    "aio": publish_aio,
    "many": publish_many,
}
_RECEIVE: dict[str, Receive] = {
    "gevent": lambda address, *_: _receive(_client("gevent", address)),
    "blocking": lambda address, *_: _receive(_client("blocking", address)),
    "aio": receive_aio,
    "many": receive_many,
}


def main(publish: Mapping[str, Publish] = _PUBLISH, receive: Mapping[str, Receive] = _RECEIVE) -> None:
    """Run one of the processes. ``publish`` and ``receive`` have the function for each kind of client."""
    role, kind, address, count, size, receivers = sys.argv[1:]
    if role == "publish":
        publish[kind](address, int(count), b"x" * int(size), int(receivers))
    else:
        receive[kind](address, int(count), int(receivers))


if __name__ == "__main__":
    main()
