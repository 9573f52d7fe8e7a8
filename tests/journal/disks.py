"""Disks that are slow or full, for recorders."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sbuslib.journal.recorder import Recorder


class Disk:
    """A disk on which fdatasync(2) waits until ``open`` is set."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.syncs = 0

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        assert self.open.wait(60)


@contextmanager
def file_size(most: int) -> Iterator[None]:
    """Let no file become larger than ``most`` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def has_come_to(recorder: Recorder, number: int) -> bool:
    """Whether so many rows are durable, or recording has ended."""
    return recorder.durable_sequence == number or not recorder.recording
