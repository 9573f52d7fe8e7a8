"""What programs share that start recorders as forks of themselves and kill them with SIGKILL.

A program finds it with this folder in ``PYTHONPATH``.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Sequence

import gevent

from sbuslib import Hub
from sbuslib.journal.limits import JournalLimits
from sbuslib.journal.recorder import Recorder

__all__ = ["kill", "record"]


def record(told: int, bus: str, journal: str, number: int, limits: JournalLimits, pause: float) -> None:
    """Record and publish until killed. Tells the last durable row, and how many messages were published."""
    with Hub(bus) as hub, Recorder(hub, journal, limits=limits) as recorder:
        count, before = 0, recorder.durable_sequence
        while True:
            for _ in range(20):
                count += 1
                hub.publish(b"run/%d" % number, b"%d " % count + b"x" * (count % 200))
            gevent.sleep(pause)  # or the writer's thread would wait for the interpreter's lock most of the time
            if recorder.durable_sequence > before:
                os.write(told, b"%d %d\n" % (recorder.durable_sequence, count))


def _child(work: Callable[..., object], *arguments: object) -> int:
    """Start a fork that does nothing else."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)  # in case the process that should kill it has ended
            work(*arguments)
        except BaseException:  # the test has to hear of any
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def kill(seconds: float, first: Callable[[int], object], others: Sequence[Callable[[], object]] = ()) -> str:
    """Start ``first``, which is told where to write lines, and the others at its first line; kill all of them later.

    Returns the last line.
    """
    reading, told = os.pipe()
    pids = [_child(first, told)]
    os.close(told)
    with open(reading, "rb") as file:
        heard = file.readline()
        pids += [_child(work) for work in others]
        time.sleep(seconds)
        random.shuffle(pids)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        return (heard + file.read()).splitlines()[-1].decode()
