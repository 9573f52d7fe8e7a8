"""Memory that is handed out, and what a receiver accepts as such."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from fcntl import F_SEAL_GROW, F_SEAL_SHRINK, F_SEAL_WRITE

import pytest

from sbuslib.clients.fds.memory import Memory, PacketFrame, bytes_of, check_memory, map_memory
from sbuslib.errors import DescriptorError, UsageError

SEALS = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW


def sealed(data: bytes) -> int:
    memory = Memory(memoryview(data))
    memory.seal()
    return memory.fd


@contextmanager
def opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def made(data: bytes, size: int, seals: int) -> int:
    """Memory as a hostile sender makes it."""
    descriptor = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.write(descriptor, data)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def test_nobody_can_change_sealed_memory() -> None:
    with opened(sealed(b"abc")) as descriptor:
        check_memory(descriptor, 3, is_ours=False)
        for change in (
            lambda: os.write(descriptor, b"x"),
            lambda: os.ftruncate(descriptor, 1),
            lambda: fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, 0),
        ):
            with pytest.raises(PermissionError):
                change()


def test_memory_is_written_again_once_nobody_has_it() -> None:
    here, there = socket.socketpair()
    with closing(Memory(memoryview(b"abc"))) as memory, here, there:
        assert memory.is_free()
        with opened(memory.open()) as descriptor:
            check_memory(descriptor, 3, is_ours=True)
            assert not memory.is_free(), "somebody has it open"
            socket.send_fds(here, [b"x"], [descriptor])
        assert not memory.is_free(), "it is under way"
        with opened(socket.recv_fds(there, 1, 1)[1][0]) as descriptor:
            frame = map_memory(descriptor, 3)
        assert not memory.is_free(), "somebody has it mapped"
        assert bytes(frame) == b"abc"
        frame.close()
        assert memory.is_free()
        for data in (b"def", b"ghi"):
            memory.write(memoryview(data))
            with opened(memory.open()) as descriptor:
                assert os.pread(descriptor, 10, 0) == data


def test_memory_of_ones_own_user_is_sealed_before_a_stranger_has_it() -> None:
    with closing(Memory(memoryview(b"abc"))) as memory, opened(memory.open()) as descriptor:
        memory.write(memoryview(b"def"))
        with closing(map_memory(descriptor, 3)) as frame:
            with pytest.raises(DescriptorError, match="no sealed memory"):
                check_memory(descriptor, 3, is_ours=False)
            memory.seal()
            memory.seal()
            check_memory(descriptor, 3, is_ours=False)
            assert bytes(frame) == b"def"
        with pytest.raises(PermissionError):
            os.write(memory.fd, b"x")


def test_memory_that_somebody_made_writable_cannot_be_sealed() -> None:
    with closing(Memory(memoryview(b"abc"))) as memory:
        memory.write(memoryview(b"def"))
        with mmap.mmap(memory.fd, 3), pytest.raises(OSError, match="busy"):
            memory.seal()
        memory.write(memoryview(b"ghi"))
        memory.seal()
        assert os.pread(memory.fd, 3, 0) == b"ghi"


@pytest.mark.parametrize(
    ("size", "seals", "told", "why"),
    [
        *((3, SEALS & ~missing, 3, "no sealed memory") for missing in (F_SEAL_WRITE, F_SEAL_SHRINK, F_SEAL_GROW)),
        *((3, SEALS, told, "another size than told") for told in (2, 4, 1 << 40)),
        (1 << 40, SEALS, 1 << 40, "memory with holes"),  # to read it would fill the memory of whoever reads
    ],
)
def test_memory_that_could_change_or_is_not_as_told_is_refused(size: int, seals: int, told: int, why: str) -> None:
    with opened(made(b"abc", size, seals)) as descriptor, pytest.raises(DescriptorError, match=why):
        check_memory(descriptor, told, is_ours=False)


def test_a_descriptor_of_another_kind_is_refused() -> None:
    with socket.socket() as sock, open(__file__, "rb") as file:
        for descriptor in (sock.fileno(), file.fileno()):
            with pytest.raises(DescriptorError, match="no sealed memory"):
                check_memory(descriptor, 1, is_ours=False)


def test_a_mapped_frame_is_a_buffer_that_cannot_be_written_and_stays_while_it_is_looked_at() -> None:
    with opened(sealed(b"abc")) as descriptor:
        frame = map_memory(descriptor, 3)
    assert "3 bytes" in repr(frame)
    with frame, memoryview(frame) as view:
        assert (len(frame), frame.size, view.readonly) == (3, 3, True)
        with pytest.raises(TypeError):
            frame[0] = 1
        frame.close()
        assert bytes(view) == b"abc"
    with pytest.raises(ValueError, match="closed"):
        bytes(frame)


def test_a_frame_of_a_packet_is_the_same_kind_of_thing() -> None:
    with PacketFrame(b"abc") as frame:
        assert (bytes(frame), frame.size, memoryview(frame).readonly) == (b"abc", 3, True)


def test_a_buffer_of_any_shape_is_its_bytes() -> None:
    assert bytes_of(array("i", [1, 2])) == array("i", [1, 2]).tobytes()
    assert bytes_of(memoryview(bytes(6)).cast("B", (2, 3))).nbytes == 6
    assert bytes_of(bytearray()).nbytes == 0
    with pytest.raises(UsageError, match="one piece"):
        bytes_of(memoryview(b"abcd")[::2])
    with pytest.raises(UsageError, match="not str"):
        bytes_of("text")
