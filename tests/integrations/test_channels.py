"""The channel layer for Django Channels: channels of several processes, groups, and what waits for workers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
from accounting import acting_as
from docs.pages import DOCS, blocks
from support import PATIENCE, ROOT, HubThread, python

pytest.importorskip("channels")

from asgiref.sync import async_to_sync
from channels.exceptions import ChannelFull, MessageTooLarge

from sbuslib.blocking import Client
from sbuslib.connecting import BusUrl
from sbuslib.errors import NoServerError, ReplyError
from sbuslib.integrations import channels_memory
from sbuslib.integrations.channels import SbusChannelLayer
from sbuslib.integrations.channels_memory import LayerSettings, LocalChannels
from sbuslib.integrations.channels_process import Word
from sbuslib.limits import Limits
from sbuslib.services.queue_rules import Jobs
from sbuslib.services.queue_service import QueueService

STRANGER = 2202
PAGE = DOCS / "how-to" / "channels.md"

Make: TypeAlias = Callable[..., SbusChannelLayer]


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), PATIENCE))


@pytest.fixture
def hub(folder: str) -> Iterator[HubThread]:
    """A hub for everybody, which soon knows what nobody receives."""
    os.chmod(folder, 0o755)
    with HubThread(f"{folder}/bus", mode=0o777, limits=Limits(settle=0.01)) as hub:
        yield hub


@pytest.fixture
def make(hub: HubThread) -> Iterator[Make]:
    """Make the layer of a process, which is closed after the test."""
    layers: list[SbusChannelLayer] = []

    def make(**options: Any) -> SbusChannelLayer:
        layers.append(SbusChannelLayer(f"sbus://{hub.address}", **options))
        return layers[-1]

    yield make
    for layer in layers:
        if layer._opened is not None:
            layer._opened.close()
        layer._readers.close()  # of event loops that have ended


@pytest.fixture
def queues(hub: HubThread) -> Iterator[QueueService]:
    """The service of ordinary channels, which takes what anybody sends."""
    service = QueueService(hub.address, b"asgi-*", [], Jobs(100, 2**24, 60.0, 5), users=None)
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    yield service
    service.stop()
    thread.join()


async def receive(layer: SbusChannelLayer, channel: str, count: int) -> list[Any]:
    return [(await layer.receive(channel))["n"] for _ in range(count)]


async def is_empty(layer: SbusChannelLayer, channel: str) -> bool:
    """Whether nothing waits in a channel of the layer's process, after all that came before this."""
    await layer.send(channel, {"n": "the end"})
    return await receive(layer, channel, 1) == ["the end"]


# -- channels of processes and groups -----------------------------------------------------------------


def test_what_a_process_sends_to_a_channel_and_to_its_groups_comes_once_and_in_order(make: Make) -> None:
    async def main() -> None:
        here, there = make(), make()
        channels = [(here, await here.new_channel()), (there, await there.new_channel()), (there, "x" * 99)]
        channels[2] = there, await there.new_channel("chat.")
        for layer, channel in channels:
            await layer.group_add("room", channel)
            await layer.group_add("other.room", channel)
        for n in range(0, 90, 3):
            await here.group_send("room", {"n": n})
            await here.group_send("other.room", {"n": n + 1})
            for _, channel in channels:
                await here.send(channel, {"n": n + 2})
        for layer, channel in channels:
            assert await receive(layer, channel, 90) == [*range(90)]
            assert await is_empty(layer, channel)

    run(main)


def test_a_channel_that_has_left_a_group_hears_no_more_of_it(make: Make, hub: HubThread) -> None:
    async def main() -> None:
        here, there = make(), make()
        stays, leaves = await there.new_channel(), await there.new_channel()
        for channel in (stays, leaves):
            await here.group_add("room", channel)  # which is that of another process
        await here.group_discard("room", leaves)
        await there.group_discard("never-joined", leaves)
        await here.group_send("room", {"n": 1})
        assert await receive(there, stays, 1) == [1]
        assert await is_empty(there, leaves)
        before = hub.call(hub.hub.statistics).patterns
        await there.group_discard("room", stays)
        while hub.call(hub.hub.statistics).patterns == before:  # the hub passes nothing on for a group without channels
            await asyncio.sleep(0.001)

    run(main)


