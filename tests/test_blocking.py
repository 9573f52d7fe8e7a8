"""The blocking client: threads, and no gevent."""

from __future__ import annotations

import contextlib
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from support import PATIENCE, HubThread, own_key, python

from sbuslib import blocking
from sbuslib.errors import DisconnectedError
from sbuslib.kernel.areas import SLOT_BYTES
from sbuslib.limits import PACKET_BYTES


@pytest.fixture
def server(address: str) -> Iterator[HubThread]:
    with HubThread(address) as server:
        yield server


def test_the_blocking_client_never_imports_gevent(server: HubThread, address: str) -> None:
    code = f"""
import sys
from sbuslib import blocking
with blocking.Client({address!r}, reconnect=True) as client:
    client.subscribe(b"a", callback=print)
    client.publish(b"a", b"x")
    client.publish_many([(b"b", b"y")])
    client.sync()
    print(client.receive(10).payload)
    client.run(timeout=0)
print([name for name in sys.modules if name.partition(".")[0] in ("gevent", "greenlet", "zope")])
"""
    assert python("-c", code) == "b'x'\n[]\n"


def test_one_of_several_waiting_threads_gets_the_message(
    server: HubThread, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the threads that wait for one message gets it. The others continue to wait.

    What lies between seeing that there is a message and taking it is a few instructions; made longer here.
    """
    original = blocking.Client._until

    def slowly(self: blocking.Client, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        time.sleep(0.005)

    with blocking.Client(address) as client:
        client.subscribe(b"a")
        monkeypatch.setattr(blocking.Client, "_until", slowly)
        results: queue.SimpleQueue[object] = queue.SimpleQueue()

        def take() -> None:
            try:
                results.put(client.receive(PATIENCE).payload)
            except Exception as error:
                results.put(error)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(4):
            server.call(server.hub.publish, b"a", b"%d" % number)
            assert results.get(timeout=PATIENCE) == b"%d" % number
        for thread in threads:
            thread.join()


def test_several_threads_that_switch_all_the_time(server: HubThread, address: str) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with blocking.Client(address) as client:
            client.subscribe(b"a")
            results: queue.SimpleQueue[object] = queue.SimpleQueue()

            def work() -> None:
                try:
                    for number in range(50):
                        client.publish(b"a", b"%d" % number)
                        client.publish_many([(b"a", b"x")] * 3)
                        for _ in range(4):
                            client.receive(PATIENCE)
                        assert client.whoami() == own_key()
                        client.sync()
                    results.put(None)
                except Exception as error:
                    results.put(error)

            threads = [threading.Thread(target=work) for _ in range(6)]
            for thread in threads:
                thread.start()
            assert [results.get(timeout=PATIENCE * 2) for _ in threads] == [None] * 6
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)


def test_close_wakes_a_thread_that_waits_for_room(server: HubThread, address: str) -> None:
    with blocking.Client(address, timeout=None) as client:
        release = threading.Event()
        held = threading.Thread(target=server.call, args=(release.wait,))  # the hub's thread does nothing meanwhile
        held.start()
        outcome: queue.SimpleQueue[object] = queue.SimpleQueue()

        def send() -> None:
            try:
                while True:
                    client.publish(b"a", bytes(10_000))
            except Exception as error:
                outcome.put(error)

        sending = threading.Thread(target=send, daemon=True)
        try:
            with contextlib.suppress(BlockingIOError):
                while True:
                    client.publish(b"a", bytes(10_000), flags=socket.MSG_DONTWAIT)
            sending.start()
            while not in_poll(sending):
                time.sleep(0.001)
            client.close()
            assert isinstance(outcome.get(timeout=5), DisconnectedError)
        finally:
            release.set()
            held.join()
        sending.join()


def in_poll(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name == "wait"


def test_memory_of_a_client_is_bounded_by_its_area(server: HubThread, address: str) -> None:
    """A client that receives small messages must not use memory for the longest packet in each slot."""
    with blocking.Client(address) as client:
        client.subscribe(b"a")
        client.publish(b"a", b"x")
        client.receive(PATIENCE)
        area = client._area
        client.publish(b"a", b"x" * (PACKET_BYTES - 6))
        assert len(client.receive(PATIENCE).payload) == PACKET_BYTES - 6
        assert client._area is area
        assert area is not None
        assert len(area.data) < (SLOT_BYTES + 8_192) * client.limits.batch
