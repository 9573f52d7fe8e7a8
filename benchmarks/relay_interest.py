"""What a hundred thousand patterns below cost the hub above: of which one covering pattern makes one enough.

Run ``python benchmarks/relay_interest.py [PATTERNS]``. A master and a slave are processes of their own. A client of
the slave holds a pattern that covers all others, then takes and gives back the others. Told is

* how many patterns the relay holds on the master, beside its secrets: one;
* the CPU time that the slave takes for each, beside that of a hub that has no relay: the difference is what the
  link's bookkeeping costs, wanted well below a millisecond; and the master's, which has nothing to do;
* the same without the pattern that covers them, where each is announced until they are too many for a link;
* the longest time for which another client of the slave waited for an answer meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from sbuslib import blocking
from sbuslib.bench.process import cpu_seconds

PATTERNS = 100_000


def start(*arguments: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()  # closed once it listens
    return process


class Latency(threading.Thread):
    """The longest time for which a question to a hub was not answered."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._client = blocking.Client(address)
        self.longest = 0.0
        self.done = False
        self.start()

    def run(self) -> None:
        while not self.done:
            asked = time.perf_counter()
            self._client.sync()
            self.longest = max(self.longest, time.perf_counter() - asked)
            time.sleep(0.001)

    def stop(self) -> float:
        self.done = True
        self.join()
        self._client.close()
        return self.longest


def held_by_the_link(master: blocking.Client, slave: int) -> int:
    """The patterns that the relay holds on the master, without its secrets."""
    links = [one for one in master.statistics().per_client if one.credentials.endswith(f"/{slave}")]
    return links[0].patterns - 1 if links else 0


def settle(client: blocking.Client) -> None:
    while client.sync("tree") != "tree":
        pass


def change(change_all: Callable[[], None], pids: list[int], count: int) -> list[float]:
    """CPU microseconds of each process for each of ``count`` changes."""
    before = [cpu_seconds([pid]) for pid in pids]
    change_all()
    return [(cpu_seconds([pid]) - was) / count * 1e6 for pid, was in zip(pids, before, strict=True)]


def main(count: int) -> None:
    patterns = [b"room/%d/*" % n for n in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        top, below, alone = f"{folder}/top", f"{folder}/below", f"{folder}/alone"
        single = start("sbuslib", "hub", "-a", alone)
        master = start("sbuslib", "hub", "-a", top)
        slave = start("sbuslib.cli.relay", "--upstream", top, "--listen", below)
        try:
            with blocking.Client(alone) as plain, blocking.Client(top) as above, blocking.Client(below) as client:
                without = [
                    change(lambda: plain.subscribe(*patterns), [single.pid], count)[0],
                    change(lambda: (plain.unsubscribe(*patterns), plain.sync())[0], [single.pid], count)[0],
                ]
                for name, covered in (("below a pattern that covers them", True), ("each on its own", False)):
                    if covered:
                        client.subscribe(b"room/")
                        settle(client)
                    latency = Latency(below)
                    pids = [slave.pid, master.pid]
                    add = change(lambda: (client.subscribe(*patterns), settle(client))[0], pids, count)
                    held = held_by_the_link(above, slave.pid)
                    remove = change(lambda: (client.unsubscribe(*patterns), settle(client))[0], pids, count)
                    longest = latency.stop()
                    print(f"{count:,} patterns, {name}: the link holds {held:,} on the master")
                    for verb, both, hub in (("add", add, without[0]), ("remove", remove, without[1])):
                        print(f"  {verb} one: {both[0]:.1f} µs of the slave's CPU, {both[1]:.1f} µs of the master's")
                        print(f"    (a hub without a relay: {hub:.1f} µs)")
                    print(f"  another client of the slave waited for at most {longest * 1e3:.0f} ms")
                    if covered:
                        client.unsubscribe(b"room/")
                        settle(client)
        finally:
            for process in (slave, master, single):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    print(f"{os.uname().release}, Python {sys.version.split()[0]}")
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PATTERNS)
