"""What a command costs that publishes one message: CPU of the process, beside Python's own start and other brokers'.

``python benchmarks/startup.py [ROUNDS]``, in an environment in which sbuslib is installed, not linked: there ``site``
loads modules for the link. What is not installed is left out: ``apt-get install redis mosquitto mosquitto-clients``.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from comparison.brokers import Mosquitto, Redis

from sbuslib.bench import daemons

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 40


def cpu_of(command: list[str]) -> float:
    """CPU milliseconds of a command, from its start to its end."""
    null = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    _, status, used = os.wait4(os.posix_spawnp(command[0], command, os.environ, file_actions=null), 0)
    assert not status, command
    return (used.ru_utime + used.ru_stime) * 1e3


def main() -> None:
    """Measure, and print the medians, and of each round's own ratio: other programs on the machine slow all."""
    python, sbus = sys.executable, os.path.join(os.path.dirname(sys.executable), "sbus")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(daemons.hub(address := f"{folder}/bus"))
        commands = {
            "python -I -c pass": [python, "-I", "-c", "pass"],
            "python -c 'import socket'": [python, "-c", "import socket"],
            "sbus --help": [sbus, "--help"],
            "sbus pub KEY PAYLOAD": [sbus, "pub", "-a", address, "key", "payload"],
            "sbus pub KEY --file FILE": [sbus, "pub", "-a", address, "key", "--file", "/etc/hostname"],
        }
        for kind, program, options in (
            (Redis, "redis-cli", "-s {} publish key payload"),
            (Mosquitto, "mosquitto_pub", "--unix {} -t key -m payload"),
        ):
            if shutil.which(program):
                broker = stack.enter_context(kind(Path(folder)).running())
                commands[program] = [program, *options.format(broker.address).split()]
        used: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(ROUNDS):
            for name, command in commands.items():
                used[name].append(cpu_of(command))
    print(f"load {os.getloadavg()[0]:.1f}")
    for name, some in used.items():
        ratio = statistics.median(one / of for one, of in zip(some, used["python -I -c pass"], strict=True))
        print(f"{name:<28}{statistics.median(some):6.1f} ms   {ratio:.2f} times")


if __name__ == "__main__":
    main()
