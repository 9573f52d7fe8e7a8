"""A hub in another pid namespace than its client, as in containers: ``docs/how-to/containers.md``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from support import PATIENCE

from sbuslib.blocking import Client
from sbuslib.errors import RefusedError

UNSHARE = [shutil.which("unshare") or "unshare", "--pid", "--fork", "--kill-child"]


def can_unshare() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True, timeout=PATIENCE, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not can_unshare(), reason="may not make pid namespaces")


@pytest.fixture
def elsewhere(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``python -m`` with arguments in a pid namespace of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [*UNSHARE, sys.executable, "-m", *arguments]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()  # unshare has the kernel kill its child with it
        process.communicate()


def test_a_hub_that_does_not_know_a_process_id_says_so(
    elsewhere: Callable[..., subprocess.Popen[str]],
) -> None:
    hub = elsewhere("sbuslib.cli.daemon", "-f", "-a", "/dev/unix/abstract")
    assert hub.stdout is not None
    with Client(hub.stdout.readline().strip()) as client:  # it prints its address once it listens
        assert client.credentials == b"!/cred/%d/%d/0" % (os.getgid(), os.getuid())
        shared = b"!/cred/%d/%d//x" % (os.getgid(), os.getuid())
        client.subscribe(shared)
        client.publish(shared, b"hello")
        assert client.receive(timeout=PATIENCE).payload == b"hello"
        with pytest.raises(RefusedError, match="with a process id, and yours is unknown here"):
            client.subscribe(client.credentials + b"/x")


def test_a_client_in_a_container_has_a_process_id_on_the_host(
    elsewhere: Callable[..., subprocess.Popen[str]], bus: object, path: str
) -> None:
    client = elsewhere("sbuslib", "whoami", "-a", path)
    assert client.stdout is not None
    pid = int(client.stdout.read().strip().rpartition("/")[2])
    assert pid > 1
