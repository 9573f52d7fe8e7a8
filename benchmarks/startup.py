"""How long ``sbus --help`` and ``sbus pub`` take, beside ``python -c 'import socket'``, in turns.

``python benchmarks/startup.py [ROUNDS]``, in an environment in which sbuslib is installed. The aims: 1.5 and 2 times.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from time import perf_counter

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 40


def main() -> None:
    """Measure, and print the medians."""
    sbus = os.path.join(os.path.dirname(sys.executable), "sbus")
    with tempfile.TemporaryDirectory() as folder:
        address = os.path.join(folder, "bus")
        hub = subprocess.Popen([sbus, "hub", "-a", address], stderr=subprocess.PIPE)
        assert hub.stderr is not None
        hub.stderr.readline()
        commands = {
            "python -c 'import socket'": [sys.executable, "-c", "import socket"],
            "sbus --help": [sbus, "--help"],
            "sbus pub KEY PAYLOAD": [sbus, "pub", "-a", address, "key", "payload"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(ROUNDS):
            for name, command in commands.items():
                began = perf_counter()
                subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
                times[name].append(perf_counter() - began)
        hub.terminate()
        hub.wait()
    least = next(iter(times.values()))
    for name, some in times.items():
        # Each round's own ratio: other programs on the machine slow all three.
        ratio = statistics.median(one / of for one, of in zip(some, least, strict=True))
        print(f"{name:<28}{statistics.median(some) * 1e3:6.1f} ms   {ratio:.2f} times")


if __name__ == "__main__":
    main()
