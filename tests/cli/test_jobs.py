"""What the commands about journals share: their errors, and the event of a signal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import PATIENCE

from sbuslib.cli import jobs


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
