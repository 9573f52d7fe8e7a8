"""A recorder that keeps the last messages in memory, and writes them when something has happened."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest
from journal.format.journals import records_of
from support import PATIENCE, HubThread

from sbuslib.blocking import Client
from sbuslib.journal.black_box import FORGOTTEN, BlackBox


class Watched:
    """A black box in a thread of its own."""

    def __init__(self, box: BlackBox, written: list[int], came: threading.Semaphore) -> None:
        self.box = box
        self.written = written
        self._came = came

    def wait(self) -> int:
        """Wait until it has written once more; how many messages."""
        assert self._came.acquire(timeout=PATIENCE)
        return self.written[-1]


@contextmanager
def watching(address: str, journal: str, **options: Any) -> Iterator[Watched]:
    written, came = list[int](), threading.Semaphore(0)

    def on_written(count: int) -> None:
        written.append(count)
        came.release()

    box = BlackBox(address, journal, on_written=on_written, **{"seconds": 3_600.0, **options})
    thread = threading.Thread(target=box.run)
    thread.start()
    try:
        yield Watched(box, written, came)
    finally:
        box.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def found(journal: str) -> list[tuple[bytes, bytes] | tuple[str, int]]:
    return [
        (row.cause or "", row.lost or 0) if row.key is None or row.payload is None else (row.key, row.payload)
        for row in records_of(journal)
    ]


def test_messages_are_recorded_when_one_comes_under_the_key(address: str, journal: str) -> None:
    with HubThread(address), Client(address) as client, watching(address, journal, on=(b"alarm/",)) as watched:
        for number in range(3):
            client.publish(b"room", b"%d" % number)
        client.publish(b"alarm/fire", b"!")
        assert watched.wait() == 4
        client.publish(b"room", b"after")
        client.sync()
    assert found(journal) == [(b"room", b"0"), (b"room", b"1"), (b"room", b"2"), (b"alarm/fire", b"!")]
    assert watched.written == [4]


def test_a_trigger_records_what_came_since_the_last_one(address: str, journal: str) -> None:
    with HubThread(address), Client(address) as client, watching(address, journal, patterns=(b"room",)) as watched:
        for payload in (b"1", b"2"):
            client.publish(b"room", payload)
            client.publish(b"hall", payload)
            client.sync()
            while watched.box.received < int(payload):
                gevent.sleep(0.001)
            watched.box.trigger()
            assert watched.wait() == 1
    assert found(journal) == [(b"room", b"1"), (b"room", b"2")]


@pytest.mark.parametrize("bound", [{"most_bytes": 5_000}, {"seconds": 1e-9}])
def test_what_is_too_much_or_too_old_is_forgotten_and_counted(
    address: str, journal: str, bound: dict[str, float]
) -> None:
    with HubThread(address), Client(address) as client, watching(address, journal, on=(b"end",), **bound) as watched:
        for number in range(100):
            client.publish(b"room", b"%1000d" % number)
        client.publish(b"end", b"")
        kept = watched.wait()
    rows = found(journal)
    assert rows[0] == (FORGOTTEN, 101 - kept)
    assert len(rows) == 1 + kept
    assert kept <= 5
    if "most_bytes" in bound:
        assert rows[-1] == (b"end", b"")
