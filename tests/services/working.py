"""Programs for the tests that kill them: ``sbus queue``, and a worker that prints each job that it has done.

Both are quick to take others for gone.
"""

from __future__ import annotations

import os
import sys
from time import sleep

from sbuslib.blocking import Client
from sbuslib.cli.main import main
from sbuslib.clients.recipes import queue
from sbuslib.services import queue_rules

queue.ANNOUNCE_SECONDS = 0.1  # type: ignore[misc]
queue_rules.GONE = 1.0  # type: ignore[misc]


def do(job: queue.Job) -> None:
    sleep(0.0005)
    os.write(1, b"%b %d\n" % (job.payload, job.attempt))


if __name__ == "__main__":
    if sys.argv[1] == "queue":
        sys.exit(main(sys.argv[1:]))
    with Client(sys.argv[1], reconnect=True, timeout=60) as client, client.queue("mail").work(do, prefetch=8):
        os.write(2, b"it works (Ctrl-C ends it)\n")
        sys.stdin.read()
