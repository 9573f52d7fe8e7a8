"""The clients of a hub: how they come and go, and what is logged of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import pytest
from accounting import numbers
from flooding import flood, slow
from support import Peer, eventually

from sbuslib import Hub

pytest_plugins = ["accounting_fixtures"]
Bus = Callable[..., Hub]


Connect = Callable[..., Peer]


def test_a_violation_is_logged_once_and_counted_after(
    hub: Hub, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        peer = connect()
        peer.send(b"nonsense")
        assert peer.is_disconnected()
    assert hub.statistics().violations == {"unknown verb": 5}
    told = [record for record in caplog.records if record.name == "sbuslib"]
    assert len(told) == 1
    assert told[0].levelno == logging.WARNING
    text = told[0].getMessage()
    assert str(os.getpid()) in text
    assert "unknown verb" in text


def test_good_behaviour_is_not_logged(hub: Hub, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    peer = connect()
    peer.subscribe(b"a")
    peer.publish(b"a", b"x")
    peer.barrier()
    peer.close()
    eventually(lambda: hub.statistics().clients == 0)
    assert caplog.records == []


def test_secrets_are_not_logged(hub: Hub, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for packet in (b"MSG !/cred/x/y/hunter2\0hunter2", b"SUB !/cred/9/9/9/hunter2", b"hunter2", b"MSG !/hunter2\0"):
        peer = connect()
        peer.send(packet)
        assert peer.is_disconnected()
    assert "hunter2" not in caplog.text


def test_a_kicked_client_is_told_why(bus: Bus, connect: Connect) -> None:
    hub = bus()
    reader = connect()
    reader.send(b"CMSG notices/on")
    reader.subscribe(b"k")
    hub.publish(b"k", b"before")
    reader.send(b"nonsense")
    assert reader.receive() == b"MSG k\0before"
    assert reader.receive() == b"CMSG notice/kicked\0unknown verb"
    assert reader.is_disconnected()


@pytest.mark.parametrize(("modes", "reason"), [
    ((b"blocking/soft/error",), b"does not keep up, and asked for error"),
    ((b"blocking/soft/block",), b"held publishers back for too long"),
])  # fmt: skip
def test_a_client_that_does_not_keep_up_is_told_why(
    bus: Bus, connect: Connect, modes: tuple[bytes, ...], reason: bytes
) -> None:
    """Although what was sent to it has filled the kernel's buffer."""
    hub = bus(block_timeout=0.01)
    reader, publisher = connect(), connect()
    receiving = slow(hub, reader, b"notices/on", *modes)
    flood(publisher, 0, 3)
    eventually(lambda: receiving.outgoing.closed)
    assert numbers([reader.receive()]) == [0]
    assert reader.receive() == b"CMSG notice/kicked\0" + reason
    assert reader.is_disconnected()
