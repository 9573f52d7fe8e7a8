"""Sockets and batches."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import tracemalloc
from collections.abc import Callable, Iterator
from typing import TypeAlias, cast

import pytest
from support import python

from sbuslib import seqpacket
from sbuslib.addresses import AbstractAddress, DescriptorAddress, PathAddress
from sbuslib.errors import AddressError, AddressInUseError
from sbuslib.limits import CONTROL_EXTRA, PACKET_BYTES
from sbuslib.secrets import Credentials
from sbuslib.seqpacket import (
    Area,
    Gather,
    Listener,
    PlainArea,
    accept,
    connect,
    make_area,
    peer_credentials,
    unread_bytes,
    wait,
)

Socket: TypeAlias = socket.SocketType
BUFFER = 425_984


@pytest.fixture
def pair(engine: str) -> Iterator[tuple[Socket, Socket]]:
    ends = [socket.SocketType(fileno=end.detach()) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
    for end in ends:
        end.setblocking(False)
        seqpacket.grow_send_buffer(end, BUFFER)
    yield ends[0], ends[1]
    for end in ends:
        end.close()


@pytest.fixture
def area(engine: str) -> Iterator[PlainArea]:
    area = make_area(8, 1_000)
    yield area
    area.close()


def test_the_environment_chooses_the_engine(engine: str, area: PlainArea) -> None:
    assert type(area) is (Area if engine == "batched" else PlainArea)


def test_receive(pair: tuple[Socket, Socket], area: PlainArea) -> None:
    here, there = pair
    assert area.receive(there) == []
    packets = [b"a" * length for length in (1, 999, 1_000, 7)]
    for packet in packets:
        here.send(packet)
    lengths = area.receive(there)
    assert lengths == [1, 999, 1_000, 7]
    assert [area.packet(slot, length) for slot, length in enumerate(lengths)] == packets
    assert [area.data[offset] for offset in area.offsets[:4]] == [ord("a")] * 4


def test_receive_no_more_than_asked(pair: tuple[Socket, Socket], area: PlainArea) -> None:
    here, there = pair
    for number in range(20):
        here.send(b"%d" % number)
    assert len(area.receive(there, 1)) == 1
    assert area.packet(0, 1) == b"0"
    assert len(area.receive(there, 3)) == 3
    assert len(area.receive(there)) == 8
    assert len(area.receive(there, 100)) == 8
    assert area.packet(7, 2) == b"19"
    assert area.receive(there) == area.receive(there, 1) == []


def test_a_packet_that_is_too_long_tells_so(pair: tuple[Socket, Socket], area: PlainArea) -> None:
    here, there = pair
    here.send(b"x" * 1_001)
    here.send(b"x" * 5_000)
    here.send(b"y")
    lengths = area.receive(there)
    assert lengths[0] > area.slot_bytes
    assert lengths[1] > area.slot_bytes
    assert area.packet(2, lengths[2]) == b"y"


def test_the_longest_packets(pair: tuple[Socket, Socket]) -> None:
    here, there = pair
    area = make_area(2)
    try:
        for length in (PACKET_BYTES, PACKET_BYTES + CONTROL_EXTRA):
            assert Gather().send(here, [b"x" * length]) == 1
            assert area.receive(there) == [length]
            assert area.send(there, [0], [length]) == 1
            assert len(here.recv(1_000_000)) == length
    finally:
        area.close()


def test_the_end(pair: tuple[Socket, Socket], area: PlainArea) -> None:
    here, there = pair
    here.send(b"last")
    here.close()
    lengths = area.receive(there)
    assert lengths[:2] == [4, 0]
    assert not any(lengths[1:])
    assert area.receive(there)[0] == 0  # and again


def test_an_error_after_some_packets_does_not_take_them_along() -> None:
    """As recvmmsg(2): what came first is given first, and the error with the next call."""

    class Failing:
        calls = 0

        def recv_into(self, *arguments: object) -> int:
            self.calls += 1
            if self.calls > 2:
                raise OSError(errno.ENOMEM, "no memory")
            return 10 * self.calls

    area = PlainArea(8, 1_000)
    sock = cast(Socket, Failing())
    assert area.receive(sock) == [10, 20]
    with pytest.raises(OSError, match="no memory"):
        area.receive(sock)
    area.close()


@pytest.mark.parametrize("most", [None, 1, 3])
def test_an_end_with_unread_input_loses_nothing(pair: tuple[Socket, Socket], area: PlainArea, most: int | None) -> None:
    """The kernel reports ECONNRESET first; what the peer had sent comes after it."""
    here, there = pair
    there.send(b"never read")
    for number in range(10):
        here.send(b"%d" % number)
    here.close()
    got = []
    while True:
        lengths = area.receive(there, most)
        got += [area.packet(slot, length) for slot, length in enumerate(lengths) if length]
        if not all(lengths):
            break
    assert got == [b"%d" % number for number in range(10)]


def test_an_end_with_unread_input_told_by_a_send(pair: tuple[Socket, Socket], area: PlainArea) -> None:
    here, there = pair
    there.send(b"never read")
    here.send(b"last")
    here.close()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        Gather().send(there, [b"x"])
    assert area.receive(there)[:2] == [4, 0]


@pytest.mark.parametrize("slots", [[0], [3], [0, 1, 2, 3], [1, 2], [0, 2, 3], [3, 5, 7], [7], list(range(8))])
def test_send_from_where_it_lies(pair: tuple[Socket, Socket], area: PlainArea, slots: list[int]) -> None:
    here, there = pair
    packets = [bytes([65 + number]) * (number + 1) for number in range(8)]
    for packet in packets:
        here.send(packet)
    lengths = area.receive(there)
    for chosen in (slots, [0, 1], slots):  # a call leaves nothing behind for the next
        assert area.send(there, chosen, lengths) == len(chosen)
        assert [here.recv(100) for _ in chosen] == [packets[slot] for slot in chosen]


@pytest.mark.parametrize("slots", [[0], [0, 1, 2], [1, 3], [6, 7]])
def test_send_wrapped(pair: tuple[Socket, Socket], area: PlainArea, slots: list[int]) -> None:
    here, there = pair
    packets = [bytes([65 + number]) * (number + 1) for number in range(8)]
    for packet in packets:
        here.send(packet)
    lengths = area.receive(there)
    for wrapper in (b"CMSG from\0!/cred/1/2/3\0", b"w", b"longer" * 20):
        assert area.send_wrapped(there, wrapper, slots, lengths) == len(slots)
        assert [here.recv(1_000) for _ in slots] == [wrapper + packets[slot] for slot in slots]
    assert area.send(there, slots, lengths) == len(slots)
    assert [here.recv(1_000) for _ in slots] == [packets[slot] for slot in slots]


def test_send_until_the_kernel_would_block(pair: tuple[Socket, Socket], area: PlainArea) -> None:
    here, there = pair
    for number in range(8):
        here.send(b"%d" % number * 1_000)
    lengths = area.receive(there)
    went = 0
    for _ in range(10_000):
        sent = area.send(there, range(8), lengths)
        went += sent
        if sent < 8:
            break
    assert area.send(there, [0], lengths) == 0
    assert area.send_wrapped(there, b"w", [0], lengths) == 0
    got = 0
    while select.select([here], [], [], 0)[0]:
        assert here.recv(2_000) == b"%d" % (got % 8) * 1_000
        got += 1
    assert got == went


def test_send_to_one_that_has_gone(pair: tuple[Socket, Socket], area: PlainArea) -> None:
    here, there = pair
    here.send(b"x")
    lengths = area.receive(there)
    here.close()
    sends: list[Callable[[], int]] = [
        lambda: area.send(there, [0], lengths),
        lambda: area.send_wrapped(there, b"w", [0], lengths),
        lambda: Gather().send(there, [b"x", b"y"]),
    ]
    for send in sends:
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send()


def test_gather(pair: tuple[Socket, Socket]) -> None:
    here, there = pair
    gather = Gather()
    packets = [b"%d" % number for number in range(200)]  # more than one call takes
    assert gather.send(here, packets) == 200
    assert [there.recv(10) for _ in packets] == packets
    assert gather.send(here, [b"one"]) == 1
    assert gather.send(here, []) == 0
    assert there.recv(10) == b"one"


def test_gather_until_the_kernel_would_block(pair: tuple[Socket, Socket]) -> None:
    here, there = pair
    gather = Gather()
    packets = [b"%d" % number + bytes(5_000) for number in range(1_000)]
    went = gather.send(here, packets)
    assert 0 < went < 1_000
    assert gather.send(here, packets[went:]) == 0
    for number in range(went):
        assert there.recv(10_000) == packets[number]


@pytest.mark.parametrize("count", [1, 64, 65])
def test_gather_for_many_receivers(pair: tuple[Socket, Socket], count: int) -> None:
    here, there = pair
    gather = Gather()
    packets, others = [b"%d" % number for number in range(count)], [b"other"] * 3
    assert [gather.send_to_many(here, packets) for _ in range(2)] == [count] * 2
    assert gather.send(here, others) == 3  # lies where those lay
    assert gather.send_to_many(here, packets) == count
    assert gather.send_to_many(here, others) == 3
    assert [there.recv(10) for _ in range(3 * count + 6)] == [*packets, *packets, *others, *packets, *others]


def test_gather_for_many_of_whom_some_are_slow_or_gone(pair: tuple[Socket, Socket]) -> None:
    here, there = pair
    gather = Gather()
    packets = [b"%d" % number + bytes(3_000) for number in range(60)]
    went = 0
    while sent := gather.send_to_many(here, packets):
        went += sent
    assert went > 60
    for number in range(went):
        assert there.recv(10_000) == packets[number % 60]
    too_long = [bytes(5_000_000), b"x"]
    with pytest.raises(OSError, match="too long"):
        gather.send_to_many(here, too_long)
    there.close()
    with pytest.raises(BrokenPipeError):
        gather.send_to_many(here, packets)


def test_gather_tells_what_concerns_the_first(pair: tuple[Socket, Socket]) -> None:
    here, there = pair
    gather = Gather()
    too_long = bytes(5_000_000)
    assert gather.send(here, [b"a", b"b", too_long, b"c"]) == 2
    with pytest.raises(OSError, match="too long"):
        gather.send(here, [too_long, b"c"])
    assert (there.recv(10), there.recv(10)) == (b"a", b"b")


def test_gather_copies_no_more_than_it_sends(pair: tuple[Socket, Socket]) -> None:
    """A receiver that takes one long packet at a time would make the hub copy all that waits, each time."""
    gather = Gather()
    packets = [bytes(400_000)] * 60
    tracemalloc.start()
    try:
        gather.send(pair[0], packets)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 400_000


def test_an_area_gives_its_memory_back(engine: str) -> None:
    area = make_area(4)
    area.close()
    assert area.data.closed


# -- listening and connecting ---------------------------------------------------------------------------


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


def test_what_the_other_end_has_not_read(pair: tuple[Socket, Socket]) -> None:
    one, other = pair
    assert unread_bytes(one) == 0
    one.send(bytes(1_000))
    assert unread_bytes(one) >= 1_000
    other.recv(2_000)
    assert unread_bytes(one) == 0


@pytest.mark.parametrize("mode", [0o700, 0o770, 0o777, 0o600])
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_mode_is_what_was_asked_for(address: str, mode: int, umask: int) -> None:
    before = os.umask(umask)
    try:
        listener = Listener(PathAddress(address), mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(address).st_mode) == mode
    listener.close()


def test_an_address_in_use(address: str) -> None:
    listener = Listener(PathAddress(address))
    with pytest.raises(AddressInUseError) as caught:
        Listener(PathAddress(address))
    assert caught.value.errno == errno.EADDRINUSE
    assert address in str(caught.value)
    listener.release()
    with pytest.raises(AddressInUseError, match="nobody listens"):
        Listener(PathAddress(address))
    replacing = Listener(PathAddress(address), reuse=True)
    replacing.close()
    assert not os.path.exists(address)


def test_only_a_socket_is_replaced(address: str) -> None:
    with open(address, "w", encoding="ascii") as file:
        file.write("precious")
    with pytest.raises(AddressInUseError, match="not a socket"):
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


def test_another_socket_is_left_where_it_is(address: str) -> None:
    old = Listener(PathAddress(address))
    new = Listener(PathAddress(address), reuse=True)
    old.close()
    assert os.path.exists(address)
    os.unlink(address)
    new.close()  # nor does it matter that it is gone


def test_the_file_is_removed_from_where_it_was_made(folder: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    listener = Listener(PathAddress("bus"))
    monkeypatch.chdir("/")
    listener.close()
    assert os.listdir(folder) == []


def test_no_such_folder(folder: str) -> None:
    with pytest.raises(FileNotFoundError):
        Listener(PathAddress(os.path.join(folder, "missing", "bus")))


def test_abstract(engine: str) -> None:
    address = AbstractAddress.random()
    listener = Listener(address)
    assert listener.is_abstract
    with pytest.raises(AddressInUseError):
        Listener(address, reuse=True)
    connect(address, BUFFER).close()
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        connect(address, BUFFER)


@pytest.mark.parametrize("listening", [False, True])
def test_a_socket_that_was_passed(address: str, listening: bool) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as passed:
        passed.bind(address)
        if listening:
            passed.listen(1)
        for given in (DescriptorAddress(passed.fileno()), passed):
            listener = Listener(given)
            assert not listener.is_abstract
            connect(PathAddress(address), BUFFER).close()
            accept(listener.socket, BUFFER).close()
            listener.close()
    assert os.path.exists(address)  # theirs, so theirs to remove


def test_what_was_passed_is_no_such_socket(address: str) -> None:
    with pytest.raises(AddressError, match="no socket"):
        Listener(DescriptorAddress(9_999))
    with open(os.devnull, encoding="ascii") as file, pytest.raises(AddressError, match="no socket"):
        Listener(DescriptorAddress(file.fileno()))
    for family, kind in ((socket.AF_UNIX, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_STREAM)):
        with socket.socket(family, kind) as wrong, pytest.raises(AddressError, match="sequenced-packet"):
            Listener(DescriptorAddress(wrong.fileno()))
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ends[0], ends[1], pytest.raises(AddressError, match="cannot listen"):
        Listener(DescriptorAddress(ends[0].fileno()))


def test_connect_to_nothing(address: str) -> None:
    with pytest.raises(FileNotFoundError):
        connect(PathAddress(address), BUFFER)


def test_connect_to_a_full_backlog(address: str) -> None:
    listener = Listener(PathAddress(address), backlog=0)
    first = connect(PathAddress(address), BUFFER)
    with pytest.raises(BlockingIOError):
        connect(PathAddress(address), BUFFER)
    first.close()
    listener.close()


def test_wait(pair: tuple[Socket, Socket]) -> None:
    here, there = pair
    assert wait(here, select.POLLOUT, 0)
    assert not wait(here, select.POLLIN, 0)
    assert not wait(here, select.POLLIN, -1)
    there.send(b"x")
    assert wait(here, select.POLLIN, None)


def test_a_c_library_without_the_calls(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seqpacket, "_CALLS", None)
    assert type(make_area(1)) is PlainArea
    with pytest.raises(OSError, match="recvmmsg"):
        Area(1)


def test_a_patched_socket_module_changes_nothing(address: str) -> None:
    code = f"""
import gevent.monkey; gevent.monkey.patch_all()
import sbuslib
with sbuslib.Hub({address!r}) as hub, sbuslib.Client({address!r}) as client:
    client.subscribe(b"a")
    hub.publish(b"a", b"b")
    print(client.receive(10).payload)
"""
    assert python("-c", code) == "b'b'\n"


@pytest.mark.parametrize("make", [Area, PlainArea])
@pytest.mark.parametrize("slots", [1, 4])
def test_heads_are_the_first_bytes_of_the_first_slots(
    pair: tuple[Socket, Socket], make: type[PlainArea], slots: int
) -> None:
    ours, theirs = pair
    area = make(slots, 100)
    ours.send(b"a longer packet from before")
    area.receive(theirs)
    packets = [b"first packet", b"short", b"third packet"][:slots]
    for packet in packets:
        ours.send(packet)
    assert area.receive(theirs) == [len(packet) for packet in packets]
    heads = area.heads(len(packets), 7)
    assert [head[: len(packet)] for head, packet in zip(heads, packets, strict=True)] == [
        packet[:7] for packet in packets
    ]
    assert all(len(head) == 7 for head in heads)
    area.close()
