"""``sbus broker`` as a program: a hub with the services of queues and of last values."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cli.conftest import Program, Start
from support import PATIENCE, eventually

from sbuslib.blocking import Client


def services_of(broker: Program) -> dict[str, int]:
    """The processes of its services, by command."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sbuslib.cli.broker" in words and b"%d" % broker.pid in words:
            found[words[words.index(b"%d" % broker.pid) + 1].decode()] = int(folder.name)
    return found


def is_gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_everything_is_there_when_it_listens_and_outlives_its_end(ready: Start, path: str, tmp_path: Path) -> None:
    command = ["broker", "--store", str(tmp_path / "kept"), "--keep", "config/", "--keep", "room/*/temp"]
    broker = ready(*command)
    assert broker.told == f"sbus: listening at {path} (Ctrl-C ends it)\n"
    with Client(path) as client:
        client.publish("config/colour", b"blue")
        client.sync()
        assert [message.payload for message in client.last("config/", "room/1/temp")] == [b"blue"]
        client.queue("any").submit("new", b"job")
    services = services_of(broker)
    assert set(services) == {"queue", "retain"}
    broker.send_signal(signal.SIGTERM)
    assert broker.wait(PATIENCE) == 0
    assert broker.stderr.read() == b""
    assert all(map(is_gone, services.values()))
    assert sorted(name for name in os.listdir(tmp_path / "kept") if "-" not in name) == ["jobs.queue", "last.db"]

    ready(*command)
    with Client(path) as client:
        assert [message.payload for message in client.last("config/")] == [b"blue"]
        with client.queue("any").take() as worker:
            job = worker.receive(timeout=PATIENCE)
            assert (job.payload, job.done()) == (b"job", True)


def test_a_service_that_was_killed_is_started_again_and_no_job_is_lost(ready: Start, path: str, tmp_path: Path) -> None:
    broker = ready("broker", "--store", str(tmp_path))
    with Client(path) as client:
        client.queue("any").submit("new", b"job")
        first = services_of(broker)["queue"]
        os.kill(first, signal.SIGKILL)
        eventually(lambda: services_of(broker).get("queue", first) != first)
        with client.queue("any").take() as worker:
            assert worker.receive(timeout=PATIENCE).payload == b"job"


def test_no_service_outlives_a_broker_that_was_killed(ready: Start) -> None:
    broker = ready("broker", "--memory", "--keep", "a")
    services = services_of(broker)
    broker.kill()
    broker.wait()
    eventually(lambda: all(map(is_gone, services.values())))
    assert len(services) == 2


def test_what_cannot_be_is_refused_before_anything_starts(start: Start, path: str) -> None:
    broker = start("sbuslib", "broker", "-a", path, "--memory", "--producer", "no such user")
    assert broker.wait(PATIENCE) == 2
    assert b"there is no user 'no such user'" in broker.stderr.read()
    assert not os.path.exists(path)
