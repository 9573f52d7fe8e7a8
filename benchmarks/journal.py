"""What recording costs a hub, and how true and how fast a replay is.

Run ``python benchmarks/journal.py [record|pace|flat ...]``; without a name, all.

``record``: the same messages go from a publisher to a subscriber, over one hub and over another that records itself in
its own process, in turn; the CPU time of the whole process, all its threads, is compared. Wanted: no more than 1.6
times as much, 300,000 messages a second, none lost. Packets are published one by one, where each costs the hub, and
in batches, which a hub hands on without looking at a message, so that nearly all that is left is what it costs to write
and sync so many bytes.
``pace``: a journal with gaps between its messages is played back; wanted: each gap within 5 ms, at the median.
``flat``: a journal is played back as fast as it goes, beside ``publish_many`` of the same messages from a list.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import plain

from sbuslib import blocking
from sbuslib.bench.process import cpu_seconds
from sbuslib.journal.read.blocks import blocks, everything
from sbuslib.journal.replay import from_journal, replay
from sbuslib.kernel.packet_writer import PacketWriter
from sbuslib.wire.packets import encode_message

MESSAGES = 300_000
ROUNDS = 7
KEYS = 100
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


def publish(address: str, count: int, keys: int, batched: bool) -> None:
    """Publish in a process of its own, from packets made before it says so."""
    pairs = [(b"room/%d/temp" % (number % keys), PAYLOAD) for number in range(1024)]
    packets = [encode_message(*pair) for pair in pairs]
    writer = PacketWriter()
    with blocking.Client(address) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        while count > 0:
            if batched:
                client.publish_many(pairs[:count])
            else:
                plain.send(client.socket, writer, packets[:count])
            count -= len(packets)
        client.sync()


def carry(address: str, pid: int, keys: int, batched: bool) -> tuple[float, float]:
    """CPU seconds of the hub's process for the messages, none of which is lost, and seconds that they took."""
    publisher = subprocess.Popen(
        [sys.executable, __file__, "_publish", address, str(MESSAGES), str(keys), "batched" * batched],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert publisher.stdin is not None
    assert publisher.stdout is not None
    with blocking.Client(address, soft="block") as subscriber:
        subscriber.subscribe(b"room/")
        publisher.stdout.readline()
        before, started = cpu_seconds([pid]), time.monotonic()
        publisher.stdin.write("go\n")
        publisher.stdin.flush()
        count = 0
        while count < MESSAGES:
            count += len(subscriber.receive_many(timeout=60))
        took = time.monotonic() - started
        subscriber.sync()
        time.sleep(0.3)  # what waits for the recorder is its work, too
        used = cpu_seconds([pid]) - before
    publisher.stdin.close()
    publisher.wait()
    return used, took


def record() -> None:
    folder = tempfile.mkdtemp(prefix="sbus-", dir=os.environ.get("TMPDIR"))
    try:
        for keys in (1, 100):
            for batched in (False, True):
                journal = f"{folder}/journal-{keys}-{batched}"
                with hub_process(f"{folder}/a") as plain, hub_process(f"{folder}/b", journal) as recorded:
                    without: list[tuple[float, float]] = []
                    with_: list[tuple[float, float]] = []
                    for _ in range(ROUNDS):
                        without.append(carry(f"{folder}/a", plain.pid, keys, batched))
                        with_.append(carry(f"{folder}/b", recorded.pid, keys, batched))
                ratios = [b[0] / a[0] for a, b in zip(without, with_, strict=True)]
                rows = sum(rows.block.rows for rows in blocks(everything(journal)))
                how = "in batches" if batched else "one by one"
                print(
                    f"{keys} keys, {how}: {rows} of {ROUNDS * MESSAGES} rows in the journal; "
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


def make_journal(directory: str, count: int, pause: Callable[[], float]) -> list[int]:
    """A journal of so many messages, with pauses between them; their times."""
    from sbuslib.journal.format.encoding import encode_block, encode_end
    from sbuslib.journal.format.layout import SegmentHeader, pack, segment_name
    from sbuslib.journal.limits import JournalLimits

    os.makedirs(directory)
    times = [time.time_ns()]
    while len(times) < count:
        times.append(times[-1] + int(pause() * 1e9))
    header = SegmentHeader("0" * 16, "", b"/", times[0], 1, 1)
    names = [*(b"room/%d/temp" % n for n in range(KEYS)), b"!/cred/1/2/3"]
    with open(os.path.join(directory, segment_name(1)), "wb") as file:
        file.write(header.encode())
        rows = JournalLimits().block_records
        for first in range(0, count, rows):
            some = times[first : first + rows]
            columns = dict.fromkeys(("gids", "uids", "pids"), pack("q", [1]) * len(some))
            columns |= {"times": pack("q", some), "senders": pack("i", [KEYS]) * len(some)}
            columns["keys"] = pack("i", [n % KEYS for n in range(first, first + len(some))])
            file.write(encode_block(1, first + 1, columns, names, [PAYLOAD] * len(some)))
        file.write(encode_end(1, count + 1))
    return times


def pace() -> None:
    """Each gap between two messages, as a subscriber sees it, against the one that was recorded."""
    drawn = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="sbus-") as folder:
        times = make_journal(f"{folder}/journal", 300, lambda: drawn.expovariate(1 / 0.02))
        with hub_process(f"{folder}/bus"), blocking.Client(f"{folder}/bus") as subscriber:
            subscriber.subscribe(b"")
            command = [sys.executable, "-m", "sbuslib", "replay", f"{folder}/journal", "-a", f"{folder}/bus"]
            player = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            seen: list[int] = []
            for _ in times:
                subscriber.receive(timeout=60)
                seen.append(time.time_ns())
            player.wait()
    errors = [abs((b - a) - (d - c)) / 1e6 for (a, b), (c, d) in zip(pairwise(times), pairwise(seen), strict=True)]
    print(
        f"replay at its pace, {len(times)} messages: gaps are off by {statistics.median(errors):.2f} ms at the median, "
        f"{max(errors):.1f} at most; it took {(seen[-1] - seen[0]) / (times[-1] - times[0]):.4f} times as long"
    )


def flat() -> None:
    """The seconds until the hub has taken all, by replay and by publish_many, in turn; nobody listens.

    Told besides: the CPU time of a message, of who publishes and of the hub together.
    """
    count = 200_000
    with tempfile.TemporaryDirectory(prefix="sbus-") as folder:
        make_journal(f"{folder}/journal", count, lambda: 0.001)
        pairs = [(b"room/%d/temp" % (n % KEYS), PAYLOAD) for n in range(count)]
        rates: list[tuple[float, float]] = []
        costs: list[tuple[float, float]] = []
        with hub_process(f"{folder}/bus") as hub, blocking.Client(f"{folder}/bus") as client:
            pids = [hub.pid, os.getpid()]
            for _ in range(ROUNDS):
                used, started = cpu_seconds(pids), time.monotonic()
                assert client.publish_many(pairs) == count
                client.sync()
                used_between, between = cpu_seconds(pids), time.monotonic()
                assert replay(from_journal(f"{folder}/journal"), client, speed=None).messages == count
                client.sync()
                rates.append((count / (between - started), count / (time.monotonic() - between)))
                costs.append((used_between - used, cpu_seconds(pids) - used_between))
    ratios = [b / a for a, b in rates]
    print(
        f"publish_many {statistics.median(a for a, _ in rates):,.0f} messages/s, replay flat out "
        f"{statistics.median(b for _, b in rates):,.0f}: {statistics.median(ratios):.2f} of it "
        f"({min(ratios):.2f} to {max(ratios):.2f} in {ROUNDS} pairs); "
        f"{statistics.median(a for a, _ in costs) / count * 1e6:.2f} and "
        f"{statistics.median(b for _, b in costs) / count * 1e6:.2f} µs of CPU a message"
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["_serve", address, journal, durability]:
            serve(address, journal, durability)
        case ["_publish", address, count, keys, batched]:
            publish(address, int(count), int(keys), bool(batched))
        case names:
            print(f"{os.uname().release}, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}")
            for name in names or ("record", "pace", "flat"):
                {"record": record, "pace": pace, "flat": flat}[name]()
