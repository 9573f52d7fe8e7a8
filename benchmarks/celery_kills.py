"""Whether Celery loses a task, or does one twice without the mark, while hub, queue service and workers are killed.

Run ``python benchmarks/celery_kills.py [--tasks N] [--faults N] [--seed N]``: so many tasks over so many faults, in two
queues with two workers of both. The faults are SIGKILL to the hub, to the queue service and to a worker, and a SIGSTOP
of the queue service for longer than ``?timeout=``. It ends with status 1 unless each task whose ``delay()`` returned is
done, and each second time has ``delivery_info["redelivered"]``. Needs ``pip install '.[celery]'``.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

PATIENCE: Final = 240.0
"""Seconds in which the last tasks have to be done."""
TIMEOUT: Final = 1.5
"""Seconds that ``delay()`` waits for the service before Celery sends the task again."""
STOPPED: Final = 3.0
"""Seconds for which the service stands still."""

TASKS_MODULE: Final = """\
import os, time, sbuslib.integrations.kombu
from celery import Celery
app = Celery("tasks", broker=os.environ["BROKER"])
app.conf.update(task_ignore_result=True, task_acks_late=True, task_reject_on_worker_lost=True,
                broker_connection_retry_on_startup=True, worker_prefetch_multiplier=4,
                task_publish_retry_policy={"max_retries": 100, "interval_start": 0, "interval_max": 0.2})
done = os.open(os.environ["DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
@app.task(bind=True)
def do(self, number):
    again = bool(self.request.delivery_info.get("redelivered"))
    os.write(done, b"%d %d\\n" % (number, again))
    time.sleep(0.05)  # many a worker is killed before it acknowledges this
"""


class Program:
    """A program that is started again each time it is killed."""

    def __init__(self, name: str, command: list[str], log: Path, **options: Any) -> None:
        self.name = name
        self._command = command
        self._log = log  # of all that it prints
        self._options = options
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, start_new_session=True, **self._options
            )

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and its children."""
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill it and its children."""
        self.send(signal.SIGKILL)
        self._process.wait()


class Run:
    """Tasks, and faults that come after about as many of them each."""

    def __init__(self, folder: Path, tasks: int, faults: int, seed: int) -> None:
        self._tasks = tasks
        self._chance = random.Random(seed)
        self._done = folder / "done"  # a line for each time that a task was done
        self.accepted: list[int] = []
        self.faults = Counter[str]()
        self._at = sorted(self._chance.sample(range(tasks), faults))  # tasks at which a fault comes

        address = f"{folder}/bus"
        (folder / "tasks.py").write_text(TASKS_MODULE)
        self._environment = {"BROKER": f"sbus://{address}?timeout={TIMEOUT}", "DONE": str(self._done)}
        options: dict[str, Any] = {"cwd": folder, "env": os.environ | self._environment}
        sbus = [sys.executable, "-m", "sbuslib"]
        queue = [*sbus, "queue", "-a", address, "--store", f"{folder}/kept", "--limit", "1h", "--attempts", "1000"]
        worker = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "tasks",
            "worker",
            "-c",
            "2",
            "-Q",
            "celery,other",
            "-l",
            "ERROR",
        ]
        self.hub = Program("hub", [*sbus, "hub", "-a", address], folder / "hub.log", **options)
        self.service = Program("queue service", [*queue, "kombu.*"], folder / "queue.log", **options)
        self.workers = [
            Program("worker", [*worker, "-n", f"{name}@%h"], folder / f"{name}.log", **options) for name in "ab"
        ]

    def submit(self) -> None:
        """Submit all tasks, with faults beside."""
        os.environ |= self._environment
        sys.path.insert(0, str(self._done.parent))
        from tasks import do  # type: ignore[import-not-found]  # written above

        for number in range(self._tasks):
            beside = threading.Thread(target=self._fault) if number in self._at else None
            if beside is not None:
                beside.start()
            do.apply_async((number,), queue=self._chance.choice(("celery", "other")))
            self.accepted.append(number)
            if beside is not None:
                beside.join()  # the next one meets what is being started again

    def _fault(self) -> None:
        """Kill something, or stop it for longer than a producer waits."""
        time.sleep(self._chance.uniform(0, 0.3))
        kinds = [self.hub, self.service, self._chance.choice(self.workers), None]
        program = self._chance.choice(kinds)
        if program is None:
            self.faults["queue service stopped"] += 1
            self.service.send(signal.SIGSTOP)
            time.sleep(STOPPED)
            self.service.send(signal.SIGCONT)
        else:
            self.faults[f"{program.name} killed"] += 1
            program.kill()
            program.start()

    def times(self) -> dict[int, list[bool]]:
        """By task, whether each time that it was done had the mark."""
        times: dict[int, list[bool]] = {}
        for line in self._done.read_text().splitlines() if self._done.exists() else ():
            number, again = line.split()
            times.setdefault(int(number), []).append(again == "1")
        return times

    def end(self) -> None:
        for program in (*self.workers, self.service, self.hub):
            program.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), arguments.tasks, arguments.faults, arguments.seed)
        try:
            run.submit()
            until = time.monotonic() + PATIENCE
            while len(times := run.times()) < len(run.accepted) and time.monotonic() < until:
                time.sleep(0.5)
        finally:
            run.end()

    lost = {*run.accepted} - times.keys()
    twice = [marks for marks in times.values() if len(marks) > 1]
    unmarked = [marks for marks in twice if marks.count(False) > 1]
    print(f"{len(run.accepted):,} tasks accepted; faults: {dict(run.faults)}")
    print(f"{len(lost):,} lost, {len(twice):,} done more than once, {len(unmarked):,} of these without the mark")
    return 1 if lost or unmarked else 0


if __name__ == "__main__":
    sys.exit(main())
