"""Files over real hubs: all three clients, relays, kills, receivers that refuse, stand still or are strangers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clients.drivers import Bus, script
from clients.fds.visits import ask, visit, visit_as_stranger
from clients.makers import Make, run, spawn, until
from programs import Programs
from support import PATIENCE, HubThread

from sbuslib import aio, blocking
from sbuslib.clients.fds import copying
from sbuslib.clients.fds.transfers import ReceivedFile
from sbuslib.errors import PeerError
from sbuslib.wire.offers import GIVEN, decode_offer

DATA = os.urandom(3_000_001)


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


def failed(function: Callable[[], Any]) -> str:
    """What the error says that this raises."""
    with pytest.raises(PeerError) as raised:
        function()
    return str(raised.value)


@script
async def test_a_file_goes_to_several_receivers(bus: Bus, server: HubThread, tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(DATA)
    sender, receivers = await bus.client(), [await bus.client(), await bus.client()]

    async def receive(client: Any, folder: Path) -> ReceivedFile:
        folder.mkdir()
        async with client.files.receive(b"files/*", folder=folder) as files:
            received: ReceivedFile = await files.receive(timeout=PATIENCE)
            return received

    receiving = [bus.spawn(receive(one, tmp_path / str(number))) for number, one in enumerate(receivers)]
    await sender.subscribe(b"other")
    assert (await sender.files.send(b"files/a", source, receivers=2, timeout=PATIENCE)).receivers == 2
    for number, each in enumerate(receiving):
        result = await each
        assert (result.key, result.name, result.size) == (b"files/a", "source.bin", len(DATA))
        assert (result.file.parent, result.file.read_bytes()) == (tmp_path / str(number), DATA)
    await sender.publish(b"other")
    assert (await sender.receive(timeout=PATIENCE)).key == b"other"


@script
async def test_the_name_of_a_file_does_not_lead_out_of_the_folder(bus: Bus, server: HubThread, tmp_path: Path) -> None:
    sender, receiver = await bus.client(), await bus.client()

    async def send() -> int:
        sent: int = (await sender.files.send(b"files/a", b"", name="../../x", timeout=PATIENCE)).receivers
        return sent

    async with receiver.files.receive(b"files/", folder=tmp_path) as files:
        sending = bus.spawn(send())
        async for received in files:
            assert (received.file.parent, received.file.read_bytes()) == (tmp_path, b"")
            break
        assert await sending == 1
        with pytest.raises(TimeoutError):
            await files.receive(timeout=0.01)


def test_a_receiver_that_refuses_says_why(server: HubThread, make: Make, tmp_path: Path) -> None:
    sender, receiver = make(), make()
    with receiver.files.receive(b"files/*", folder=tmp_path, most=1) as files:
        waiting = spawn(receiver, lambda: files.receive(timeout=PATIENCE))
        with pytest.raises(PeerError, match="nobody has files/a: 2 bytes are more than 1"):
            sender.files.send(b"files/a", b"xx", timeout=PATIENCE)
        sender.files.send(b"files/a", b"x", timeout=PATIENCE)
        waiting.join(PATIENCE)


def test_a_stranger_that_takes_a_file_and_stands_still_stalls_nobody(server: HubThread, make: Make) -> None:
    sender, receiver = make(), make()
    with receiver.files.receive(b"files/*") as files, receiver.subscribe(b"files/*") as offers:

        def receive() -> None:
            decoded = decode_offer(offers.receive(timeout=PATIENCE).payload)
            assert decoded is not None
            assert decoded[0].store is not None
            with visit_as_stranger(decoded[0].store) as stranger:
                words, descriptors = ask(stranger, decoded[0].token)
                assert words == bytes([GIVEN])
                with files.receive(timeout=PATIENCE).file as file:
                    assert file.read() == DATA
                os.close(descriptors[0])

        running = spawn(receiver, receive)
        assert sender.files.send(b"files/a", DATA, timeout=PATIENCE).receivers == 1
        running.join(PATIENCE)


def test_a_receiver_that_dies_is_told(server: HubThread, make: Make, address: str) -> None:
    sender, receiver = make(), make()
    with receiver.subscribe(b"files/*") as offers:

        def die() -> None:
            decoded = decode_offer(offers.receive(timeout=PATIENCE).payload)
            assert decoded is not None
            assert decoded[0].store is not None
            with visit(decoded[0].store) as sock:
                os.close(ask(sock, decoded[0].token)[1][0])

        running = spawn(receiver, die)
        with pytest.raises(PeerError, match="nobody has files/a: a receiver left"):
            sender.files.send(b"files/a", DATA, timeout=PATIENCE)
        running.join(PATIENCE)


@pytest.fixture
def slow_copy(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Copies stop before their first byte: what says so, and what lets them go on."""
    copied, go_on = threading.Event(), threading.Event()
    original = copying._by_range

    def copy(*arguments: int) -> int:
        copied.set()
        assert go_on.wait(PATIENCE)
        return original(*arguments)

    monkeypatch.setattr(copying, "_by_range", copy)
    return copied, go_on


