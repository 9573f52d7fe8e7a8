"""The processes of the demo, each run as a program on a real hub."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

from support import PATIENCE, HubThread

from sbuslib.blocking import Client

Start = Callable[..., "subprocess.Popen[bytes]"]

ROLES = "sbuslib.cli.demo_roles"


def reported(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    told: dict[str, Any] = json.loads(process.stdout.readline())
    return told


def go_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b".")
    process.stdin.flush()


def test_a_subscriber_reports_each_message(start: Start, bus: HubThread, path: str) -> None:
    process = start(ROLES, "subscriber", path, "room/", "2")
    assert reported(process) == {"event": "ready"}
    with Client(path) as client:
        client.publish_many([(b"room/1", b"a"), (b"hall", b"b"), (b"room/2", b"c")])
        client.sync()
    assert reported(process) == {"event": "received", "key": "room/1", "payload": "a"}
    assert reported(process) == {"event": "received", "key": "room/2", "payload": "c"}
    assert process.wait(PATIENCE) == 0


def test_a_publisher_publishes_figures_of_this_machine(start: Start, bus: HubThread, path: str) -> None:
    with Client(path) as client:
        client.subscribe(b"")
        process = start(ROLES, "publisher", path, "machine", "1", "0.01")
        assert reported(process) == {"event": "ready"}
        go_on(process)
        for name, words in (("cpu", "% busy"), ("memory", "GiB in use"), ("network", "KiB/s out")):
            message = client.receive(timeout=PATIENCE)
            assert message.key == f"machine/{name}".encode()
            assert message.payload.decode().endswith(words)
            told = reported(process)
            assert (told["key"], told["payload"]) == (f"machine/{name}", message.payload.decode())
        assert process.wait(PATIENCE) == 0


def test_a_recorder_records_until_it_is_told_to_end(start: Start, bus: HubThread, folder: str, path: str) -> None:
    process = start(ROLES, "recorder", path, os.path.join(folder, "journal"))
    assert reported(process) == {"event": "ready"}
    with Client(path) as client:
        client.publish_many((b"k", b"%d" % number) for number in range(10))
        client.sync()
    go_on(process)
    assert reported(process) == {"event": "recorded", "messages": 10, "durable": 10}
    assert process.wait(PATIENCE) == 0


def test_alice_and_bob_prove_who_they_are_and_an_eavesdropper_reads_no_secret(
    start: Start, bus: HubThread, path: str
) -> None:
    eavesdropper, bob, alice = (start(ROLES, role, path) for role in ("eavesdropper", "bob", "alice"))
    for process in (eavesdropper, bob, alice):
        assert reported(process) == {"event": "ready"}
    go_on(alice)
    own, other = (f"!/cred/{os.getgid()}/{os.getuid()}/{process.pid}" for process in (alice, bob))
    assert reported(alice) == {"event": "checked", "other": other, "proven": True}
    assert reported(bob) == {"event": "checked", "other": own, "proven": True}
    assert (alice.wait(PATIENCE), bob.wait(PATIENCE)) == (0, 0)
    go_on(eavesdropper)
    assert reported(eavesdropper) == {"event": "saw", "messages": [["demo/hello", own]]}
    assert reported(eavesdropper) == {"event": "disconnected", "pattern": f"{own}/"}
    assert eavesdropper.wait(PATIENCE) == 0


def test_a_process_ends_with_its_director(start: Start, bus: HubThread, path: str) -> None:
    process = start(ROLES, "subscriber", path, "", "1")
    assert reported(process) == {"event": "ready"}
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE) == 1


def test_a_missing_hub_is_an_error_of_one_line(start: Start, path: str) -> None:
    process = start(ROLES, "bob", path)
    assert process.stderr is not None
    assert process.stderr.read().startswith(f"demo: bob: no hub at {path}: No such file or directory".encode())
    assert process.wait(PATIENCE) == 1
