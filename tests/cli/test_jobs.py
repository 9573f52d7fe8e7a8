"""Signals that end the wait of a command."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from support import PATIENCE

from sbuslib.cli import console, jobs

# -- What the commands about journals share: their errors, and the event of a signal


def test_a_signal_may_come_while_the_event_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may interrupt the main thread's ``wait``. To set the event in its handler would wait for ever."""
    installed: list[Callable[[], object]] = []
    monkeypatch.setattr(jobs, "on_stop", installed.append)
    event = jobs.stop_event()
    with event._cond:  # type: ignore[attr-defined]
        installed[0]()
        installed[0]()
        assert not event.is_set()
    assert event.wait(PATIENCE)


def test_a_signal_ends_the_wait_and_interrupts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits may hold a lock of a client, which would stay locked for ever."""
    installed: list[Callable[[], object]] = []
    monkeypatch.setattr(console, "on_stop", installed.append)
    waits, may_end, ended = (threading.Event() for _ in range(3))

    def wait() -> None:
        waits.set()
        may_end.wait(PATIENCE)
        ended.set()

    threading.Thread(target=lambda: waits.wait(PATIENCE) and installed[0]()).start()
    console.wait_for_ctrl_c(wait)
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(PATIENCE)
    with pytest.raises(ZeroDivisionError):
        console.wait_for_ctrl_c(lambda: 1 // 0)
