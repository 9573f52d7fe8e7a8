"""Sockets that are closed while callers wait for them."""

from __future__ import annotations

import contextlib
import queue
import socket
import sys
import threading
import time

import gevent
import pytest
from clients.makers import MakeClient, fill, greeted
from support import TESTS, FakeHub, HubThread, python

from sbuslib import blocking
from sbuslib.clients.held_sockets import HeldSockets
from sbuslib.errors import DisconnectedError


def test_the_last_caller_that_waits_for_a_socket_closes_it(pair: tuple[socket.SocketType, socket.SocketType]) -> None:
    one, other = pair
    held = HeldSockets(threading.RLock())
    with held.holding(one):
        with held.holding(one):
            held.close(one)
        assert one.fileno() >= 0
    assert one.fileno() < 0
    held.close(other)  # for which nobody waits
    assert other.fileno() < 0


CLOSED_WHILE_SENDING = """
import socket, sys
import gevent
from support import FakeHub
from sbuslib import Client
from sbuslib.errors import DisconnectedError
with FakeHub(sys.argv[1]) as fake:
    greeting = gevent.spawn(fake.greet)
    client = Client(sys.argv[1], timeout=None)
    try:
        while True:
            client.publish(b"a", bytes(10_000), flags=socket.MSG_DONTWAIT)
    except BlockingIOError:
        pass
    def send():
        try:
            client.publish(b"a", b"x")
        except DisconnectedError as error:
            return error
    sending = gevent.spawn(send)
    gevent.sleep(0.01)
    client.close()
    with gevent.Timeout(5, AssertionError("it waits for ever")):
        print(sending.get())
"""


def test_close_wakes_greenlets_that_wait_for_room(address: str) -> None:
    """The test has a process of its own: to close a descriptor that libev watches aborts the process."""
    assert "closed" in python("-c", CLOSED_WHILE_SENDING, address, PYTHONPATH=str(TESTS))


def test_the_end_of_the_hub_wakes_greenlets_that_wait_for_room(fake: FakeHub, client: MakeClient) -> None:
    stuck, peer = greeted(fake, client, timeout=None)
    fill(stuck)
    sending = gevent.spawn(stuck.publish, b"a", b"x")
    gevent.sleep(0)
    peer.close()
    with pytest.raises(DisconnectedError):
        sending.get(timeout=10)


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
