"""Which callbacks a client calls for which messages."""

from __future__ import annotations

import pytest
from clients.makers import Make
from support import HubThread

from sbuslib.wire.packets import Message


def test_callbacks(server: HubThread, make: Make) -> None:
    failures: list[tuple[Exception, Message]] = []
    client = make(on_error=lambda error, message: failures.append((error, message)))
    got: list[tuple[str, bytes]] = []
    client.subscribe(b"a/", callback=lambda message: got.append(("a", message.payload)))
    client.subscribe(b"a/b", callback=lambda message: got.append(("ab", message.payload)))
    client.subscribe(b"bad", callback=lambda message: 1 / 0)
    client.subscribe(b"end", callback=lambda message: client.close())
    client.subscribe(b"nobody")
    client.publish_many(
        [(b"a/b", b"1"), (b"a/c", b"2"), (b"nobody", b"3"), (b"bad", b"4"), (b"a/d", b"5"), (b"end", b"")]
    )
    client.run()
    assert sorted(got[:2]) == [("a", b"1"), ("ab", b"1")]
    assert got[2:] == [("a", b"2"), ("a", b"5")]
    assert [(type(error), message.payload) for error, message in failures] == [(ZeroDivisionError, b"4")]


def test_callbacks_without_on_error(server: HubThread, make: Make) -> None:
    client = make()
    got: list[bytes] = []
    client.subscribe(b"bad", callback=lambda message: 1 / 0)
    client.subscribe(b"good", callback=lambda message: got.append(message.payload))
    client.publish(b"bad")
    client.publish(b"good", b"x")
    with pytest.raises(ZeroDivisionError):
        client.run()
    client.sync()
    client.run(timeout=0)
    assert got == [b"x"]


def test_callbacks_end_with_the_last_subscription(server: HubThread, make: Make) -> None:
    client = make()
    got: list[bytes] = []
    callback = lambda message: got.append(message.payload)  # noqa: E731
    client.subscribe(b"a", callback=callback)
    client.subscribe(b"a", callback=callback)
    client.subscribe(b"")
    client.unsubscribe(b"a")
    client.publish(b"a", b"1")
    client.sync()
    client.run(timeout=0)
    client.unsubscribe(b"a")
    client.publish(b"a", b"2")
    client.sync()
    client.run(timeout=0)
    assert got == [b"1"]


def test_callbacks_use_the_separator_of_the_hub(address: str, make: Make) -> None:
    with HubThread(address, separator="."):
        client = make()
        got: list[bytes] = []
        client.subscribe(b"a.*", callback=lambda message: got.append(message.payload))
        client.publish(b"a.b/c", b"x")
        client.sync()
        client.run(timeout=0)
        assert got == [b"x"]
        client.close()
