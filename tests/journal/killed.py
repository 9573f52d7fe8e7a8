"""A program for ``test_kills``: starts recorders one after the other, as forks of itself, and kills each with SIGKILL.

Each argument is the time in seconds from a recorder's first durable rows to its kill. For each recorder it prints the
last durable row that it had told, and how many messages were published.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial

from killing import kill, record

from sbuslib.journal.limits import JournalLimits

LIMITS = JournalLimits(block_records=16, block_seconds=0.002, segment_bytes=30_000)

if __name__ == "__main__":
    logging.disable()  # of what each mends of the one before
    folder = sys.argv[1]
    for number, seconds in enumerate(map(float, sys.argv[2:])):
        bus = os.path.join(folder, f"bus-{number}")
        recorder = partial(record, bus=bus, journal=folder, number=number, limits=LIMITS, pause=0.0002)
        print(number, kill(seconds, recorder), flush=True)
