"""``sbusd``, which gets a signal just before the nth thing that it says or hears while a hub is handed over.

``python dying.py N SIGNAL ARGUMENTS...``
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

from sbuslib.cli import daemon
from sbuslib.core import handover

number, signal = int(sys.argv[1]), int(sys.argv[2])
steps = count(1)


def counted(step: Callable[..., Any]) -> Callable[..., Any]:
    def counting(*arguments: Any) -> Any:
        if next(steps) == number:
            os.kill(os.getpid(), signal)
        return step(*arguments)

    return counting


for name in ("_send", "_receive"):
    setattr(handover, name, counted(getattr(handover, name)))
sys.exit(daemon.main(sys.argv[3:]))
