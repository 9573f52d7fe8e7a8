"""``sbus watch`` on a bus in use: from what is published to the alert, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable

from support import PATIENCE, HubThread

from sbuslib import blocking

Start = Callable[..., "subprocess.Popen[bytes]"]

PAUSE = 0.05
ABOVE, BELOW = b"alerts/above/room/", b"alerts/below/beat"


def test_alerts_are_published_until_a_signal_ends_the_process_group(start: Start, bus: HubThread, path: str) -> None:
    options = ("--window", "1", "--above", "room/", "2", "--below", "beat", "1")
    watching = start("sbuslib", "watch", "-a", path, *options, start_new_session=True)
    told = dict[bytes, dict[str, object]]()
    with blocking.Client(path) as client:
        client.subscribe(b"alerts/")
        for number in range(round(PATIENCE / PAUSE)):
            client.publish(b"room/%d" % number)
            try:
                alert = client.receive(timeout=PAUSE)
            except TimeoutError:
                continue
            told[alert.key] = json.loads(alert.payload)
            if {ABOVE, BELOW} <= told.keys():
                break
    above, below = told[ABOVE], told[BELOW]
    assert (above["kind"], above["pattern"], above["limit"]) == ("above", "room/", 2)
    assert isinstance(above["messages"], int)
    assert above["messages"] > 2
    assert (below["kind"], below["pattern"], below["messages"]) == ("below", "beat", 0)
    os.killpg(watching.pid, signal.SIGTERM)
    shown, complaints = watching.communicate()
    assert watching.returncode == 0, complaints
    assert b"room/ " in shown
    assert b"alerts/above/room/: " in shown
