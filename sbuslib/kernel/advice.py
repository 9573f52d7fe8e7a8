"""Advice for the error when no hub is at an address: it may be elsewhere on this machine."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from shlex import quote


def advise_address(address: str | None) -> str:
    """Suggest what to try if there is no hub at the address, or at the usual ones. Names a hub that listens.

    Whoever gave an address meant that one: another hub may be of another application of the same user.
    """
    if address is not None and re.search(r"://|:[0-9]+$", address):
        return "an address is the path of a socket on this machine; sbus gateway joins the buses of two"
    if address is not None and os.path.exists(address):
        return f"sbus doctor -a {quote(address)} says why"
    listening = {}
    with suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words = line.rstrip("\n").split(None, 7)
            if len(words) < 8:
                continue  # a socket without a path, or a line of a path with a newline
            *_, flags, kind, _, _, path = words
            # One that listens, for sequenced packets. Those in these two folders are on most machines, and are no hubs.
            if (flags, kind) == ("00010000", "0005") and not path.startswith(("/run/udev/", "/run/systemd/")):
                with suppress(OSError):
                    there = os.stat(path)
                    # Never one of another user: that user would get all that is published there.
                    if os.access(path, os.W_OK) and there.st_uid in (0, os.geteuid()):
                        listening[there.st_mtime] = path
    other = quote(listening[max(listening)]) if listening else None
    if address is not None:
        return f"sbus hub -a {quote(address)} starts one" + (f"; another one listens at {other}" if other else "")
    if other is not None:
        return f"one may be at another address: export SBUS_ADDRESS={other}"
    return "sbus hub -a /tmp/bus starts one, for which: export SBUS_ADDRESS=/tmp/bus"
