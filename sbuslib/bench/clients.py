"""Python client to Python client, as a user writes them: a process that publishes in a loop, and one that iterates.

    python -m sbuslib.bench.clients ROLE KIND ADDRESS COUNT SIZE RECEIVERS

Each says ``ready`` when it is, waits for a line on standard input, does its work, and ends with a line of JSON. Times
are of ``CLOCK_MONOTONIC``, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from ..clients.endpoint import Endpoint
from ..errors import StateError
from .process import cpu_seconds
from .results import Run

__all__ = ["KINDS", "main", "run"]

KEY = "bench/0000000/00000000"
END = b"end"
HELLO = b"hello"
MANY = 1_000
"""Messages that are given to ``publish_many`` at once."""
PIPELINE = 100
"""Messages in one pipeline of redis-py."""
_PATIENCE = 120.0


# ---------------------------------------------------------------------------------------------------
# The director: starts both, and makes a Run of what they tell


def run(kind: str, address: str, pids: Iterable[int], count: int, *, size: int = 100, receivers: int = 1) -> Run:
    """Messages from one Python client to others. Raises :exc:`~sbuslib.errors.StateError` when one fails."""
    pids = list(pids)
    with ExitStack() as stack:

        def start(role: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", __name__, role, kind, address, str(count), str(size), str(receivers)]
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
        told = json.loads(_hear(receiver))
        used = cpu_seconds(pids) - before
    return Run(
        messages=count,
        deliveries=count * receivers,
        received=told["received"],
        lost=count * receivers - told["received"],
        seconds=told["ended"] - began,
        cpu=used,
    )


def _hear(process: subprocess.Popen[str]) -> str:
    """The next line of one of them."""
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
# What both say


def _ready() -> None:
    print("ready", flush=True)


def _await_word() -> None:
    sys.stdin.readline()


def _begin() -> None:
    """Tell when publishing began, which is now."""
    print(json.dumps({"began": time.monotonic()}), flush=True)


def _ended(received: int) -> None:
    print(json.dumps({"received": received, "ended": time.monotonic()}), flush=True)


# ---------------------------------------------------------------------------------------------------
# sbuslib


def _publish(client: Endpoint, count: int, payload: bytes) -> None:
    key = KEY.encode()
    with client:
        _ready()
        _await_word()
        _begin()
        for _ in range(count):
            client.publish(key, payload)
        client.publish(key, END)
        client.sync()


def _receive(client: Endpoint) -> None:
    received = 0
    with client:
        client.flood_control(soft="block")
        client.subscribe(KEY.encode())
        _ready()
        for message in client:
            if message.payload == END:
                break
            received += 1
    _ended(received)


def publish_gevent(address: str, count: int, payload: bytes, receivers: int) -> None:
    from ..client import Client

    _publish(Client(address), count, payload)


def publish_batch(address: str, count: int, payload: bytes, receivers: int) -> None:
    from ..client import Client

    key = KEY.encode()
    with Client(address) as client:
        _ready()
        _await_word()
        _begin()
        with client.batch() as batch:
            for _ in range(count):
                batch.publish(key, payload)
        client.publish(key, END)
        client.sync()


def receive_gevent(address: str, count: int, receivers: int) -> None:
    from ..client import Client

    _receive(Client(address))


def publish_blocking(address: str, count: int, payload: bytes, receivers: int) -> None:
    from ..blocking import Client

    _publish(Client(address), count, payload)


def receive_blocking(address: str, count: int, receivers: int) -> None:
    from ..blocking import Client

    _receive(Client(address))


def publish_aio(address: str, count: int, payload: bytes, receivers: int) -> None:
    from ..aio import Client

    async def work() -> None:
        key = KEY.encode()
        async with Client(address) as client:
            _ready()
            _await_word()
            _begin()
            for _ in range(count):
                await client.publish(key, payload)
            await client.publish(key, END)
            await client.sync()

    asyncio.run(work())


def receive_aio(address: str, count: int, receivers: int) -> None:
    from ..aio import Client

    async def work() -> None:
        received = 0
        async with Client(address) as client:
            await client.flood_control(soft="block")
            await client.subscribe(KEY.encode())
            _ready()
            async for message in client:
                if message.payload == END:
                    break
                received += 1
        _ended(received)

    asyncio.run(work())


def publish_many(address: str, count: int, payload: bytes, receivers: int) -> None:
    from ..blocking import Client

    pairs = [(KEY.encode(), payload)] * MANY
    with Client(address) as client:
        _ready()
        _await_word()
        _begin()
        for left in range(count, 0, -MANY):
            client.publish_many(pairs[:left])
        client.publish(KEY.encode(), END)
        client.sync()


def receive_many(address: str, count: int, receivers: int) -> None:
    from ..blocking import Client

    received = 0
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(address)) for _ in range(receivers)]
        for client in clients:
            client.flood_control(soft="block")
            client.subscribe(KEY.encode())
        _ready()
        poll = select.poll()
        by_fd = {client.fileno(): client for client in clients}
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
    _ended(received)


# ---------------------------------------------------------------------------------------------------
# The clients of other brokers


def publish_redis(address: str, count: int, payload: bytes, receivers: int) -> None:
    import redis

    with redis.Redis(unix_socket_path=address) as client:
        client.ping()
        _ready()
        _await_word()
        _begin()
        for left in range(count, 0, -PIPELINE):
            pipeline = client.pipeline(transaction=False)
            for _ in range(min(left, PIPELINE)):
                pipeline.publish(KEY, payload)
            pipeline.execute()
        client.publish(KEY, END)


def receive_redis(address: str, count: int, receivers: int) -> None:
    import redis

    received = 0
    with redis.Redis(unix_socket_path=address) as client, client.pubsub() as subscription:
        subscription.subscribe(KEY)
        for message in subscription.listen():
            if message["type"] == "subscribe":
                _ready()
            elif message["data"] == END:
                break
            else:
                received += 1
    _ended(received)


def publish_nats(address: str, count: int, payload: bytes, receivers: int) -> None:
    import nats

    async def work() -> None:
        client = await nats.connect(f"nats://{address}")
        _ready()
        _await_word()
        _begin()
        for _ in range(count):
            await client.publish(KEY, payload)
        await client.publish(KEY, END)
        await client.drain()

    asyncio.run(work())


def receive_nats(address: str, count: int, receivers: int) -> None:
    import nats

    async def work() -> None:
        received = 0
        client = await nats.connect(f"nats://{address}")
        # Without bounds, so that nothing is dropped in the client.
        subscription = await client.subscribe(KEY, pending_msgs_limit=0, pending_bytes_limit=0)
        await client.flush()
        _ready()
        async for message in subscription.messages:
            if message.data == END:
                break
            received += 1
        _ended(received)
        await client.close()

    asyncio.run(work())


def publish_zeromq(address: str, count: int, payload: bytes, receivers: int) -> None:
    _publish_zeromq(address, count, payload, envelope=True)


def publish_zeromq_frame(address: str, count: int, payload: bytes, receivers: int) -> None:
    _publish_zeromq(address, count, payload, envelope=False)


def _publish_zeromq(address: str, count: int, payload: bytes, *, envelope: bool) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PUB) as sock:
        sock.sndhwm = 0
        sock.connect(f"ipc://{address}-in")
        key = KEY.encode()
        send: Callable[[bytes], object] = (
            (lambda data: sock.send_multipart([key, data])) if envelope else (lambda data: sock.send(key + b" " + data))
        )
        _ready()
        # A publisher cannot know when its subscriber is there; so it says hello until the receiver has heard it.
        while not select.select([sys.stdin], [], [], 0.005)[0]:
            send(HELLO)
        _begin()
        if envelope:
            for _ in range(count):
                sock.send_multipart([key, payload])
        else:
            for _ in range(count):
                sock.send(key + b" " + payload)
        send(END)


def receive_zeromq(address: str, count: int, receivers: int) -> None:
    import zmq

    received = 0
    with zmq.Context() as context, context.socket(zmq.SUB) as sock:
        sock.rcvhwm = 0
        sock.connect(f"ipc://{address}-out")
        sock.subscribe(KEY)
        while sock.recv_multipart()[1] != HELLO:
            pass
        _ready()
        while True:
            _, payload = sock.recv_multipart()
            if payload == END:
                break
            received += payload != HELLO
    _ended(received)


def receive_zeromq_frame(address: str, count: int, receivers: int) -> None:
    import zmq

    received = 0
    with zmq.Context() as context, context.socket(zmq.SUB) as sock:
        sock.rcvhwm = 0
        sock.connect(f"ipc://{address}-out")
        sock.subscribe(KEY)
        while not sock.recv().endswith(HELLO):
            pass
        _ready()
        while True:
            _, payload = sock.recv().split(b" ", 1)
            if payload == END:
                break
            received += payload != HELLO
    _ended(received)


def proxy(address: str) -> None:
    """The broker of ZeroMQ: what comes from publishers goes to subscribers."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.XSUB) as incoming, context.socket(zmq.XPUB) as outgoing:
        incoming.rcvhwm = incoming.sndhwm = outgoing.rcvhwm = outgoing.sndhwm = 0
        incoming.bind(f"ipc://{address}-in")
        outgoing.bind(f"ipc://{address}-out")
        zmq.proxy(incoming, outgoing)


