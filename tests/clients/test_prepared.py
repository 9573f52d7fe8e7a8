"""Packets whose payload is written in place."""

from __future__ import annotations

import pytest
from clients.makers import Make
from support import HubThread

from sbuslib.errors import (
    KeyFormatError,
    PayloadError,
)
from sbuslib.limits import PACKET_BYTES
from sbuslib.wire.packets import Message


def test_prepare_message(server: HubThread, make: Make) -> None:
    client = make()
    client.subscribe(b"")
    message = client.prepare_message(b"a/b")
    assert len(message.payload) == PACKET_BYTES - len(b"MSG a/b\0")
    for text in (b"hello", b"world!", b""):
        message.payload[: len(text)] = text
        message.send(len(text))
        assert client.receive(10) == Message(b"a/b", text)
    message.send(len(message.payload))
    assert len(client.receive(10).payload) == len(message.payload)
    for size in (-1, len(message.payload) + 1):
        with pytest.raises(PayloadError):
            message.send(size)
    with pytest.raises(PayloadError):
        client.prepare_message(b"k" * PACKET_BYTES)
    with pytest.raises(KeyFormatError):
        client.prepare_message(b"\0")
