"""Figures of the kernel about processes and the machine."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
from collections.abc import Iterable
from pathlib import Path

from .results import Machine


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds that processes and all their threads have used, by the scheduler's account.

    Without that account in the kernel, it is the sum of user and system time, counted in clock ticks.
    """
    return sum(map(_cpu_seconds, pids))


def _cpu_seconds(pid: int) -> float:
    try:
        return sum(
            int(path.read_text().split()[0]) / 1e9 for path in Path(f"/proc/{pid}/task").glob("[0-9]*/schedstat")
        ) or _from_ticks(pid)
    except FileNotFoundError:  # a thread ended just now
        return _from_ticks(pid)


def _from_ticks(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def raise_descriptor_limit() -> int:
    """Raise the limit of descriptors of this process and its children to the hard limit, and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def describe_machine() -> Machine:
    """Describe this machine."""
    processor = platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    return Machine(
        processor=processor,
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        kernel=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        load=round(os.getloadavg()[0], 2),
    )
