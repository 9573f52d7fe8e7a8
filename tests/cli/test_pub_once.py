"""Publishing a single message without a client: against hubs, and against what a hub may say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from support import PATIENCE, HubThread

from sbuslib.cli.pub import publish_once
from sbuslib.errors import DisconnectedError


@pytest.mark.parametrize(
    ("key", "payload"), [(b"a\0b", b""), (b"!/cred/1/2/3/x", b""), (b"a/!/b", b""), (b"key", bytes(70_000))]
)
def test_what_is_out_of_the_ordinary_is_left_to_a_client(address: str, key: bytes, payload: bytes) -> None:
    with HubThread(address):
        assert not publish_once(address, key, payload)


@pytest.mark.parametrize("place", ["/nowhere/bus", "/dev/fd/7", "/dev/unix/abstract/0041", "x" * 200])
def test_addresses_that_are_not_connected_to_are_left_to_a_client(place: str) -> None:
    assert not publish_once(place, b"key", b"payload")


@pytest.fixture
def stranger(address: str) -> Iterator[Callable[[Callable[[socket.socket], object]], str]]:
    """Serve one connection in a thread in a way of one's own; the address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        listener.settimeout(PATIENCE)
        threads: list[threading.Thread] = []

        def serve(work: Callable[[socket.socket], object]) -> str:
            def run() -> None:
                with listener.accept()[0] as sock:
                    work(sock)

            threads.append(threading.Thread(target=run))
            threads[0].start()
            return address

        yield serve
        for thread in threads:
            thread.join()


def read_question(sock: socket.socket) -> None:
    """Read up to the question that ends what is published."""
    while (packet := sock.recv(999)) != b"CMSG !/cred/whoami\0":
        assert packet


Stranger = Callable[[Callable[[socket.socket], object]], str]


def test_the_reason_of_a_kick_is_told(stranger: Stranger) -> None:
    def kick(sock: socket.socket) -> None:
        read_question(sock)
        sock.send(b"CMSG notice/kicked\0not today")

    with pytest.raises(DisconnectedError, match=r"the hub closed the connection \(not today\)"):
        publish_once(stranger(kick), b"key", b"payload")


def test_the_reason_is_told_if_the_hub_read_nothing(stranger: Stranger) -> None:
    """Then the kernel tells of a connection that was reset, before it hands over what the hub has sent."""
    with pytest.raises(DisconnectedError, match=r"\(not you\)"):
        publish_once(stranger(lambda sock: sock.sendall(b"CMSG notice/kicked\0not you")), b"key", b"payload")


def test_other_packets_are_passed_over(stranger: Stranger) -> None:
    def answer(sock: socket.socket) -> None:
        read_question(sock)
        for packet in (b"MSG other\0x", b"CMSG notice/lost\0queue 1 2", b"CMSG !/cred/whoami\0!/cred/1/2/3"):
            sock.send(packet)

    assert publish_once(stranger(answer), b"key", b"payload")


def test_a_hub_that_does_not_answer_is_told(stranger: Stranger) -> None:
    release = threading.Event()
    try:
        with pytest.raises(TimeoutError, match="the hub did not answer in time"):
            publish_once(stranger(lambda sock: release.wait()), b"key", b"payload", timeout=0.05)
    finally:
        release.set()
