"""The functions that all programs share."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from argparse import Namespace
from collections.abc import Callable

import pytest
from support import HubThread

from sbuslib.cli.console import STOPPING, advise, explain, on_stop
from sbuslib.errors import CorruptJournalError, NoHubError

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize(
    ("error", "address", "line"),
    [
        (NoHubError("no hub at /a: gone"), "/b", "/b: no hub at /a: gone"),
        (NoHubError("no hub at /: gone"), "/", "no hub at /: gone; sbus doctor -a / says why"),
        (NoHubError("gone"), "/a", "/a: gone"),
        (OSError(2, "No such file"), "/a", "/a: No such file"),
        (OSError(2, "No such file", "/b"), "/a", "/b: No such file"),
        (TimeoutError("too late"), None, "too late"),
        (ValueError("one\ntwo\x1b\udcff\\"), None, "one\\ntwo\\x1b\\xff\\"),
    ],
)
def test_explain_tells_an_error_in_one_line(error: Exception, address: str | None, line: str) -> None:
    assert explain(error, address) == line


@pytest.mark.parametrize(
    ("error", "options", "advice"),
    [
        (CorruptJournalError("damaged", 7), {"skip_corrupt": False}, "; --skip-corrupt goes on after it"),
        (RuntimeError("in a worker: CorruptJournalError: damaged"), {"skip_corrupt": False}, "; --skip-corrupt"),
        (CorruptJournalError("damaged", 7), {"skip_corrupt": True}, ""),
        (CorruptJournalError("damaged", 7), {}, ""),
        (NoHubError("gone"), {"skip_corrupt": False}, ""),
    ],
)
def test_advise_names_the_option_that_helps(error: Exception, options: dict[str, bool], advice: str) -> None:
    advised = advise(error, Namespace(**options))
    assert advised.startswith(advice)
    assert bool(advised) == bool(advice)


@pytest.mark.parametrize("ignored", [(), (signal.SIGINT,), (signal.SIGHUP,), (signal.SIGINT, signal.SIGHUP)])
def test_ignored_signals_stay_ignored(monkeypatch: pytest.MonkeyPatch, ignored: tuple[int, ...]) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    installed: dict[int, Callable[..., object]] = {}
    stopped: list[int] = []
    on_stop(lambda: stopped.append(1), installed.__setitem__)
    assert installed.keys() == set(STOPPING) - set(ignored)
    installed[signal.SIGTERM](signal.SIGTERM, None)  # as signal.signal calls it
    installed[signal.SIGTERM]()  # and gevent
    assert stopped == [1, 1]


def test_an_error_names_the_address_of_a_hub_that_runs(run: Run, bus: HubThread, path: str) -> None:
    """It names the hub that began to listen last; there may be others on this machine meanwhile."""
    for command in (("whoami",), ("pub", "key", "payload"), ("sub", "")):
        done = run("sbuslib", *command, env={"SBUS_ADDRESS": "/nowhere"})
        assert done.returncode == 1
        assert re.search(r"; one may be at another address: export SBUS_ADDRESS=/\S+\n$", done.stderr)
        done = run("sbuslib", command[0], "-a", "/nowhere", *command[1:])
        assert re.search(r"; one may be at another address: -a /\S+\n$", done.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket away")
def test_a_hub_of_a_stranger_is_never_recommended(run: Run, bus: HubThread, path: str) -> None:
    os.chown(path, 12_345, -1)
    done = run("sbuslib", "pub", "-a", "/nowhere", "key", "payload")
    assert done.returncode == 1
    assert path not in done.stderr