def test_a_group_whose_channels_have_expired_leaves_no_subscription(make: Make, hub: HubThread) -> None:
    async def main() -> None:
        layer = make(group_expiry=0.01, expiry=0.02)
        await layer.group_add("first", await layer.new_channel())
        before = hub.call(hub.hub.statistics).patterns
        for number in range(20):
            await layer.group_add(f"page.{number}", await layer.new_channel())
        while hub.call(hub.hub.statistics).patterns > before:  # the next one that joins ends those that have expired
            await layer.group_add("last", await layer.new_channel())
            await layer.group_discard("never-joined", await layer.new_channel())

    run(main)


def test_messages_have_any_size_up_to_the_limit(make: Make) -> None:
    async def main() -> None:
        here, there = make(), make()
        channel = await there.new_channel()
        await there.group_add("room", channel)
        long, longest = "x" * 1_000_000, os.urandom(4_194_000)
        sending = [here.group_send("room", {"n": f"{long}{n}"}) for n in range(5)]
        await asyncio.gather(*sending)
        assert sorted(await receive(there, channel, 5)) == [f"{long}{n}" for n in range(5)]
        await here.send(channel, {"n": longest})
        assert await receive(there, channel, 1) == [longest]
        with pytest.raises(MessageTooLarge):
            await here.group_send("room", {"n": longest * 2})

    run(main)


