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
