"""``sbus gateway`` as a program: two gateways join two buses."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from support import PATIENCE, HubThread

from sbuslib.blocking import Client

Listening = Callable[..., tuple[Any, str]]


def test_what_is_exported_and_imported_crosses(listening: Listening, bus: HubThread, folder: str, path: str) -> None:
    with HubThread(f"{folder}/far") as far, Client(path) as here, Client(far.hub.address) as there:
        _, address = listening("gateway", "--bus", path, "--listen", ":0", "--export", "room/", "log/")
        listening(
            *("gateway", "--bus", far.hub.address, "--listen", ":0", "--connect", address, "--import", "room/", "hall/")
        )
        there.subscribe(b"hall/", b"log/", b"room/")
        while True:  # a gateway does not tell when the other one knows what it wants
            here.publish_many([(b"hall/1", b"not exported"), (b"log/1", b"not imported"), (b"room/1", b"crosses")])
            try:
                message = there.receive(timeout=0.1)
                break
            except TimeoutError:
                continue
        assert (message.key, message.payload) == (b"room/1", b"crosses")


def carry(here: Client, there: Client, payload: bytes) -> None:
    """Publish until one of these messages has come."""
    while True:
        here.publish(b"room/1", payload)
        with suppress(TimeoutError):
            if there.receive(timeout=0.05).payload == payload:
                return


def test_a_gateway_goes_on_when_its_hub_is_back(listening: Listening, bus: HubThread, folder: str, path: str) -> None:
    with HubThread(f"{folder}/far") as far, Client(far.hub.address) as there:
        process, address = listening("gateway", "-a", path, "--listen", ":0", "--export", "room/")
        listening("gateway", "-a", far.hub.address, "--listen", ":0", "--connect", address, "--import", "room/")
        there.subscribe(b"room/")
        with Client(path) as here:
            carry(here, there, b"before")
        bus.stop()
        assert process.stderr.readline() == b"sbus: gateway bus: the bus has gone; waiting for it\n"
        with HubThread(path), Client(path) as here:
            assert process.stderr.readline() == b"sbus: gateway bus: joined the bus again\n"
            carry(here, there, b"after")
        assert process.stderr.readline() == b"sbus: gateway bus: the bus has gone; waiting for it\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == b""


def test_a_signal_ends_a_gateway_with_status_0(listening: Listening, bus: HubThread, path: str) -> None:
    process, _ = listening("gateway", "--bus", path, "--listen", ":0", "--export", "a")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert process.stderr.read() == b""
