"""What patterns cost, beside the bare bus and beside other systems, in one run.

Run ``python benchmarks/patterns.py [PATTERN ...]``, all without names. A pattern is a function in ``PATTERNS``. All
that is compared is measured in turns, and told as medians of the rounds. Other systems are left out where they are not
installed.

``request``: 64 questions in flight on one client, and one at a time, of 32 bytes and answered with the same. Beside it
are a bare loop (one client publishes, another receives) and a bare round trip over the same hub, nats-py, and pyzmq's
DEALER and ROUTER: once with 64 callers that each wait for their own answer, as here, and once as a single loop that
sends and receives by itself, with nobody that waits.
"""

from __future__ import annotations

import asyncio
import importlib.util
import multiprocessing
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent

from sbuslib import Client, aio, blocking

ROUNDS = 5
FLIGHT = 64
PAYLOAD = b"x" * 32
PORT = 14_222
Figures = dict[str, float]
"""What one way does in a second."""


@contextmanager
def process(target: Callable[..., None], *arguments: object) -> Iterator[None]:
    """Another process, which says when it is ready."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=target, args=(there, *arguments), daemon=True)
    child.start()
    here.recv()
    try:
        yield
    finally:
        child.terminate()
        child.join()


@contextmanager
def hub(address: str) -> Iterator[None]:
    code = "import sys, sbuslib; sbuslib.Hub(sys.argv[1]).serve_forever()"
    with subprocess.Popen([sys.executable, "-c", code, address]) as served:
        try:
            Client(address, reconnect=True).close()
            yield
        finally:
            served.terminate()


def rate(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


# -- request ------------------------------------------------------------------------------------------------


def receive(ready: Any, address: str, count: int) -> None:
    with Client(address) as client:
        client.subscribe(b"bare")
        ready.send(None)
        messages = iter(client)
        next(messages)
        ready.send(rate(count, lambda: [next(messages) for _ in range(count)]))


def bare(address: str, count: int) -> float:
    """Messages a second from one client to another, a packet each."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=receive, args=(there, address, count), daemon=True)
    child.start()
    here.recv()
    with Client(address) as client:
        for _ in range(count + 1):
            client.publish(b"bare", PAYLOAD)
        result: float = here.recv()
    child.join()
    return result


def echo(ready: Any, address: str) -> None:
    with Client(address) as client:
        client.subscribe(b"to")
        ready.send(None)
        for message in client:
            client.publish(b"fro", message.payload)


def round_trips(address: str, count: int) -> float:
    """There and back by hand, over the same hub."""

    def trips() -> None:
        for _ in range(count):
            client.publish(b"to", PAYLOAD)
            client.receive(timeout=10)

    with process(echo, address), Client(address) as client:
        client.subscribe(b"fro")
        client.publish(b"to", PAYLOAD)
        client.receive(timeout=10)
        return rate(count, trips)


def serve(ready: Any, address: str) -> None:
    with Client(address) as client, client.serve(b"serve", lambda question: question.payload):
        ready.send(None)
        gevent.sleep(3600)


