"""Large messages over real hubs: all three clients, relays, reconnections, kills."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import pytest
from clients.makers import Make, run, spawn
from programs import Programs
from support import PATIENCE, HubThread

from sbuslib import aio, blocking
from sbuslib.errors import KeyFormatError, UsageError
from sbuslib.recipes.large import Received

DATA = os.urandom(3_000_001)


def received_by(client: blocking.Client, pattern: bytes, folder: Path, ready: Callable[[], object]) -> Received:
    with client.receive_large(pattern, folder=folder, timeout=PATIENCE) as files:
        ready()
        return files.receive(timeout=PATIENCE)


def in_background(function: Callable[[], Any]) -> Callable[[], Any]:
    """Run in a thread; what waits for the result, and gives it."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()

    def wait() -> Any:
        thread.join(2 * PATIENCE)
        (result,) = results
        return result

    return wait


def test_a_file_goes_to_several_receivers(server: HubThread, make: Make, tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(DATA)
    sender, receivers = make(), [make(), make()]
    results: list[Received] = []

    def receive(client: Any, folder: Path) -> None:
        folder.mkdir()
        with client.receive_large(b"files/*", folder=folder) as files:
            results.append(files.receive(timeout=PATIENCE))

    running = [spawn(one, partial(receive, one, tmp_path / str(id(one)))) for one in receivers]
    sender.subscribe(b"other")
    assert sender.send_large(b"files/a", source, receivers=2, timeout=PATIENCE).receivers == 2
    for one in running:
        one.join(PATIENCE)
    for result in results:
        assert (result.key, result.name, result.size) == (b"files/a", "source.bin", len(DATA))
        assert result.file.read_bytes() == DATA
    assert len(results) == 2
    sender.publish(b"other")
    assert sender.receive(timeout=PATIENCE).key == b"other"


def test_asyncio_sends_and_receives_files(server: HubThread, address: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            aio.Client(address) as sender,
            aio.Client(address) as receiver,
            receiver.receive_large(b"files/", folder=tmp_path) as files,
        ):
            sending = asyncio.create_task(sender.send_large(b"files/a", DATA, name="../../x"))
            received = await files.receive(timeout=PATIENCE)
            assert (await sending).receivers == 1
            assert received.file.parent == tmp_path
            assert received.file.read_bytes() == DATA
            with pytest.raises(TimeoutError):
                await files.receive(timeout=0.01)
            sending = asyncio.create_task(sender.send_large(b"files/b", b""))
            async for one in files:
                assert (one.key, one.file.read_bytes()) == (b"files/b", b"")
                break
            await sending

    run(test())


def test_what_cannot_be_sent_is_told(server: HubThread, make: Make) -> None:
    client = make()
    with pytest.raises(UsageError):
        client.send_large(b"a", b"", receivers=0)
    with pytest.raises(KeyFormatError):
        client.send_large(b"a/!/b", b"")
    with pytest.raises(FileNotFoundError):
        client.send_large(b"a", "/nowhere")
    with pytest.raises(TimeoutError):
        client.send_large(b"a", b"x", timeout=0.01)


def size_of_what_comes(folder: Path) -> int:
    """Bytes of the files in ``folder`` that this process has open: they have no name before they are whole."""
    size = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{fd}").startswith(f"{folder}/"):
                size += os.stat(f"/proc/self/fd/{fd}").st_size
    return size


@pytest.mark.parametrize("killed", ["left", "top", "right"])
def test_a_file_comes_over_two_relays_though_a_hub_is_killed(killed: str, tmp_path: Path) -> None:
    """The clients connect again, and the receiver asks for what is missing."""
    folder = tmp_path / "received"
    folder.mkdir()
    data = os.urandom(20_000_000)
    programs = Programs(str(tmp_path))
    try:
        programs.start("top")
        for name in ("left", "right"):
            programs.start(name, "top")
            programs.wait_until_joined(name)
        options: dict[str, Any] = {"reconnect": True, "timeout": PATIENCE}
        ready = threading.Event()
        with (
            blocking.Client(programs.address("left"), **options) as sender,
            blocking.Client(programs.address("right"), **options) as receiver,
        ):
            received = in_background(lambda: received_by(receiver, b"files/*", folder, ready.set))
            assert ready.wait(PATIENCE)
            sent = in_background(lambda: sender.send_large(b"files/a", data, timeout=PATIENCE))
            while size_of_what_comes(folder) < 2_000_000:
                gevent.sleep(0.001)
            programs.kill(killed)
            programs.start_again(killed)
            assert received().file.read_bytes() == data
            assert sent().receivers == 1
    finally:
        programs.close()