@pytest.mark.promise("how-to/channels.md", "A full channel raises `ChannelFull` at the sender")
def test_a_full_channel_refuses_and_hears_nothing_of_its_groups(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sbuslib.integrations")

    async def main() -> None:
        here, there = make(), make(capacity=3, channel_capacity={"tiny.*": 1})
        tiny, channel = await there.new_channel("tiny"), await there.new_channel()
        await here.send(tiny, {"n": 0})
        for sender in (here, there):
            with pytest.raises(ChannelFull):
                await sender.send(tiny, {"n": 1})
        for name in (tiny, channel):
            await there.group_add("room", name)
        await here.group_send("room", {"n": 1})
        await here.send(channel, {"n": 2})  # behind it
        assert await receive(there, tiny, 1) == [0]
        assert await receive(there, channel, 2) == [1, 2]
        assert await is_empty(there, tiny)

    run(main)
    assert "1 of 2 channels over capacity in group room" in caplog.text


def test_what_is_over_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(channels_memory, "monotonic", lambda: now[0])
    channels = LocalChannels(LayerSettings(BusUrl(), "asgi", 60.0, 1_000.0, frozenset(), lambda name: 10))

    async def main() -> None:
        # 1. A message that nobody receives in time.
        channels.put("p!ended", b"1")
        now[0] = 30.0
        channels.put("p!ended", b"2")
        now[0] = 60.0
        assert channels.take("p!ended") == b"2"

        # 2. The groups of a channel from which nobody receives any more, but not of a consumer that waits or is busy.
        waiting = channels.take("p!waiting")
        assert channels.take("p!busy") is not waiting
        for name in ("p!ended", "p!waiting", "p!busy"):
            channels.join("room", name)
        for second in range(100, 260, 20):
            now[0] = float(second)
            channels.put_into_group("room", b"%d" % second)
            if second < 160:
                channels.take("p!busy")
            if second < 240:
                channels.take("p!waiting")
        assert sorted(channels._groups["room"]) == ["p!busy", "p!waiting"]

        # 3. What was put into a group too long ago leaves it, and what has nothing left is forgotten.
        channels.take("p!quiet")
        channels.join("quiet", "p!quiet")
        now[0] = 2_000.0
        channels.take("p!other")
        assert (channels._groups, sorted(channels._channels)) == ({}, ["p!other", "p!quiet"])

    run(main)


def test_a_task_that_gives_up_takes_no_message_from_another(make: Make) -> None:
    async def main() -> None:
        layer = make()
        channel = await layer.new_channel()
        tasks = [asyncio.create_task(layer.receive(channel)) for _ in range(3)]
        await asyncio.sleep(0)
        for n in range(3):
            await layer.send(channel, {"n": n})
        tasks[0].cancel()  # it was woken, and has not run yet
        assert sorted([(await tasks[1])["n"], (await tasks[2])["n"], *await receive(layer, channel, 1)]) == [0, 1, 2]

    run(main)


def test_all_event_loops_and_threads_of_a_process_share_one_connection(make: Make, hub: HubThread) -> None:
    layer = make()
    channel = async_to_sync(layer.new_channel)()
    async_to_sync(layer.group_add)("room", channel)
    received: list[Any] = []

    def listen() -> None:
        received.extend(asyncio.run(receive(layer, channel, 20)))

    threads = [threading.Thread(target=listen) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(20):
        async_to_sync(layer.send)(channel, {"n": 2 * n})
        async_to_sync(layer.group_send)("room", {"n": 2 * n + 1})
    for thread in threads:
        thread.join()
    assert sorted(received) == [*range(40)]
    assert len(hub.call(hub.hub.statistics).per_client) == 1


def test_the_child_of_a_fork_is_a_process_of_its_own(make: Make) -> None:
    layer = make()
    channel = async_to_sync(layer.new_channel)()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            signal.alarm(int(PATIENCE))
            own = async_to_sync(layer.new_channel)()
            async_to_sync(layer.send)(channel, {"n": own})
            os.write(writing, str(asyncio.run(receive(layer, own, 1))).encode())
        os._exit(0)
    (own,) = asyncio.run(receive(layer, channel, 1))
    async_to_sync(layer.send)(own, {"n": "to the child"})
    assert os.read(reading, 100) == b"['to the child']"
    os.waitpid(child, 0)
    for fd in (reading, writing):
        os.close(fd)


@pytest.mark.promise("how-to/channels.md", "A message of any other user is refused")
def test_what_a_stranger_sends_reaches_no_channel(hub: HubThread, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        here, trusting = make(), make(users=[STRANGER])
        with acting_as(STRANGER):
            stranger = Client(hub.address)
        names = [await layer.new_channel() for layer in (here, trusting)]
        for layer, name in zip((here, trusting), names, strict=True):
            await layer.group_add("room", name)
        message = msgspec.msgpack.encode({"n": "forged"})
        to_group = Word("put", group="room", part=message, size=len(message))
        to_channel = Word("put", names[0], part=message, size=len(message))
        await asyncio.to_thread(stranger.publish, "asgi/group/room", msgspec.msgpack.encode(to_group))
        key = f"asgi/at/{here.client_prefix}"
        with pytest.raises(ReplyError, match=f"messages of user {STRANGER} are refused"):
            await asyncio.to_thread(stranger.request, key, msgspec.msgpack.encode(to_channel))
        assert await receive(trusting, names[1], 1) == ["forged"]
        assert await is_empty(here, names[0])
        stranger.close()

    run(main)
    assert caplog.text.count(f"messages of user {STRANGER} are refused") == 1


def test_what_makes_no_sense_ends_nothing(hub: HubThread, make: Make) -> None:
    async def main() -> None:
        layer = make()
        channel = await layer.new_channel()
        await layer.group_add("room", channel)
        with Client(hub.address) as other:
            for payload in (
                b"",
                b"\xc1",
                b"\x91" * 10_000,
                msgspec.msgpack.encode(["put", "", "room", b"x", 2**60, b"t"]),
            ):
                other.publish("asgi/group/room", payload)
                other.publish(f"asgi/at/{layer.client_prefix}", payload)
            other.sync()
        await make().group_send("room", {"n": 1})
        assert await receive(layer, channel, 1) == [1]

    run(main)


# -- outages ------------------------------------------------------------------------------------------


def test_groups_go_on_when_the_hub_is_back(hub: HubThread, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        here, there, hasty = make(), make(), make()
        channel, new = await there.new_channel(), await there.new_channel()
        (await hasty._process()).client.timeout = 0.05
        await there.group_add("room", channel)
        await asyncio.to_thread(hub.stop)
        with pytest.raises(TimeoutError):
            await hasty.group_send("room", {"n": 1})
        failed, again = await hasty.new_channel(), await hasty.new_channel()
        with pytest.raises(TimeoutError):
            await hasty.group_add("late", failed)
        sending = asyncio.create_task(here.group_send("room", {"n": 2}))
        joining = asyncio.create_task(there.group_add("other", new))
        await asyncio.sleep(0)  # neither stops this event loop
        with HubThread(hub.address):
            await asyncio.gather(sending, joining)
            processes = [await layer._process() for layer in (here, there, hasty)]
            processes[2].client.timeout = PATIENCE
            for process in processes:
                await asyncio.to_thread(process.client.sync)
            await here.group_send("room", {"n": 3})
            await here.group_send("other", {"n": 4})
            assert (await receive(there, channel, 1))[0] in (2, 3)  # there may have been later here than the message
            assert await receive(there, new, 1) == [4]
            await hasty.group_add("late", again)
            await here.group_send("late", {"n": 5})
            assert await receive(hasty, again, 1) == [5]
            assert await is_empty(hasty, failed)
            for process in processes:
                process.close()

    run(main)
    assert "the hub was away" in caplog.text


PROCESS = """
import asyncio, sys
from sbuslib.integrations.channels import SbusChannelLayer
async def main():
    layer = SbusChannelLayer(sys.argv[1])
    channel = await layer.new_channel()
    await layer.group_add("room", channel)
    print(channel, flush=True)
    while True:
        await layer.receive("tasks")
        print("received", flush=True)
asyncio.run(main())
"""


@pytest.mark.promise("how-to/channels.md", "a message is received once, or not at all")
def test_a_process_that_is_killed_takes_no_other_with_it(hub: HubThread, make: Make, queues: QueueService) -> None:
    async def main() -> None:
        layer = make()
        mine = await layer.new_channel()
        await layer.group_add("room", mine)
        killed = subprocess.Popen(
            [sys.executable, "-c", PROCESS, f"sbus://{hub.address}"], stdout=subprocess.PIPE, env=environment()
        )
        assert killed.stdout is not None
        name = (await asyncio.to_thread(killed.stdout.readline)).decode().strip()
        await layer.send("tasks", {"n": 0})
        assert await asyncio.to_thread(killed.stdout.readline) == b"received\n"
        killed.kill()
        killed.wait()
        killed.stdout.close()
        await layer.send(name, {"n": "for nobody"})
        await layer.group_send("room", {"n": 1})
        assert await receive(layer, mine, 1) == [1]
        for n in range(1, 4):
            await layer.send("tasks", {"n": n})
        first = (await layer.receive("tasks"))["n"]
        assert first in (1, 2)  # the first of them may have been on its way to the process that was killed
        assert await receive(layer, "tasks", 3 - first) == [*range(first + 1, 4)]

    run(main)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


# -- ordinary channels --------------------------------------------------------------------------------


def test_what_nobody_receives_yet_waits_and_comes_to_one_receiver(make: Make, queues: QueueService) -> None:
    async def main() -> None:
        sender, one, other = make(capacity=20), make(), make()
        for n in range(20):
            await sender.send("tasks", {"n": n})
        with pytest.raises(ChannelFull):
            await sender.send("tasks", {"n": 20})
        assert await receive(one, "tasks", 5) == [*range(5)]
        rest = await asyncio.gather(receive(one, "tasks", 8), receive(other, "tasks", 7))
        assert sorted(rest[0] + rest[1]) == [*range(5, 20)]
        await make(expiry=0.01).send("tasks", {"n": "late"})
        await asyncio.sleep(0.02)
        await sender.send("tasks", {"n": "in time"})
        assert await receive(other, "tasks", 1) == ["in time"]
        with pytest.raises(MessageTooLarge):
            await sender.send("tasks", {"n": os.urandom(400_000)})

    run(main)


def test_a_task_that_gives_up_leaves_the_message_to_others(make: Make, queues: QueueService) -> None:
    async def main() -> None:
        layer, other = make(), make()
        for n in range(50):
            receiving = asyncio.create_task(layer.receive("tasks"))
            await asyncio.sleep(n / 10_000)
            await layer.send("tasks", {"n": n})
            receiving.cancel()
            try:
                message = await receiving
            except asyncio.CancelledError:
                message = await other.receive("tasks")
            assert message == {"n": n}

    run(main)


def test_what_a_stranger_sent_or_another_may_have_received_comes_to_nobody(
    hub: HubThread, make: Make, queues: QueueService, caplog: pytest.LogCaptureFixture
) -> None:
    with acting_as(STRANGER):
        stranger = Client(hub.address)
    with stranger:
        stranger.queue("asgi-tasks").submit("asgi", msgspec.msgpack.encode({"n": "forged"}))
    layer = make()
    async_to_sync(layer.send)("again", {"n": "given back"})
    with Client(hub.address) as other, other.queue("asgi-again").take() as worker:
        worker.receive(timeout=PATIENCE).give_back()
        worker.pause()

    async def main() -> None:
        for channel in ("tasks", "again"):
            await layer.send(channel, {"n": channel})
            assert await receive(layer, channel, 1) == [channel]

    run(main)
    assert f"tasks: messages of user {STRANGER} are refused" in caplog.text
    assert "again: a message is dropped" in caplog.text


def test_without_a_service_the_sender_hears_what_to_start(make: Make) -> None:
    async def main() -> None:
        with pytest.raises(NoServerError, match=r"sbus queue --memory 'asgi-\*'"):
            await make().send("tasks", {})

    run(main)


def test_an_ordinary_channel_is_in_a_group_for_the_process_that_put_it_there(make: Make, queues: QueueService) -> None:
    async def main() -> None:
        here, there = make(), make()
        await here.group_add("room", "tasks")
        for n in range(0, 20, 2):
            await here.group_send("room", {"n": n})
            await there.group_send("room", {"n": n + 1})
        received = await receive(there, "tasks", 20)
        assert sorted(received) == [*range(20)]
        assert [n for n in received if n % 2 == 0] == [*range(0, 20, 2)]
        await here.group_discard("room", "tasks")
        await there.group_send("room", {"n": "the end"})
        await there.send("tasks", {"n": "other"})
        assert await receive(there, "tasks", 1) == ["other"]

    run(main)


def test_after_a_flush_the_layer_is_as_new(make: Make, queues: QueueService, hub: HubThread) -> None:
    async def main() -> None:
        layer, other = make(), make(prefix="other")
        channel = await layer.new_channel()
        waiting = asyncio.create_task(layer.receive(channel))
        await layer.group_add("room", channel)
        await layer.send("tasks", {"n": 1})
        await layer.flush()
        await other.group_send("room", {"n": 2})
        await layer.group_send("room", {"n": 3})
        await layer.send(channel, {"n": 4})
        assert (await waiting)["n"] == 4
        await layer.send("tasks", {"n": 5})
        assert await receive(layer, "tasks", 1) == [5]
        await layer.flush()

    run(main)


# -- the page -----------------------------------------------------------------------------------------

TWO_CLIENTS = """
import asyncio, chat
from channels.testing.websocket import WebsocketCommunicator
async def main():
    clients = [WebsocketCommunicator(chat.application, "/") for _ in range(2)]
    for client in clients:
        assert (await client.connect(timeout=10))[0]
    await clients[0].send_to(text_data="hello")
    print([await client.receive_from(10) for client in clients])
    print("connected", flush=True)
    print([await client.receive_from(10) for client in clients], flush=True)
    for client in clients:
        await client.disconnect()
asyncio.run(main())
"""


def test_the_application_of_the_page_carries_what_clients_and_scripts_say(hub: HubThread, tmp_path: Path) -> None:
    pytest.importorskip("daphne")  # Channels' own tests load it
    for block in blocks(PAGE):
        if block.what == "file":
            (tmp_path / block.name).write_text(block.text.replace("/run/app/bus", hub.address))
    serving = subprocess.Popen(
        [sys.executable, "-c", TWO_CLIENTS], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
    )
    assert serving.stdout is not None
    assert serving.stdout.readline() == "['hello', 'hello']\n"
    assert serving.stdout.readline() == "connected\n"
    python(str(tmp_path / "script.py"))
    assert serving.stdout.read() == "['from a script', 'from a script']\n"
    assert serving.wait() == 0
    serving.stdout.close()
