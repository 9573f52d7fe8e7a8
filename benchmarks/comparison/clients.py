"""The Python clients of other brokers, as :mod:`sbuslib.bench.python_clients` runs ours.

    python benchmarks/comparison/clients.py ROLE KIND ADDRESS COUNT SIZE RECEIVERS
    python benchmarks/comparison/clients.py proxy ADDRESS

It imports nothing of the folder that it is in, which is on the path of modules when it runs so.
"""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import Callable, Iterable

from sbuslib.bench import python_clients
from sbuslib.bench.python_clients import END, KEY, await_start, report_begun, report_ended, report_ready
from sbuslib.bench.results import Run

__all__ = ["KINDS", "run"]

HELLO = b"hello"
PIPELINE = 100
"""Messages in one pipeline of redis-py."""

KINDS = {
    "redis": ("redis", "redis"),
    "nats": ("nats", "nats-py"),
    "zeromq": ("zeromq", "pyzmq"),
    "zeromq-frame": ("zeromq", "pyzmq"),
    "mosquitto": ("mosquitto", "paho-mqtt"),
}
"""Of each kind of Python client: its broker, and the distribution that is needed."""


def run(kind: str, address: str, pids: Iterable[int], count: int, *, size: int = 100, receivers: int = 1) -> Run:
    """Messages from one Python client to others. Raises :exc:`~sbuslib.errors.StateError` when one fails."""
    program = (sys.executable, __file__)
    return python_clients.run(kind, address, pids, count, size=size, receivers=receivers, program=program)


def publish_redis(address: str, count: int, payload: bytes, receivers: int) -> None:
    import redis

    with redis.Redis(unix_socket_path=address) as client:
        client.ping()
        report_ready()
        await_start()
        report_begun()
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
                report_ready()
            elif message["data"] == END:
                break
            else:
                received += 1
    report_ended(received)


def publish_nats(address: str, count: int, payload: bytes, receivers: int) -> None:
    import nats

    async def work() -> None:
        client = await nats.connect(f"nats://{address}")
        report_ready()
        await_start()
        report_begun()
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
        report_ready()
        async for message in subscription.messages:
            if message.data == END:
                break
            received += 1
        report_ended(received)
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
        report_ready()
        # A publisher cannot know when its subscriber is there; so it says hello until the receiver has heard it.
        while not select.select([sys.stdin], [], [], 0.005)[0]:
            send(HELLO)
        report_begun()
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
        report_ready()
        while True:
            _, payload = sock.recv_multipart()
            if payload == END:
                break
            received += payload != HELLO
    report_ended(received)


def receive_zeromq_frame(address: str, count: int, receivers: int) -> None:
    import zmq

    received = 0
    with zmq.Context() as context, context.socket(zmq.SUB) as sock:
        sock.rcvhwm = 0
        sock.connect(f"ipc://{address}-out")
        sock.subscribe(KEY)
        while not sock.recv().endswith(HELLO):
            pass
        report_ready()
        while True:
            _, payload = sock.recv().split(b" ", 1)
            if payload == END:
                break
            received += payload != HELLO
    report_ended(received)


def proxy(address: str) -> None:
    """The broker of ZeroMQ: what comes from publishers goes to subscribers."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.XSUB) as incoming, context.socket(zmq.XPUB) as outbound:
        incoming.rcvhwm = incoming.sndhwm = outbound.rcvhwm = outbound.sndhwm = 0
        incoming.bind(f"ipc://{address}-in")
        outbound.bind(f"ipc://{address}-out")
        zmq.proxy(incoming, outbound)


def publish_mosquitto(address: str, count: int, payload: bytes, receivers: int) -> None:
    from paho.mqtt import client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion

    client = mqtt.Client(CallbackAPIVersion.VERSION2, transport="unix")
    client.max_queued_messages_set(0)
    client.connect(address)
    client.loop_start()
    report_ready()
    await_start()
    report_begun()
    for _ in range(count):
        client.publish(KEY, payload)
    client.publish(KEY, END).wait_for_publish()
    client.disconnect()
    client.loop_stop()


def receive_mosquitto(address: str, count: int, receivers: int) -> None:
    from paho.mqtt import client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion

    received = 0

    def on_message(client: mqtt.Client, _: object, message: mqtt.MQTTMessage) -> None:
        nonlocal received
        if message.payload == END:
            client.disconnect()
        else:
            received += 1

    client = mqtt.Client(CallbackAPIVersion.VERSION2, transport="unix")
    client.on_message = on_message
    client.on_subscribe = lambda *_: report_ready()
    client.on_connect = lambda client, *_: client.subscribe(KEY)
    client.connect(address)
    client.loop_forever()
    report_ended(received)


# ---------------------------------------------------------------------------------------------------

_PUBLISH: dict[str, python_clients.Publish] = {
    "redis": publish_redis,
    "nats": publish_nats,
    "zeromq": publish_zeromq,
    "zeromq-frame": publish_zeromq_frame,
    "mosquitto": publish_mosquitto,
}
_RECEIVE: dict[str, python_clients.Receive] = {
    "redis": receive_redis,
    "nats": receive_nats,
    "zeromq": receive_zeromq,
    "zeromq-frame": receive_zeromq_frame,
    "mosquitto": receive_mosquitto,
}


if __name__ == "__main__":
    if sys.argv[1] == "proxy":
        proxy(sys.argv[2])
    else:
        python_clients.main(_PUBLISH, _RECEIVE)