def ask(kind: Any, address: str, count: int, flight: int) -> float:
    """Questions a second, by callers of one client that blocks."""

    def caller() -> None:
        for _ in range(count // flight):
            client.request(b"serve", PAYLOAD)

    with process(serve, address), kind(address) as client:
        client.request(b"serve")
        if flight == 1:
            return rate(count, caller)

        def callers() -> None:
            for running in [_spawn(kind, caller) for _ in range(flight)]:
                running.join()

        return rate(count, callers)


def _spawn(kind: Any, function: Callable[[], None]) -> Any:
    if kind is Client:
        return gevent.spawn(function)
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def ask_with_asyncio(address: str, count: int, flight: int) -> float:
    async def main() -> float:
        async with aio.Client(address) as client:

            async def caller() -> None:
                for _ in range(count // flight):
                    await client.request(b"serve", PAYLOAD)

            await client.request(b"serve")
            began = time.perf_counter()
            await asyncio.gather(*(caller() for _ in range(flight)))
            return count / (time.perf_counter() - began)

    with process(serve, address):
        return asyncio.run(main())


def nats_server(ready: Any) -> None:
    import nats

    async def main() -> None:
        client = await nats.connect(f"nats://127.0.0.1:{PORT}")

        async def answer(message: Any) -> None:
            await message.respond(message.data)

        await client.subscribe("serve", cb=answer)
        await client.flush()
        ready.send(None)
        await asyncio.Event().wait()

    asyncio.run(main())


def ask_nats(count: int, flight: int) -> float:
    import nats

    async def main() -> float:
        client = await nats.connect(f"nats://127.0.0.1:{PORT}")

        async def caller() -> None:
            for _ in range(count // flight):
                await client.request("serve", PAYLOAD, timeout=10)

        await client.request("serve", PAYLOAD)
        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(flight)))
        result = count / (time.perf_counter() - began)
        await client.close()
        return result

    command = ["nats-server", "-a", "127.0.0.1", "-p", str(PORT)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as broker:
        try:
            with process(nats_server):
                return asyncio.run(main())
        finally:
            broker.terminate()


def zmq_router(ready: Any, address: str) -> None:
    import zmq

    router = zmq.Context().socket(zmq.ROUTER)
    router.bind(address)
    ready.send(None)
    while True:
        router.send_multipart(router.recv_multipart())


def ask_zmq_loop(address: str, count: int, flight: int) -> float:
    """One loop that keeps so many questions in flight; nobody waits for an answer of their own."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(address)

        def loop() -> None:
            sent = done = 0
            while done < count:
                while sent - done < flight and sent < count:
                    dealer.send_multipart([struct.pack("<Q", sent), PAYLOAD])
                    sent += 1
                dealer.recv_multipart()
                done += 1

        return rate(count, loop)


def ask_zmq_callers(address: str, count: int, flight: int) -> float:
    """So many tasks that each wait for the answer with their number."""
    import zmq
    import zmq.asyncio

    async def main() -> float:
        loop = asyncio.get_running_loop()
        waiting: dict[bytes, asyncio.Future[bytes]] = {}
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.connect(address)

            async def read() -> None:
                while True:
                    number, payload = await dealer.recv_multipart()
                    waiting.pop(number).set_result(payload)

            async def caller(first: int) -> None:
                for turn in range(count // flight):
                    number = struct.pack("<Q", first + turn)
                    waiting[number] = loop.create_future()
                    await dealer.send_multipart([number, PAYLOAD])
                    await waiting[number]

            reader = asyncio.ensure_future(read())
            began = time.perf_counter()
            await asyncio.gather(*(caller(first * count) for first in range(flight)))
            result = count / (time.perf_counter() - began)
            reader.cancel()
            return result

    return asyncio.run(main())


def with_router(ask: Callable[[str, int, int], float], folder: str, count: int, flight: int) -> float:
    address = f"ipc://{folder}/zmq"
    with process(zmq_router, address):
        return ask(address, count, flight)


def request(folder: str) -> None:
    many, few = FLIGHT * 250, 2_000
    address = os.path.join(folder, "bus")
    ways: dict[str, Callable[[], float]] = {
        "bare loop, messages": lambda: bare(address, 100_000),
        "bare round trip": lambda: round_trips(address, few),
        "request, 64 greenlets": lambda: ask(Client, address, many, FLIGHT),
        "request, 64 tasks": lambda: ask_with_asyncio(address, many, FLIGHT),
        "request, 64 threads": lambda: ask(blocking.Client, address, many // 4, FLIGHT),
        "request, one at a time": lambda: ask(Client, address, few, 1),
        "request, one at a time, threads": lambda: ask(blocking.Client, address, few, 1),
    }
    if importlib.util.find_spec("nats") and shutil.which("nats-server"):
        ways["nats-py, 64 tasks"] = lambda: ask_nats(many // 4, FLIGHT)
        ways["nats-py, one at a time"] = lambda: ask_nats(few, 1)
    if importlib.util.find_spec("zmq"):
        ways["pyzmq, 64 tasks"] = lambda: with_router(ask_zmq_callers, folder, many // 2, FLIGHT)
        ways["pyzmq, a loop with 64"] = lambda: with_router(ask_zmq_loop, folder, many, FLIGHT)
        ways["pyzmq, one at a time"] = lambda: with_router(ask_zmq_loop, folder, few, 1)
    with hub(address):
        rounds: list[Figures] = [{name: way() for name, way in ways.items()} for _ in range(ROUNDS)]
    show(rounds)
    told = {name: [each[name] for each in rounds] for name in ways}
    ratio("64 in flight: messages of greenlets / bare loop", told, "request, 64 greenlets", ["bare loop, messages"], 2)
    ratio("64 in flight: messages of tasks / bare loop", told, "request, 64 tasks", ["bare loop, messages"], 2)
    others = [name for name in ways if name in ("nats-py, 64 tasks", "pyzmq, 64 tasks")]
    ratio("64 in flight: greenlets / the best of 64 callers", told, "request, 64 greenlets", others)
    ratio("64 in flight: tasks / the best of 64 callers", told, "request, 64 tasks", others)
    ratio("64 in flight: greenlets / pyzmq's loop", told, "request, 64 greenlets", ["pyzmq, a loop with 64"])
    ratio("one at a time: its time / a bare round trip's", told, "bare round trip", ["request, one at a time"])


def show(rounds: list[Figures]) -> None:
    """The medians of all rounds, and from where to where they go."""
    for name in rounds[0]:
        values = sorted(each[name] for each in rounds)
        print(f"{name:<34} {statistics.median(values):>10,.0f}/s   ({values[0]:,.0f} to {values[-1]:,.0f})")


def ratio(what: str, told: dict[str, list[float]], one: str, others: list[str], times: float = 1) -> None:
    """The median of the ratios of each round, to the best of some others."""
    if others and all(name in told for name in others):
        best = [max(values) for values in zip(*(told[name] for name in others), strict=True)]
        ratios = [times * value / other for value, other in zip(told[one], best, strict=True)]
        print(f"{what:<50} {statistics.median(ratios):.2f}")


PATTERNS: dict[str, Callable[[str], None]] = {"request": request}


def main() -> None:
    for name in sys.argv[1:] or PATTERNS:
        with tempfile.TemporaryDirectory(prefix="sbus-") as folder:
            PATTERNS[name](folder)


if __name__ == "__main__":
    main()
