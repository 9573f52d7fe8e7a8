"""``sbus present`` as a program."""

from __future__ import annotations

import json
import os
import pwd

from cli.conftest import Run, Start
from support import HubThread

from sbuslib.blocking import Client


def test_who_is_there_is_shown_in_lines(run: Run, bus: HubThread, path: str) -> None:
    assert run("sbuslib", "present", "-a", path).returncode == 1
    user = pwd.getpwuid(os.getuid()).pw_name
    with Client(path) as client, client.presence("worker/1", info=b"a\tb"), client.presence("other"):
        done = run("sbuslib", "present", "-a", path, "worker/*")
        assert (done.returncode, done.stdout) == (0, f"worker/1\t{user}\t{os.getpid()}\ta\\tb\n")
        shown = [json.loads(line) for line in run("sbuslib", "present", "-a", path, "--json").stdout.splitlines()]
        assert [(one["key"], one["event"]) for one in shown] == [("worker/1", "there"), ("other", "there")]


def test_who_comes_and_goes_is_followed(start: Start, bus: HubThread, path: str) -> None:
    with Client(path) as client, client.presence("a"):
        follower = start("sbuslib", "present", "-a", path, "--watch")
        assert follower.stdout.readline().startswith(b" \ta\t")
        with client.presence("b"):
            assert follower.stdout.readline().startswith(b"+\tb\t")
        line = follower.stdout.readline()
        assert (line[:4], line.rstrip().split(b"\t")[-1]) == (b"-\tb\t", b"closed")
