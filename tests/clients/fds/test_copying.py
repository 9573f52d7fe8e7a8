"""Files that are handed out and copied."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from sbuslib.clients.fds import copying
from sbuslib.clients.fds.copying import CHUNK, check_readable, copy_file, open_file
from sbuslib.errors import DescriptorError, UsageError

DATA = os.urandom(CHUNK + 100_000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


@contextmanager
def handed(source: object) -> Iterator[int]:
    """The descriptor that receivers are handed of it."""
    fd, _ = open_file(source)
    try:
        yield fd
    finally:
        os.close(fd)


def copied(fd: int, to: Path, size: int, goes_on: Callable[[], bool] = lambda: True) -> bytes:
    with open(to, "w+b") as file:
        copy_file(fd, file.fileno(), size, goes_on)
    return to.read_bytes()


def test_ten_receivers_copy_from_one_descriptor(source: Path, tmp_path: Path) -> None:
    with handed(source) as fd:
        os.lseek(fd, 5, os.SEEK_SET)
        assert [copied(fd, tmp_path / str(number), len(DATA)) == DATA for number in range(10)] == [True] * 10


def test_a_copy_to_another_file_system(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    with handed(source) as fd:
        assert copied(fd, tmp_path / "copy", len(DATA)) == DATA


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, BytesIO])
def test_bytes_are_handed_out_as_sealed_memory(make: Callable[[bytes], object], tmp_path: Path) -> None:
    with handed(make(DATA)) as fd:
        check_readable(fd)
        assert copied(fd, tmp_path / "copy", len(DATA)) == DATA


def test_receivers_of_an_open_file_cannot_write_to_it(source: Path) -> None:
    with open(source, "r+b") as file:
        file.write(b"first")
        with handed(file) as fd:
            assert os.pread(fd, 5, 0) == b"first"
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(fd, b"x")


def test_what_has_no_size_cannot_be_sent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "pipe", tmp_path):
        with pytest.raises(UsageError, match="only a file"):
            open_file(source)
    with pytest.raises(UsageError, match="not list"):
        open_file([])
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "none")


@pytest.mark.parametrize("size", [0, 100, len(DATA) + CHUNK])
def test_a_file_that_changes_while_it_is_copied_is_an_error(size: int, source: Path, tmp_path: Path) -> None:
    def change() -> bool:
        os.truncate(source, size)
        return True

    with handed(source) as fd, pytest.raises(DescriptorError, match="changed while it was copied"):
        copied(fd, tmp_path / "copy", len(DATA), change)


def test_a_file_of_another_size_or_kind_is_an_error(source: Path, tmp_path: Path) -> None:
    with handed(source) as fd, socket.socket() as sock:
        for descriptor, size in ((fd, 5), (sock.fileno(), 0)):
            with pytest.raises(DescriptorError, match="another size"):
                copied(descriptor, tmp_path / "copy", size)


def test_a_stranger_cannot_hand_out_what_waits_for_others(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(source, "rb") as file, socket.socket() as sock:
        check_readable(file.fileno())
        with pytest.raises(DescriptorError, match="not on a disk mounted here"):
            check_readable(sock.fileno())
        monkeypatch.setattr(copying, "DISKS", {"fuse"})
        with pytest.raises(DescriptorError, match="not on a disk mounted here"):
            check_readable(file.fileno())
