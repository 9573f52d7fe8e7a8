"""Whether a hub may have come to an address: what a relay waits for beside its pauses.

A hub that listens at a path has made a socket file there. The event loop watches the paths with inotify(7), and with
stat(2) now and then where the kernel cannot tell. An abstract address has no file, so there pauses are short.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import gevent
from gevent.event import Event

from ..clients.reconnect import NOBODY_PAUSE_MOST
from ..wire.addresses import PathAddress, parse_address

__all__ = ["Arrivals"]

LISTEN_PAUSE: Final = 0.01
"""Seconds between the sight of a new file and the attempt to connect: a hub binds its socket, then listens."""

_File: TypeAlias = tuple[int, int, int] | None


class Arrivals:
    """What changes at some addresses of hubs. For one greenlet."""

    def __init__(self, addresses: Iterable[str]) -> None:
        parsed = [parse_address(address) for address in addresses]
        self._paths = [address.path for address in parsed if isinstance(address, PathAddress)]
        self._blind = len(self._paths) < len(parsed)
        self._seen: list[_File] = []

    def look(self) -> None:
        """Note what is there now, before it is tried."""
        self._seen = self._files()

    def wait(self, seconds: float) -> bool:
        """Wait until something is there that was not when :meth:`look` was called; whether that came in time."""
        changed = Event()
        if self._blind:
            seconds = min(seconds, NOBODY_PAUSE_MOST)

        def check() -> None:  # the event loop may call this without a reason
            if self._came():
                changed.set()

        loop: Any = gevent.get_hub().loop
        watchers = [loop.stat(path) for path in self._paths]
        try:
            for watcher in watchers:
                watcher.start(check)
            check()
            came = bool(changed.wait(seconds))
            if came:
                gevent.sleep(LISTEN_PAUSE)
            return came
        finally:
            for watcher in watchers:
                watcher.stop()
                watcher.close()

    def _came(self) -> bool:
        return any(now is not None and now != before for before, now in zip(self._seen, self._files(), strict=True))

    def _files(self) -> list[_File]:
        return [_identify(path) for path in self._paths]


def _identify(path: str) -> _File:
    """Which file is at a path, if any."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
