"""A program for ``test_kills``: starts recorders one after the other, as forks of itself, and kills each with SIGKILL.

Each argument is the time in seconds from a recorder's first durable rows to its kill. For each recorder it prints the
last durable row that it had told, and how many messages were published.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time

import gevent

from sbuslib import Hub
from sbuslib.journal.limits import JournalLimits
from sbuslib.journal.recorder import Recorder

LIMITS = JournalLimits(block_records=16, block_seconds=0.002, segment_bytes=30_000)


def record(folder: str, number: int, told: int) -> None:
    """Record, publish, and tell the durable sequence, until killed."""
    with Hub(os.path.join(folder, f"bus-{number}")) as hub, Recorder(hub, folder, limits=LIMITS) as recorder:
        count, before = 0, recorder.durable_sequence
        while True:
            for _ in range(20):
                count += 1
                hub.publish(b"run/%d" % number, b"%d " % count + b"x" * (count % 200))
            gevent.sleep(0.0002)  # or the writer's thread would wait for the interpreter's lock most of the time
            if recorder.durable_sequence > before:
                os.write(told, b"%d %d\n" % (recorder.durable_sequence, count))


def kill(folder: str, number: int, seconds: float) -> bytes:
    """Start a recorder, kill it, and return the last line that it printed."""
    reading, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            signal.alarm(30)  # in case the process that should kill it has ended
            record(folder, number, told)
        finally:
            os._exit(1)
    os.close(told)
    with open(reading, "rb") as file:
        heard = file.readline()
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return (heard + file.read()).splitlines()[-1]


if __name__ == "__main__":
    logging.disable()  # of what each mends of the one before
    for number, seconds in enumerate(map(float, sys.argv[2:])):
        print(number, kill(sys.argv[1], number, seconds).decode(), flush=True)