def publish_mosquitto(address: str, count: int, payload: bytes, receivers: int) -> None:
    from paho.mqtt import client as mqtt

    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, transport="unix")
    client.max_queued_messages_set(0)
    client.connect(address)
    client.loop_start()
    _ready()
    _await_word()
    _begin()
    for _ in range(count):
        client.publish(KEY, payload)
    client.publish(KEY, END).wait_for_publish()
    client.disconnect()
    client.loop_stop()


def receive_mosquitto(address: str, count: int, receivers: int) -> None:
    from paho.mqtt import client as mqtt

    received = 0

    def on_message(client: mqtt.Client, _: object, message: mqtt.MQTTMessage) -> None:
        nonlocal received
        if message.payload == END:
            client.disconnect()
        else:
            received += 1

    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, transport="unix")
    client.on_message = on_message
    client.on_subscribe = lambda *_: _ready()
    client.on_connect = lambda client, *_: client.subscribe(KEY)
    client.connect(address)
    client.loop_forever()
    _ended(received)


# ---------------------------------------------------------------------------------------------------

_PUBLISH: dict[str, Callable[[str, int, bytes, int], None]] = {
    "gevent": publish_gevent,
    "batch": publish_batch,
    "blocking": publish_blocking,
    "aio": publish_aio,
    "many": publish_many,
    "redis": publish_redis,
    "nats": publish_nats,
    "zeromq": publish_zeromq,
    "zeromq-frame": publish_zeromq_frame,
    "mosquitto": publish_mosquitto,
}
_RECEIVE: dict[str, Callable[[str, int, int], None]] = {
    "gevent": receive_gevent,
    "batch": receive_gevent,
    "blocking": receive_blocking,
    "aio": receive_aio,
    "many": receive_many,
    "redis": receive_redis,
    "nats": receive_nats,
    "zeromq": receive_zeromq,
    "zeromq-frame": receive_zeromq_frame,
    "mosquitto": receive_mosquitto,
}

KINDS = {
    "redis": ("redis", "redis"),
    "nats": ("nats", "nats-py"),
    "zeromq": ("zeromq", "pyzmq"),
    "zeromq-frame": ("zeromq", "pyzmq"),
    "mosquitto": ("mosquitto", "paho-mqtt"),
}
"""Of each kind of Python client that is not ours: its broker, and the distribution that is needed."""


def main() -> None:
    """Be one of the processes."""
    role, kind, *rest = sys.argv[1:]
    if role == "proxy":
        proxy(kind)
    elif role == "publish":
        address, count, size, receivers = rest
        _PUBLISH[kind](address, int(count), b"x" * int(size), int(receivers))
    else:
        address, count, size, receivers = rest
        _RECEIVE[kind](address, int(count), int(receivers))


if __name__ == "__main__":
    main()
