"""Plays worlds, each in a child of its own: a world leaves nothing behind, and all begin with the same memory."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from .plan import Plan
from .world import Report, play

MOST_SECONDS: Final = 120
"""Seconds after which a world is killed: somebody spins. One takes less than a second of a processor."""


def play_apart(plan: Plan) -> Report:
    """Play a world in a child process."""
    folder = tempfile.mkdtemp(prefix="sbus-simulation-")
    try:
        report = in_child(lambda: _play_in(folder, plan))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not isinstance(report, Report):
        return Report((f"the process of the world has ended: {report}",), (), 0, 0.0, 0)
    return report


def _play_in(folder: str, plan: Plan) -> Report:
    os.chdir(folder)
    signal.alarm(MOST_SECONDS)
    gc.disable()  # it would run at times that no seed fixes
    return play(plan)


def in_child(function: Callable[[], Any]) -> Any:
    """Call a function in a child: its result, or the status with which the child ended."""
    source, target = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(source)
            with open(target, "wb") as pipe:
                pickle.dump(function(), pipe)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(target)
    with open(source, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(said) if status == 0 else status


def play_all(plans: Iterable[Plan], jobs: int) -> Iterator[tuple[Plan, Report]]:
    """Play many worlds, so many at a time."""
    if jobs == 1:
        for plan in plans:
            yield plan, play_apart(plan)
        return
    from concurrent.futures import ThreadPoolExecutor  # each thread waits for its child

    with ThreadPoolExecutor(jobs) as pool, suppress(KeyboardInterrupt):
        yield from pool.map(lambda plan: (plan, play_apart(plan)), plans)
