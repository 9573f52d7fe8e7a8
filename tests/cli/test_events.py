"""``sbus events`` as a program."""

from __future__ import annotations

import json
import os
import signal

from accounting import acting_as
from cli.conftest import Program, Start
from support import PATIENCE, Peer


def next_of(program: Program) -> str:
    """The next line, without its time."""
    return program.stdout.readline().decode().rstrip("\n").partition("  ")[2]


def test_events_are_shown_from_the_latest_on_and_across_a_restart(start: Start, serve: Start, path: str) -> None:
    hub = serve()
    events = start("sbuslib", "events", "-a", path)
    assert next_of(events) == "serves      serves"
    with Peer(path) as link:
        link.send(b"CMSG interest/on")
        assert next_of(events).startswith("joined      a link has joined: child; user ")
    assert next_of(events).startswith("ended       a link has ended")
    hub.kill()
    hub.wait()
    serve()
    assert next_of(events) == "serves      serves"
    events.send_signal(signal.SIGINT)
    assert events.wait(PATIENCE) == -signal.SIGINT


def test_events_are_chosen_by_kind_and_user(start: Start, serve: Start, path: str, folder: str) -> None:
    os.chmod(folder, 0o755)
    serve("-o")
    with Peer(path) as other, acting_as(4_321), Peer(path) as peer:
        for client in (other, peer):
            client.send(b"nonsense")
            assert client.is_disconnected()
    events = start("sbuslib", "events", "-a", path, "--json", "--kind", "refused", "--user", "4321")
    event = json.loads(events.stdout.readline())
    assert (event["kind"], event["uid"], event["pid"]) == ("refused", 4_321, os.getpid())
    assert event["cause"]
