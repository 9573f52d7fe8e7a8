"""Simulated processes: who they are to the kernel, and how they begin, stop and end.

All of them are one process to Linux, so what it would say of each is said here: ``os.getpid`` and its like answer for
the simulated process that asks, and :func:`peer_credentials` for the one at the other end of a socket. A socket that
connects is bound to a name first, which says whose it is.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from itertools import count
from typing import Any, Final, TypeVar

import gevent

from .loop import Loop, Process

T = TypeVar("T")

_FIRST_PID: Final = 20_001
_real_pid: Final = os.getpid
_names = count(1)  # of sockets

_by_pid: dict[int, Process] = {}
_listeners: dict[str | bytes, Process] = {}
"""Who listens, by address."""


def install() -> None:
    """Put functions in place of the system's. Has to run before most of ``sbuslib`` is imported."""
    real = {name: getattr(os, name) for name in ("getpid", "getuid", "geteuid", "getgid", "getegid")}
    for name, of_system in real.items():
        setattr(os, name, _answer(of_system, "pid" if name == "getpid" else "uid"))

    from sbuslib.kernel import peers

    peers.peer_credentials = peer_credentials
    sys.addaudithook(_on_event)
    _let_handovers_wait()


def _let_handovers_wait() -> None:
    """The two ends of a take-over wait without gevent for each other: all other processes have to run meanwhile."""
    from sbuslib.core import handover

    receive = handover._receive

    def wait_and_receive(sock: Any) -> tuple[bytes, list[int]]:
        if not loop().wait_alone(sock.fileno(), sock.gettimeout()):
            raise TimeoutError("timed out")
        return receive(sock)

    handover._receive = wait_and_receive


def _answer(of_system: Callable[[], int], attribute: str) -> Callable[[], int]:
    def answer() -> int:
        process = at_hand()
        return of_system() if process is None else int(getattr(process, attribute))

    return answer


def at_hand() -> Process | None:
    """The simulated process that runs, if one does."""
    if not _by_pid:
        return None
    process = loop().process
    return process if process.pid else None


def loop() -> Loop:
    found = gevent.get_hub().loop
    assert isinstance(found, Loop)
    return found


def _on_event(event: str, args: tuple[Any, ...]) -> None:
    """Note the sockets that a simulated process makes, and where it connects from and listens."""
    if not event.startswith("socket.") or (process := at_hand()) is None:
        return
    if event == "socket.__new__":
        process.sockets.append(args[0])
    elif event == "socket.connect" and args[0].family == socket.AF_UNIX and not args[0].getsockname():
        args[0].bind(b"\0sbus-simulation/%d/%d/%d" % (_real_pid(), process.pid, next(_names)))
    elif event == "socket.bind" and not _is_ours(args[1]):
        serve(args[1].decode() if isinstance(args[1], bytes) else args[1], process)


def _is_ours(name: object) -> bool:
    return isinstance(name, bytes) and name.startswith(b"\0sbus-simulation/")


def serve(address: str, process: Process) -> None:
    """Let a process be the one that listens at an address."""
    _listeners[address] = process


def peer_credentials(sock: socket.SocketType) -> Any:
    """In place of the kernel's word: the process that connected, or listens, at the other end."""
    from sbuslib.secrets import Credentials

    try:
        name = sock.getpeername()
    except OSError:
        name = sock.getsockname()  # a listening socket: whose it is
    process = _by_pid[int(name.split(b"/")[2])] if _is_ours(name) else _listeners[name]
    return Credentials(gid=process.uid, uid=process.uid, pid=process.pid)


def begin(name: str, uid: int) -> Process:
    """Begin a process."""
    process = Process(name, _FIRST_PID + len(_by_pid), uid)
    _by_pid[process.pid] = process
    loop().add(process)
    return process


def run_in(process: Process, function: Callable[[], T], limit: float) -> T | BaseException:
    """Run a function in a greenlet of a process: its result, or its error.

    Whoever plays the world waits for it, for at most ``limit`` seconds: a process that is stopped meanwhile, or killed,
    gives a :exc:`TimeoutError`.
    """
    results: list[T | BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except (Exception, gevent.Timeout) as error:
            results.append(error)

    working = gevent.Greenlet(run)
    loop().adopt(working, process)
    working.start()
    working.join(limit)
    if not working.ready():
        working.kill(block=False)
    return results[0] if results else TimeoutError(f"{process} did not end this within {limit:g} s")


def spawn(process: Process, work: Callable[[Callable[[], None]], None]) -> Callable[[], None]:
    """Run ``work(wait)`` in a greenlet of a process: ``wait`` returns when the function that this returns is called.

    What wakes in gevent belongs to whoever wakes; this belongs to the one that sleeps.
    """
    watcher: Any = loop().async_()
    watcher.process = process

    def wait() -> None:
        gevent.get_hub().wait(watcher)

    working = gevent.Greenlet(work, wait)
    loop().adopt(working, process)
    working.start()

    def wake() -> None:
        watcher.send()

    return wake
