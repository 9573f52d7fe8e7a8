"""``sbus why`` as a program."""

from __future__ import annotations

import json

from cli.conftest import Run
from support import HubThread

from sbuslib.blocking import Client


def test_why_a_message_arrives_or_does_not(run: Run, bus: HubThread, path: str) -> None:
    with Client(path) as client, client.subscribe(b"room/*"):
        while not client.hub.why("room/1").is_settled:
            client.sync()
        done = run("sbuslib", "why", "-a", path, "room/1")
        assert (done.returncode, done.stderr) == (0, "")
        first, *_, last = done.stdout.splitlines()
        assert first == "1 client would receive it: 1 sent"
        assert last.startswith("it would go to user root, ")
        assert last.endswith(", which has room/*: 0 of 65,536 messages wait, 0% full, queue/discard")
        own = client.hub.whoami().decode()
        assert run("sbuslib", "why", "-a", path, "room/1", "--from", "root", "--to", own).returncode == 0
        done = run("sbuslib", "why", "-a", path, "/room/1", "--json")
        told = json.loads(done.stdout)
        assert (done.returncode, told["arrives"], told["findings"][0]) == (1, False, "no client receives it")
        assert told["hops"][0]["explanation"]["near"][0]["pattern"] == "room/*"


def test_wrong_arguments(run: Run, bus: HubThread, path: str) -> None:
    for wrong, said in (
        ("nobody-at-all", "there is no user 'nobody-at-all' on this machine"),
        ("!/cred/1/2/x", "!/cred/1/2/x is neither the id of a user nor a credential key"),
    ):
        done = run("sbuslib", "why", "-a", path, "k", "--to", wrong)
        assert (done.returncode, done.stderr) == (2, f"sbus: {said}\n")
