"""A program for ``test_kills``: a recorder and a sealer of one journal, which are killed with SIGKILL again and again.

Arguments: the folder, the number of the first round, and for each round the seconds from the recorder's first durable
rows to the kill of both. It prints the last row that each recorder had told to be durable.
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

LIMITS = JournalLimits(block_records=16, block_seconds=0.002, segment_bytes=20_000)
KEEP_BYTES = 20_000
"""Of the sealed files: some of the first rounds are deleted by the end of fifty."""


def record(folder: str, number: int, told: int) -> None:
    """Record, publish, and tell the durable sequence, until killed."""
    with Hub(f"{folder}/bus-{number}") as hub, Recorder(hub, f"{folder}/journal", limits=LIMITS) as recorder:
        count, before = 0, recorder.durable_sequence
        while True:
            for _ in range(20):
                count += 1
                hub.publish(b"run/%d" % number, b"%d" % count + b"x" * (count % 200))
            gevent.sleep(0.001)
            if recorder.durable_sequence > before:
                os.write(told, b"%d\n" % recorder.durable_sequence)


def seal(folder: str) -> None:
    """Seal, delete segments at once and old files by their size, until killed."""
    from sbuslib.errors import SbusError
    from sbuslib.lake import sealing

    sealing.UNIT_BYTES = 50_000
    while True:
        try:
            sealing.seal(f"{folder}/journal", keep_bytes=KEEP_BYTES)
        except (SbusError, OSError) as error:
            if "no end mark" not in str(error) and "cut" not in str(error):  # the recorder was killed just now
                os.write(2, f"{error}\n".encode())
        time.sleep(0.001)


def child(work: object, *arguments: object) -> int:
    """Start a fork that does nothing else."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)  # in case the process that should kill it has ended
            work(*arguments)  # type: ignore[operator]
        finally:
            os._exit(1)
    return pid


def kill_both(folder: str, number: int, seconds: float) -> bytes:
    """Start both, kill both, and return the last line that the recorder told."""
    reading, told = os.pipe()
    pids = [child(record, folder, number, told)]
    os.close(told)
    with open(reading, "rb") as file:
        heard = file.readline()
        pids.append(child(seal, folder))
        time.sleep(seconds)
        for pid in pids[:: 1 if number % 2 else -1]:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        return (heard + file.read()).splitlines()[-1]


if __name__ == "__main__":
    logging.disable()  # of what each mends of the one before
    for number, seconds in enumerate(map(float, sys.argv[3:]), int(sys.argv[2])):
        print(number, kill_both(sys.argv[1], number, seconds).decode(), flush=True)
