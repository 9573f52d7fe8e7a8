"""What the kernel tells of a process."""

from __future__ import annotations

import os

from sbuslib.bench.process import cpu_seconds, describe_machine, resident_bytes


def test_cpu_time_and_memory_of_a_process_are_read() -> None:
    before = cpu_seconds([os.getpid()])
    assert before > 0
    assert cpu_seconds([os.getpid(), os.getpid()]) >= 2 * before
    assert resident_bytes(os.getpid()) > 1_000_000
    machine = describe_machine()
    assert machine.cores >= 1
    assert machine.memory_gib > 0
    assert os.uname().nodename not in (machine.kernel, machine.processor)
