"""How fast a bridge takes messages out, beside the engine's own Python client that publishes the same messages.

    python benchmarks/bridges.py [nats|mqtt|redis ...]

Needs nats-server, mosquitto and redis-server, and the extra [bench]. Both publish the same subjects, payloads and
headers in turns, in one process each round, and end when the engine has confirmed all. The ratio is the median.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from time import perf_counter

from sbuslib.bridge import AioBridge
from sbuslib.bridge.engine import ORIGIN

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests"))

from bridge.servers import Server, mosquitto, nats_server, redis_server

COUNT = {"nats": 100_000, "mqtt": 20_000, "redis": 100_000}
ROUNDS = 5
PAYLOAD = b"x" * 100
KEYS = [b"room/%d/temp" % number for number in range(100)]
HEADER = "18ea74a7c9b41968063a6876.0 12345 0123456789abcdef host/1000/12345"


async def plain_nats(port: int, count: int) -> float:
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{port}")
    subjects = [f"sbus.{key.decode().replace('/', '.')}" for key in KEYS]
    began = perf_counter()
    for number in range(count):
        await client.publish(subjects[number % 100], PAYLOAD, headers={ORIGIN: HEADER})
        if number % 1_024 == 0:
            await client.flush()
    await client.flush()
    await client.flush()
    took = perf_counter() - began
    await client.close()
    return took


async def plain_mqtt(port: int, count: int) -> float:
    from paho.mqtt.client import CallbackAPIVersion, MQTTProtocolVersion
    from paho.mqtt.client import Client as Paho
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    client = Paho(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.max_inflight_messages_set(64)
    client.connect("127.0.0.1", port)
    client.loop_start()
    topics = [f"sbus/{key.decode()}" for key in KEYS]
    began = perf_counter()
    for start in range(0, count, 64):  # with more in flight, the client library takes longer for each
        sent = []
        for number in range(start, min(start + 64, count)):
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = (ORIGIN, HEADER)
            sent.append(client.publish(topics[number % 100], PAYLOAD, 1, properties=properties))
        for each in sent:
            each.wait_for_publish()
    took = perf_counter() - began
    client.disconnect()
    client.loop_stop()
    return took


async def plain_redis(port: int, count: int) -> float:
    from redis.asyncio import Redis

    client = Redis(port=port)
    channels = [f"sbus/{key.decode()}" for key in KEYS]
    began = perf_counter()
    for start in range(0, count, 1_024):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, min(start + 1_024, count)):
            pipeline.publish(channels[number % 100], PAYLOAD)
        await pipeline.execute()
    took = perf_counter() - began
    await client.aclose()
    return took


PUBLISH = """
import sys
from sbuslib.blocking import Client
keys = [b"room/%d/temp" % number for number in range(100)]
with Client(sys.argv[1], timeout=None) as client:
    for line in sys.stdin:
        client.publish_many([(keys[number % 100], b"x" * 100) for number in range(int(line))])
"""
WINDOW = 8_192
"""Messages that are under way at most: the bus waits for no bridge, and would lose some."""


async def bridged(address: str, engine: str, port: int, count: int) -> float:
    """From the first message until the engine has confirmed the last."""
    publisher = subprocess.Popen([sys.executable, "-c", PUBLISH, address], stdin=subprocess.PIPE, text=True, bufsize=1)
    assert publisher.stdin is not None
    async with AioBridge(address, f"{engine}://127.0.0.1:{port}", export=[b"room/"]) as bridge:
        await bridge.ready()
        began, sent = perf_counter(), 0
        while (done := bridge.statistics().exported) < count:
            if sent < count and sent - done < WINDOW:
                publisher.stdin.write("1024\n")
                sent += 1_024
            else:
                await asyncio.sleep(0.001)
        took = (perf_counter() - began) * count / done
        publisher.stdin.close()
        await asyncio.to_thread(publisher.wait)
        assert not bridge.statistics().lost, bridge.statistics()
    return took


PLAIN: dict[str, tuple[Callable[[str], Server], Callable[[int, int], Awaitable[float]]]] = {
    "nats": (nats_server, plain_nats),
    "mqtt": (mosquitto, plain_mqtt),
    "redis": (redis_server, plain_redis),
}


def main() -> None:
    logging.basicConfig()
    with tempfile.TemporaryDirectory() as folder:
        hub = subprocess.Popen(
            [sys.executable, "-m", "sbuslib", "hub", "-a", f"{folder}/bus"], stdout=subprocess.DEVNULL
        )
        try:
            for engine in sys.argv[1:] or PLAIN:
                make, plain = PLAIN[engine]
                server, count = make(folder), COUNT[engine]
                server.start()
                ratios = []
                with contextlib.closing(_Killing(server)):
                    for number in range(ROUNDS):
                        own = asyncio.run(_timed(plain(server.port, count)))
                        through = asyncio.run(bridged(f"{folder}/bus", engine, server.port, count))
                        if number:  # the first round warms up
                            ratios.append(own / through)
                        print(f"{engine}: client {count / own:,.0f}/s, bridge {count / through:,.0f}/s", flush=True)
                print(f"{engine}: bridge/client {statistics.median(ratios):.2f}", flush=True)
        finally:
            hub.terminate()
            hub.wait()


async def _timed(work: Awaitable[float]) -> float:
    return await work


class _Killing:
    def __init__(self, server: Server) -> None:
        self.close = server.kill


if __name__ == "__main__":
    main()
