"""What the commands about journals share: their errors, and the event of a signal."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

import pytest
from support import PATIENCE

from sbuslib.cli import jobs
from sbuslib.cli.console import finish
from sbuslib.errors import StateError, UsageError


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UsageError("name a lake"), 2, "sbus: name a lake\n"),
        (StateError("there is no lake"), 1, "sbus: there is no lake\n"),
        (FileNotFoundError(2, "No such file", "/lake"), 1, "sbus: /lake: No such file\n"),
    ],
)
def test_errors_are_one_line(error: Exception, status: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    def work(arguments: Namespace) -> None:
        raise error

    assert finish("sbus", Namespace(run=work, verbose=False, quiet=False)) == status
    assert capsys.readouterr().err == line


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