def test_a_copy_that_is_interrupted_goes_on_with_the_next_call(
    server: HubThread, address: str, tmp_path: Path, slow_copy: tuple[threading.Event, threading.Event]
) -> None:
    copied, go_on = slow_copy
    (tmp_path / "source").write_bytes(DATA)

    async def test() -> None:
        async with (
            aio.Client(address) as sender,
            aio.Client(address) as receiver,
            receiver.files.receive(b"files/", folder=tmp_path) as files,
        ):
            sending = asyncio.create_task(sender.files.send(b"files/a", tmp_path / "source"))
            receiving = asyncio.create_task(files.receive(timeout=PATIENCE))
            await until(copied.is_set)
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            go_on.set()
            assert (await files.receive(timeout=PATIENCE)).file.read_bytes() == DATA
            await sending

    run(test())


def test_a_copy_that_is_stopped_leaves_nothing_behind(
    server: HubThread, address: str, tmp_path: Path, slow_copy: tuple[threading.Event, threading.Event]
) -> None:
    copied, go_on = slow_copy
    folder = tmp_path / "received"
    folder.mkdir()
    (tmp_path / "source").write_bytes(DATA)
    with blocking.Client(address) as sender, blocking.Client(address) as receiver:
        files = receiver.files.receive(b"files/", folder=folder)
        sending = in_background(lambda: failed(lambda: sender.files.send(b"files/a", tmp_path / "source")))
        receiving = in_background(lambda: failed(lambda: files.receive(timeout=PATIENCE)))
        assert copied.wait(PATIENCE)
        assert files._core._copying is not None
        files._core._copying[0]._is_left = True
        go_on.set()
        assert receiving() == "files/a: copy that was stopped"
        assert sending() == "nobody has files/a: copy that was stopped"
        files.unsubscribe()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("killed", ["left", "top", "right"])
def test_a_file_comes_over_two_relays_though_a_hub_was_killed(killed: str, programs: Programs, tmp_path: Path) -> None:
    """The offer comes again, and the bytes go through no hub."""
    programs.start("top")
    for name in ("left", "right"):
        programs.start(name, "top")
        programs.wait_until_joined(name)
    options: dict[str, Any] = {"reconnect": True, "timeout": PATIENCE}
    with (
        blocking.Client(programs.address("left"), **options) as sender,
        blocking.Client(programs.address("right"), **options) as receiver,
        receiver.files.receive(b"files/*", folder=tmp_path, timeout=PATIENCE) as files,
    ):
        programs.kill(killed)
        sent = in_background(lambda: sender.files.send(b"files/a", DATA, timeout=PATIENCE))
        programs.start_again(killed)
        assert files.receive(timeout=PATIENCE).file.read_bytes() == DATA
        assert sent().receivers == 1
