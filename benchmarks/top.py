"""What ``sbus top`` costs a hub with many clients, and how soon its screen is drawn again after a key.

``python benchmarks/top.py [CLIENTS [MESSAGES_A_SECOND [TURNS]]]``, with ``ulimit -n`` above the number of clients. Hub,
clients and ``top`` are processes of their own. The hub's processor time is compared with and without ``top``, in turns.
"""

from __future__ import annotations

import os
import pty
import select
import socket
import subprocess
import sys
import tempfile
import termios
import time
from statistics import median

SECONDS = 15.0
DRAWN = b"q: quit"


def load(address: str, count: int, rate: float) -> None:
    """Connect clients, each with a pattern of its own, and have them publish to one another for ever."""
    clients = []
    for number in range(count):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.connect(address)
        client.send(b"SUB k/%d" % number)
        clients.append(client)
    for client in clients:
        client.send(b"CMSG !/cred/whoami")
        client.recv(1_000)
    print("ready", flush=True)
    due, number = time.monotonic(), 0
    while True:
        for _ in range(max(1, int(rate / 50))):
            number += 1
            to = number * 104_729 % count
            clients[number * 7_919 % count].send(b"MSG k/%d\0hello" % to)
            clients[to].recv(1_000)
        due += 1 / 50
        time.sleep(max(0.0, due - time.monotonic()))


def used(pid: int) -> float:
    """Seconds of processor time."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def share(pid: int, during: float) -> float:
    """How much of a core a process uses from ``during``, a time, for some seconds."""
    before = used(pid)
    time.sleep(max(0.0, during + SECONDS - time.monotonic()))
    return (used(pid) - before) / (time.monotonic() - during)


def press(fd: int, hub: int, delays: list[float]) -> float:
    """Press keys for some seconds, and note how long each takes to be drawn; the share of a core of the hub."""
    began, before = time.monotonic(), used(hub)
    while time.monotonic() < began + SECONDS:
        pressed = time.monotonic()
        os.write(fd, b">")
        drawn = b""
        while DRAWN not in drawn:
            drawn += os.read(fd, 65_536)
        delays.append(time.monotonic() - pressed)
        while select.select([fd], [], [], max(0.0, pressed + 1.3 - time.monotonic()))[0]:
            os.read(fd, 65_536)
    return (used(hub) - before) / (time.monotonic() - began)


def main(count: int = 10_000, rate: int = 10_000, turns: int = 5) -> None:
    address = os.path.join(tempfile.mkdtemp(), "bus")
    program = [sys.executable, "-m", "sbuslib"]
    fd, screen = pty.openpty()
    termios.tcsetwinsize(screen, (50, 160))
    with subprocess.Popen([*program, "hub", "-a", address], stderr=subprocess.PIPE) as hub:
        assert hub.stderr is not None
        hub.stderr.readline()  # it listens
        loading = [sys.executable, __file__, "load", address, str(count), str(rate)]
        clients = subprocess.Popen(loading, stdout=subprocess.PIPE)
        try:
            assert clients.stdout is not None
            clients.stdout.readline()
            ratios, more, delays = list[float](), list[float](), list[float]()
            for _ in range(turns):
                without = share(hub.pid, time.monotonic())
                with subprocess.Popen(
                    [*program, "top", "-a", address], stdin=screen, stdout=screen, env={**os.environ, "TERM": "xterm"}
                ) as top:
                    while DRAWN not in os.read(fd, 65_536):
                        pass
                    beside = press(fd, hub.pid, delays)
                    top.kill()
                ratios.append(beside / without)
                more.append(beside - without)
                print(f"the hub used {without:.4f} of a core without top, {beside:.4f} with it", flush=True)
            print(f"ratio {median(ratios):.3f} at the median, {median(more):+.4f} of a core")
            print(f"drawn after a key in {median(delays) * 1000:.0f} ms (median), {max(delays) * 1000:.0f} ms at most")
        finally:
            clients.kill()
            clients.communicate()
            hub.terminate()


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        load(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        main(*map(int, sys.argv[1:]))
