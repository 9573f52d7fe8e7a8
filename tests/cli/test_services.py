"""Commands that serve: ``sbus queue``, ``sbus retain`` and ``sbus get`` as programs."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from cli.conftest import Program, Run, Start, write_little
from support import PATIENCE, HubThread

from sbuslib import Job
from sbuslib.blocking import Client


def last(process: Program) -> str:
    """The rest of what an ended process said. ``communicate()`` would pass over what was read ahead."""
    process.wait(PATIENCE)
    return process.stderr.read().decode()


def end(process: Program, number: int = signal.SIGTERM) -> str:
    """End a process by a signal; what it said last."""
    process.send_signal(number)
    said = last(process)
    assert process.returncode == (0 if number == signal.SIGTERM else -number)
    return said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_jobs_outlive_the_program_unless_they_are_in_memory(
    bus: HubThread, ready: Start, path: str, tmp_path: Path, number: int
) -> None:
    for options, kept in ((["--store", str(tmp_path / "jobs")], 2), (["--memory"], 0)):
        command = ["queue", *options, "mail", "mail/", "post/"]
        service = ready(*command)
        assert service.told == f"sbus: 0 jobs wait in mail on {path} (Ctrl-C ends it)\n"
        begun, go = SimpleQueue[Job](), threading.Event()

        def work(job: Job, begun: Any = begun, go: Any = go) -> None:
            begun.put(job)
            assert go.wait(PATIENCE)

        with Client(path) as client, client.queue("mail").work(work, prefetch=2, at_once=2):
            client.publish(b"mail/x", b"1")
            client.publish(b"post/x", b"2")
            jobs = sorted((begun.get(timeout=PATIENCE) for _ in range(2)), key=lambda job: job.number)
            assert [(job.key, job.payload, job.attempt) for job in jobs] == [(b"mail/x", b"1", 1), (b"post/x", b"2", 1)]
            said = end(service, number)
            go.set()
        if number == signal.SIGTERM:
            end_of_two = "2 lost with --memory" if "--memory" in options else "2 kept"
            assert said == f"sbus: 2 jobs accepted, 0 refused, 0 done, {end_of_two}\n"
        service = ready(*command)
        assert service.told.startswith(f"sbus: {kept} jobs wait")
        end(service)


def test_a_queue_in_memory_needs_no_place_for_files(bus: HubThread, ready: Start) -> None:
    end(ready("queue", "--memory", "mail", "mail/", env={"HOME": "/dev/null"}))


def test_a_file_has_one_service(bus: HubThread, ready: Start, run_here: Run, path: str, tmp_path: Path) -> None:
    file = str(tmp_path / "q")
    in_use = ready("queue", "--store", file, "mail", "mail/")
    done = run_here("sbuslib", "queue", "-a", path, "--store", file, "mail", "mail/")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "locked" in done.stderr
    end(in_use)


@pytest.mark.promise("patterns.md", "One service has a queue")
def test_a_second_service_of_one_name_ends(bus: HubThread, ready: Start, path: str) -> None:
    elder = ready("queue", "--memory", "mail", "mail/")
    younger = ready("queue", "--memory", "mail", "other/")
    said = last(younger)
    assert (younger.returncode, said.count("\n")) == (1, 1)
    assert f"/{elder.pid}, has the queue mail already" in said
    other = ready("queue", "--memory", "post", "mail/")
    with Client(path) as client:
        client.queue("mail").submit(b"mail/x", timeout=PATIENCE)
        client.queue("post").submit(b"mail/x", timeout=PATIENCE)
    end(other)
    end(elder)


def test_a_disk_that_is_full_ends_the_program(bus: HubThread, ready: Start, path: str, tmp_path: Path) -> None:
    file = tmp_path / "q"
    service = ready("queue", "--store", str(file), "mail", "mail/", preexec_fn=write_little)
    with Client(path) as client:
        for _ in range(10):
            client.publish(b"mail/x", os.urandom(100_000))
    said = last(service)
    assert service.returncode == 1
    assert said.startswith(f"sbus: {file}: "), said


def test_queues_are_listed_and_purged(bus: HubThread, ready: Start, run_here: Run, path: str, tmp_path: Path) -> None:
    service = ready("queue", "--store", str(tmp_path), "--sync", "1ms", "app*")
    with Client(path) as client:
        for name in ("app-a", "app-b", "app-b"):
            client.queue(name).submit("x")
    listed = run_here("sbuslib", "queue", "-a", path, "--list", "--json")
    states = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(state["queue"], state["waiting"], state["held"]) for state in states] == [("app-a", 1, 0), ("app-b", 2, 0)]
    listed = run_here("sbuslib", "queue", "-a", path, "--list")
    rows = [line.split()[:4] for line in listed.stdout.splitlines()]
    assert rows == [["QUEUE", "WAITING", "HELD", "WORKERS"], ["app-a", "1", "0", "0"], ["app-b", "2", "0", "0"]]
    purged = run_here("sbuslib", "queue", "-a", path, "--purge", "app-b")
    assert (purged.returncode, purged.stderr) == (0, "sbus: 2 jobs of app-b are forgotten\n")
    refused = run_here("sbuslib", "queue", "-a", path, "--purge", "app")
    assert refused.stderr == "sbus: 0 jobs of app are forgotten\n"
    assert (tmp_path / "app*.queue").exists()
    assert end(service).endswith("3 jobs accepted, 0 refused, 0 done, 1 kept\n")


def test_dead_jobs_are_shown_and_put_back(
    bus: HubThread, ready: Start, run_here: Run, path: str, tmp_path: Path
) -> None:
    service = ready("queue", "--store", str(tmp_path), "--max-each", "2", "app*")
    with Client(path) as client:
        for payload in (b"a\tb", b"x" * 100):
            client.queue("app-a").submit("new", payload)
        with client.queue("app-a").take() as worker:
            for _ in range(2):
                worker.receive(timeout=PATIENCE).reject()
        shown = run_here("sbuslib", "queue", "-a", path, "--dead", "app-a")
        sender = client.credentials.decode()
        rows = [line.split() for line in shown.stdout.splitlines()]
        assert rows == [
            ["NUMBER", "SENDER", "KEY", "PAYLOAD"],
            ["1", sender, "new", "a\\tb"],
            ["2", sender, "new", "x" * 80, "..."],
        ]
        client.queue("app-a").submit("later")
        assert run_here("sbuslib", "queue", "-a", path, "--retry", "app-a").stderr == (
            "sbus: 1 dead jobs of app-a are back in it\n"
        )
        end(service)

        # It is stored that they are back.
        service = ready("queue", "--store", str(tmp_path), "app*")
        assert (client.queue("app-a").status().waiting, client.queue("app-a-dead").status().waiting) == (2, 1)
        assert client.queue("app-a").retry() == 1
        assert client.queue("app-a-dead").retry() == 0
        with client.queue("app-a").take() as worker:
            jobs = [worker.receive(timeout=PATIENCE) for _ in range(3)]
            assert sorted((job.key, job.attempt, job.sender) for job in jobs) == [
                (b"later", 1, client.credentials),
                (b"new", 1, client.credentials),
                (b"new", 1, client.credentials),
            ]
    end(service)


def test_the_newest_message_is_shown_also_after_a_restart(
    run: Run, ready: Start, bus: HubThread, path: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "last.db")
    assert "nobody keeps a/1: start sbus retain" in run("sbuslib", "get", "-a", path, "a/1").stderr
    for kept in (0, 2):
        service = ready("retain", "--store", file, "--max-keys", "2", "a/")
        assert service.told == f"sbus: {kept} keys are kept of {path} (Ctrl-C ends it)\n"
        if not kept:
            for key, payload in (("a/0", "gone"), ("a/1", "old"), ("a/1", "x\ty"), ("a/2", "z")):
                assert run("sbuslib", "pub", "-a", path, key, payload).returncode == 0
        done = run("sbuslib", "get", "-a", path, "a/*")
        assert (done.returncode, done.stdout, done.stderr) == (0, "a/1\tx\\ty\na/2\tz\n", "")
        assert run("sbuslib", "get", "-a", path, "--raw", "a/1").stdout == "x\ty"
        done = run("sbuslib", "get", "-a", path, "a/3")
        assert (done.returncode, done.stdout, done.stderr) == (1, "", "sbus: no message is kept there\n")
        service.send_signal(signal.SIGTERM)
        service.communicate(timeout=20)
        assert service.returncode == 0


def test_a_file_that_is_no_database_is_an_error(run_here: Run, bus: HubThread, path: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text" * 1_000)
    done = run_here("sbuslib", "retain", "-a", path, "--store", str(tmp_path / "text"), "a/")
    assert (done.returncode, done.stderr) == (1, f"sbus: {tmp_path}/text: file is not a database\n")
