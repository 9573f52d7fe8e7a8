"""Daemon process of a hub: pid file, fork into the background, garbage collection, and sd_notify(3)."""

from __future__ import annotations

import gc
import os
import re
import signal
from contextlib import ExitStack, suppress
from time import monotonic, sleep
from typing import Any, Final

from ..kernel.regular_files import open_regular
from ..kernel.sockets import send_datagram
from ..kernel.users import is_alive
from .console import EXIT_SUCCESS, STOPPING, complain

LISTENS: Final = b"1"
"""The daemon writes this to the pipe of :func:`detach` once it listens."""

SUCCESSOR_WAIT: Final = 2.0
"""Most seconds for which a daemon that hands over waits for the new one's pid file. Mostly, it takes milliseconds."""

# -- the background -----------------------------------------------------------------------------------------


class PidFile:
    """A file with the id of this process. It is removed only if it is still the file that was created here.

    :param replaces: another daemon's file may be there: :meth:`write` replaces it.
    """

    def __init__(self, path: str, *, replaces: bool = False) -> None:
        self._path = self._final_path = os.path.abspath(path)  # a daemon changes its working directory
        if replaces:
            self._path += f".{os.getpid()}"  # until this process serves
        try:
            self._fd = open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError as error:
            raise FileExistsError(error.errno, f"the pid file is there already, {_owner(path)}", path) from None
        os.fchmod(self._fd, 0o644)

    def write(self) -> None:
        os.write(self._fd, b"%d\n" % os.getpid())
        if self._path != self._final_path:
            os.rename(self._path, self._final_path)
            self._path = self._final_path

    def remove(self) -> None:
        with suppress(OSError):
            if self._is_ours():
                os.unlink(self._path)
        os.close(self._fd)

    def await_successor(self) -> None:
        """Wait, for a limited time, until the process that took over has replaced this file by its own.

        :meth:`remove` first looks whose file it is, and then removes it: not the other's, put there in between.
        """
        until = monotonic() + SUCCESSOR_WAIT
        with suppress(OSError):
            while self._is_ours() and monotonic() < until:
                sleep(0.01)

    def _is_ours(self) -> bool:
        ours, there = os.fstat(self._fd), os.lstat(self._path)
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _owner(path: str) -> str:
    try:
        with open(path, "rb") as file:
            pid = int(file.read(32))
    except (OSError, ValueError):
        return "and holds no process id"
    return (
        f"of process {pid}, which runs" if is_alive(pid) else f"left behind by process {pid}, which is gone: remove it"
    )


def fill_standard_descriptors() -> None:
    """Open /dev/null as descriptors 0, 1 and 2 where they are closed, so that no socket gets one of these numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def release_standard_descriptors(errors: bool) -> None:
    """Replace standard input and output, and with ``errors`` standard error, by /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2) if errors else (0, 1):
        os.dup2(null, fd)
    os.close(null)


def allow_many_files() -> None:
    """Raise the limit of open files as far as the system allows: each client takes one descriptor."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def detach() -> tuple[bool, int]:
    """Fork into a new session. Returns, in the daemon, ``True`` and the pipe's end to write to; here, ``False`` and the
    end to read from."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        os.waitpid(child, 0)
        return False, reader
    os.close(reader)
    os.setsid()
    if os.fork():
        os._exit(EXIT_SUCCESS)  # the leader of a session could be given a terminal again
    os.chdir("/")
    return True, writer


def await_daemon(reader: int, undo: ExitStack, program: str) -> int:
    """Wait until the daemon listens. Returns the exit status of this process, which the user started."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        if pipe.read(1) == LISTENS:
            undo.pop_all()  # their files belong to the daemon now
            return EXIT_SUCCESS
    # It has printed the reason, unless it was killed. The callbacks of ``undo`` remove the files that it may have left.
    return complain(program, "the daemon ended before it listened")


# -- memory --------------------------------------------------------------------------------------------------


def look_once() -> None:
    """Freeze the objects that survive a full garbage collection (``gc.freeze``): later ones do not examine them.

    A hub with many patterns keeps some 100,000 objects, and examining them all takes tens of milliseconds. No object
    that it drops is part of a cycle: reference counting frees them all, the frozen ones too.
    """
    gc.freeze()
    gc.callbacks.append(_freeze_survivors)


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()


# -- systemd: sd_notify(3), sd_watchdog_enabled(3) ------------------------------------------------------------


def notify_supervisor(state: bytes, wait: float = 0.0) -> None:
    """Notify the supervisor of this process, if there is one: ``READY=1``, ``WATCHDOG=1``, ``MAINPID=…``.

    If its socket is full, waits for at most ``wait`` seconds.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith(("/", "@")):
        with suppress(OSError):  # a supervisor that is gone is no error
            send_datagram(address, state, wait)


_SUPERVISION: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC")


def supervision() -> dict[str, str]:
    """Return the environment variables that name the supervisor, if there is one: for the process that takes over."""
    return {name: os.environ[name] for name in _SUPERVISION if name in os.environ}


def take_supervision(handed_on: dict[str, str]) -> bool:
    """Adopt the former hub's supervisor. Returns ``False`` if this process has one of its own."""
    if "NOTIFY_SOCKET" in os.environ:
        return False
    os.environ.pop("WATCHDOG_PID", None)
    os.environ.update({name: handed_on[name] for name in _SUPERVISION if name in handed_on})
    return True


def watchdog(loop: Any) -> Any:
    """Notify the supervisor twice in each interval that ``loop`` runs. Returns the timer, or ``None``."""
    interval, pid = os.environ.get("WATCHDOG_USEC", ""), str(os.getpid())
    if os.environ.get("WATCHDOG_PID", pid) != pid or not re.fullmatch("0*[1-9][0-9]{,17}", interval):
        return None
    seconds = int(interval) / 2_000_000
    timer = loop.timer(seconds, seconds)
    timer.start(notify_supervisor, b"WATCHDOG=1")
    return timer
