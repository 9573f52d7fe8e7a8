"""What recording costs a hub, and how true and how fast a replay is.

Run ``python benchmarks/journal.py [record|pace|flat ...]``; without a name, all.

``record``: the same messages go from a publisher to a subscriber, over one hub and over another that records itself in
its own process, in turn; the CPU time of the whole process, all its threads, is compared. Wanted: no more than 1.6
times as much, 300,000 messages a second, none lost.
``pace``: a journal with gaps between its messages is played back; wanted: each gap within 5 ms, at the median.
``flat``: a journal is played back as fast as it goes, beside ``publish_many`` of the same messages from a list.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sbuslib import blocking
from sbuslib.journal.directory import read_journal
from sbuslib.packets import encode_message

MESSAGES = 300_000
ROUNDS = 3
PAYLOAD = b"x" * 100


def serve(address: str, journal: str, durability: str) -> None:
    """A hub in the foreground, recorded into ``journal`` unless that is empty. Ends with its standard input."""
    import gevent
    from gevent.fileobject import FileObject

    from sbuslib import Hub
    from sbuslib.journal.recorder import Recorder

    with Hub(address) as hub:
        recorder = Recorder(hub, journal, durability=durability).start() if journal else None  # type: ignore[arg-type]
        print("ready", flush=True)
        FileObject(sys.stdin.buffer, "rb").read()
        if recorder is not None:
            recorder.stop()
            print(recorder.statistics())
        gevent.sleep(0)


@contextmanager
def hub_process(address: str, journal: str = "", durability: str = "block") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, __file__, "_serve", address, journal, durability],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def cpu_seconds(pid: int) -> float:
    """CPU time that all threads of a process have used, in seconds, from the scheduler's own account."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def publish(address: str, count: int, keys: int) -> None:
    """Publish in a process of its own, from packets made before it says so."""
    packets = [encode_message(b"room/%d/temp" % (number % keys), PAYLOAD) for number in range(1024)]
    with blocking.Client(address) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        while count > 0:
            client.send_packets(packets[:count])
            count -= len(packets)
        client.sync()


def carry(address: str, pid: int, keys: int) -> tuple[float, float]:
    """CPU seconds of the hub's process for the messages, none of which is lost, and seconds that they took."""
    publisher = subprocess.Popen(
        [sys.executable, __file__, "_publish", address, str(MESSAGES), str(keys)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert publisher.stdin is not None
    assert publisher.stdout is not None
    with blocking.Client(address) as subscriber:
        subscriber.flood_control(soft="block")
        subscriber.subscribe(b"room/")
        publisher.stdout.readline()
        before, started = cpu_seconds(pid), time.monotonic()
        publisher.stdin.write("go\n")
        publisher.stdin.flush()
        count = 0
        while count < MESSAGES:
            count += len(subscriber.receive_many(timeout=60))
        took = time.monotonic() - started
        subscriber.sync()
        time.sleep(0.3)  # what waits for the recorder is its work, too
        used = cpu_seconds(pid) - before
    publisher.stdin.close()
    publisher.wait()
    return used, took


def record() -> None:
    folder = tempfile.mkdtemp(prefix="sbus-", dir=os.environ.get("TMPDIR"))
    try:
        for keys in (1, 100):
            for durability in ("block", "none"):
                journal = f"{folder}/journal-{keys}-{durability}"
                with hub_process(f"{folder}/a") as plain, hub_process(f"{folder}/b", journal, durability) as recorded:
                    without: list[tuple[float, float]] = []
                    with_: list[tuple[float, float]] = []
                    for _ in range(ROUNDS):
                        without.append(carry(f"{folder}/a", plain.pid, keys))
                        with_.append(carry(f"{folder}/b", recorded.pid, keys))
                ratios = [b[0] / a[0] for a, b in zip(without, with_, strict=True)]
                rows = sum(piece.block.rows or 0 for piece in read_journal(journal))
                print(
                    f"{keys} keys, durability {durability}: {rows} of {ROUNDS * MESSAGES} rows in the journal; "
                    f"{statistics.median(a[0] for a in without) / MESSAGES * 1e6:.2f} µs of CPU a message without, "
                    f"{statistics.median(b[0] for b in with_) / MESSAGES * 1e6:.2f} with the recorder: "
                    f"{statistics.median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f}); "
                    f"{MESSAGES / statistics.median(a[1] for a in without):,.0f} and "
                    f"{MESSAGES / statistics.median(b[1] for b in with_):,.0f} messages/s, "
                    f"best {MESSAGES / min(b[1] for b in with_):,.0f}"
                )
                shutil.rmtree(journal)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["_serve", address, journal, durability]:
            serve(address, journal, durability)
        case ["_publish", address, count, keys]:
            publish(address, int(count), int(keys))
        case names:
            print(f"{os.uname().release}, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}")
            for name in names or ("record", "pace", "flat"):
                {"record": record}[name]()
