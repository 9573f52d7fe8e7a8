"""What tests do at descriptor stores: ask as anybody, and play descriptor stores that do something else."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from accounting import acting_as
from support import PATIENCE

from sbuslib.clients.fds.descriptor_client import DescriptorClient
from sbuslib.clients.fds.descriptor_store import DescriptorStore, store_address
from sbuslib.wire.addresses import AbstractAddress
from sbuslib.wire.offers import ASK, TOKEN_BYTES, Offer

T = TypeVar("T")
STRANGER = 12_345
NAME = os.urandom(TOKEN_BYTES)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Carry out a coroutine that blocks and never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it suspended")


def offer_of(store: DescriptorStore, token: bytes, size: int = 1) -> Offer:
    return Offer("frame", size, b"", store.name, token, store.in_folder)


def memory(store: DescriptorStore, data: bytes = b"x" * 10_000) -> Offer:
    """Offer memory at a descriptor store."""
    return offer_of(store, store.offer_frame(memoryview(data)), len(data))


def fetch(client: DescriptorClient, *offers: Offer) -> list[int | None]:
    return run(client.fetch(offers, os.geteuid()))


def read(descriptor: int | None) -> bytes:
    """All bytes behind a descriptor, which is closed."""
    assert descriptor is not None
    try:
        return os.pread(descriptor, 1 << 30, 0)
    finally:
        os.close(descriptor)


def visit(name: bytes, folder: str | None = None) -> socket.socket:
    """A raw connection to a descriptor store."""
    address = store_address(name, folder)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(PATIENCE)
    sock.connect(address.name if isinstance(address, AbstractAddress) else address.path)
    return sock


def visit_as_stranger(name: bytes) -> socket.socket:
    with acting_as(STRANGER):
        return visit(name)


def ask(sock: socket.socket, *tokens: bytes) -> tuple[bytes, list[int]]:
    """Ask at a raw connection: the answer and its descriptors."""
    sock.send(ASK + b"".join(tokens))
    words, descriptors, _, _ = socket.recv_fds(sock, 100, 100)
    return words, descriptors


@contextmanager
def playing(play: Callable[[socket.socket], object], connections: int = 1) -> Iterator[bytes]:
    """A descriptor store that does what ``play`` does with each connection; its name."""
    name = os.urandom(TOKEN_BYTES)
    address = store_address(name, None)
    assert isinstance(address, AbstractAddress)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address.name)
        listener.listen()
        listener.settimeout(PATIENCE)

        def serve() -> None:
            for _ in range(connections):
                sock, _ = listener.accept()
                with sock:
                    sock.settimeout(PATIENCE)
                    play(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        yield name
        thread.join(PATIENCE)


def answering(words: bytes, descriptors: Sequence[int] = ()) -> Callable[[socket.socket], object]:
    """Play a descriptor store that answers each request with this."""

    def play(sock: socket.socket) -> None:
        with suppress(BrokenPipeError):  # who asked has gone
            while sock.recv(1_000):
                socket.send_fds(sock, [words], descriptors)

    return play
