"""``sbus web`` as a program. ``tests/web/test_page.py`` has its page in a browser."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable

import pytest
from support import PATIENCE, HubThread
from web.http import get

Start = Callable[..., "subprocess.Popen[bytes]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_address_of_the_page_is_printed_and_served(
    start: Start, bus: HubThread, path: str, number: signal.Signals
) -> None:
    process = start("sbuslib", "web", "-a", path)
    assert process.stdout is not None
    url = process.stdout.readline().decode()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/\n", url)
    base, token = url.rstrip("/\n").rsplit("/", 1)
    assert get(base, f"/{token}/").status == 200
    process.send_signal(number)
    assert process.wait(PATIENCE) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_a_missing_hub_is_an_error_of_one_line(run: Run, path: str) -> None:
    done = run("sbuslib", "web", "-a", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"sbus: no hub at {path}: No such file or directory; ")


def test_a_user_that_the_hub_does_not_trust_is_refused(run: Run, bus: HubThread, path: str) -> None:
    bus.call(lambda: setattr(bus.hub.context, "trusted", frozenset()))  # as another user would find it
    done = run("sbuslib", "web", "-a", path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "not trusted with statistics" in done.stderr


@pytest.mark.parametrize("where", ["0.0.0.0:0", "127.0.0.1:x", "/nowhere/at/all"])
def test_an_address_where_the_page_cannot_be_served_is_an_error(
    run: Run, bus: HubThread, path: str, where: str
) -> None:
    done = run("sbuslib", "web", "-a", path, "--listen", where)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1 if where[0] == "/" else 2, "", 1)
    assert where in done.stderr
