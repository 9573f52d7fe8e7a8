"""Sockets: listening, connecting, and what the kernel tells of them."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeAlias

import pytest
from support import open_descriptors

from sbuslib.errors import AddressError, AddressInUseError
from sbuslib.kernel import sockets
from sbuslib.kernel.peers import peer_credentials
from sbuslib.kernel.sockets import (
    Listener,
    accept,
    connect,
    unread_bytes,
    wait,
)
from sbuslib.limits import PACKET_BYTES
from sbuslib.secrets import Credentials
from sbuslib.wire.addresses import AbstractAddress, DescriptorAddress, PathAddress

Socket: TypeAlias = socket.SocketType
BUFFER = 425_984


def test_connect_and_accept(address: str) -> None:
    listener = Listener(PathAddress(address))
    with pytest.raises(BlockingIOError):
        accept(listener.socket, BUFFER)
    client = connect(PathAddress(address), BUFFER)
    served = accept(listener.socket, BUFFER)
    try:
        me = Credentials(gid=os.getgid(), uid=os.getuid(), pid=os.getpid())
        assert peer_credentials(served) == peer_credentials(client) == me
        for sock in (client, served):
            assert type(sock) is socket.SocketType
            assert not sock.getblocking()
            assert not os.get_inheritable(sock.fileno())
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= min(BUFFER, 425_984)
        client.send(b"x" * PACKET_BYTES)
        assert len(served.recv(1_000_000)) == PACKET_BYTES
    finally:
        client.close()
        served.close()
        listener.close()
    assert not os.path.exists(address)


def test_unread_bytes_counts_what_the_peer_has_not_read(pair: tuple[Socket, Socket]) -> None:
    one, other = pair
    assert unread_bytes(one) == 0
    one.send(bytes(1_000))
    assert unread_bytes(one) >= 1_000
    other.recv(2_000)
    assert unread_bytes(one) == 0


@pytest.mark.parametrize("mode", [0o700, 0o770, 0o777, 0o600])
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_file_has_the_mode_that_was_asked_for(address: str, mode: int, umask: int) -> None:
    before = os.umask(umask)
    try:
        listener = Listener(PathAddress(address), mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(address).st_mode) == mode
    listener.close()


def test_a_listener_that_takes_the_file_over_gives_it_its_mode_and_removes_it(address: str) -> None:
    first = Listener(PathAddress(address), mode=0o700)
    second = Listener(DescriptorAddress(first.socket.fileno()))
    second.take_file(address, 0o770)
    first.release()
    assert (first.owns_file, second.owns_file) == (False, True)
    assert stat.S_IMODE(os.stat(address).st_mode) == 0o770
    second.close()
    assert not os.path.exists(address)


def test_an_address_in_use_is_refused(address: str) -> None:
    listener = Listener(PathAddress(address))
    with pytest.raises(AddressInUseError) as caught:
        Listener(PathAddress(address))
    assert caught.value.errno == errno.EADDRINUSE
    assert address in str(caught.value)
    with pytest.raises(AddressInUseError):
        Listener(PathAddress(address), reuse=True)
    connect(PathAddress(address), BUFFER).close()
    listener.close()


def test_a_socket_that_nobody_listens_at_is_replaced(address: str) -> None:
    Listener(PathAddress(address)).release()
    replacing = Listener(PathAddress(address))
    connect(PathAddress(address), BUFFER).close()
    replacing.close()
    assert os.listdir(os.path.dirname(address)) == []


def test_of_hubs_that_start_at_once_one_listens_and_the_others_are_refused(address: str) -> None:
    start = Barrier(8)

    def run() -> Listener | None:
        start.wait()
        try:
            return Listener(PathAddress(address))
        except AddressInUseError:
            return None

    with ThreadPoolExecutor(8) as threads:
        for _ in range(30):
            begun = [one for one in threads.map(lambda _: run(), range(8)) if one is not None]
            assert len(begun) == 1
            connect(PathAddress(address), BUFFER).close()
            begun[0].release()  # as one that is killed
            assert os.listdir(os.path.dirname(address)) == [os.path.basename(address)]


def test_a_dead_socket_is_left_while_it_is_not_certain_that_it_is(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Listener(PathAddress(address)).release()
    monkeypatch.setattr(sockets, "_LOCK_SECONDS", 0.01)
    with open(f"{address}.lock", "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # of a hub that begins, or of a user who wants to be in the way
        with pytest.raises(AddressInUseError, match=r"nobody listens at: .* a process has .*\.lock; see -r"):
            Listener(PathAddress(address))
        Listener(PathAddress(address), reuse=True).close()
        Listener(PathAddress(address)).close()


def test_only_a_socket_or_an_empty_file_is_replaced(address: str) -> None:
    with open(address, "w", encoding="ascii") as file:
        file.write("precious")
    with pytest.raises(AddressInUseError, match="neither a socket nor an empty file"):
        Listener(PathAddress(address), reuse=True)
    assert os.path.getsize(address) == 8


def test_a_symbolic_link_is_not_followed(address: str, folder: str) -> None:
    target = os.path.join(folder, "target")
    owner = Listener(PathAddress(target))
    os.symlink(target, address)
    with pytest.raises(AddressInUseError):
        Listener(PathAddress(address), reuse=True)
    assert os.path.exists(target)
    owner.close()


def test_close_leaves_the_socket_of_another_hub(address: str) -> None:
    old = Listener(PathAddress(address))
    os.unlink(address)
    new = Listener(PathAddress(address))
    old.close()
    assert os.path.exists(address)
    os.unlink(address)
    new.close()  # nor does it matter that it is gone


def test_the_file_is_removed_after_a_change_of_folder(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    listener = Listener(PathAddress("bus"))
    monkeypatch.chdir("/")
    listener.close()
    assert os.listdir(folder) == []


def test_listening_in_a_folder_that_does_not_exist_raises(folder: str) -> None:
    with pytest.raises(FileNotFoundError):
        Listener(PathAddress(os.path.join(folder, "missing", "bus")))


def test_listening_at_an_abstract_address() -> None:
    address = AbstractAddress.random()
    listener = Listener(address)
    assert listener.is_abstract
    with pytest.raises(AddressInUseError):
        Listener(address, reuse=True)
    connect(address, BUFFER).close()
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        connect(address, BUFFER)


def test_a_passed_descriptor_of_another_kind_is_refused(address: str) -> None:
    with pytest.raises(AddressError, match="no socket"):
        Listener(DescriptorAddress(9_999))
    with open(os.devnull, encoding="ascii") as file, pytest.raises(AddressError, match="no socket"):
        Listener(DescriptorAddress(file.fileno()))
    for family, kind in ((socket.AF_UNIX, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_STREAM)):
        with socket.socket(family, kind) as wrong:
            before = open_descriptors()
            with pytest.raises(AddressError, match="sequenced-packet") as caught:
                Listener(DescriptorAddress(wrong.fileno()))
            assert open_descriptors() == before, f"whoever keeps the error keeps no copy: {caught.value}"
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ends[0], ends[1], pytest.raises(AddressError, match="cannot listen"):
        Listener(DescriptorAddress(ends[0].fileno()))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("is_ours", [True, False])
def test_who_listens_again_is_whom_new_clients_see_unless_it_is_another_user(address: str, is_ours: bool) -> None:
    listener = Listener(PathAddress(address))
    child = os.fork()
    if not child:
        if not is_ours:
            os.setuid(12_345)
        listener.listen_again(8)
        os._exit(0)
    os.waitpid(child, 0)
    client = connect(PathAddress(address), BUFFER)
    assert peer_credentials(client).pid == (child if is_ours else os.getpid())
    client.close()
    listener.close()


def test_wait(pair: tuple[Socket, Socket]) -> None:
    here, there = pair
    assert wait(here, select.POLLOUT, 0)
    assert not wait(here, select.POLLIN, 0)
    assert not wait(here, select.POLLIN, -1)
    there.send(b"x")
    assert wait(here, select.POLLIN, None)
