"""The examples, run as their first lines say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import wait_until
from support import PATIENCE, ROOT, HubThread

from sbuslib.blocking import Client

EXAMPLES = ROOT / "examples"
RUN_BY_OTHERS = ["spark_read.py"]
"""By tests/spark, in the session of Spark that its tests share."""
NEEDS_A_HUB = [
    "ask_and_answer.py",
    "handshake.py",
    "camera.py",
    "last_and_large.py",
    "publish_subscribe.py",
    "shared_queue.py",
    "threads.py",
    "typed_topics.py",
]

OWN = f"!/cred/{os.getgid()}/{os.getuid()}"
"""What the credential keys of this user begin with."""

Example = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def bus(folder: str) -> Iterator[HubThread]:
    """A hub in a thread, as the one that the reader starts."""
    with HubThread(os.path.join(folder, "bus")) as thread:
        yield thread


@pytest.fixture
def example(folder: str) -> Iterator[Example]:
    """Start an example, with the hub's address in the environment."""
    processes: list[subprocess.Popen[str]] = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SBUS_ADDRESS": os.path.join(folder, "bus")}

    def start(name: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, EXAMPLES / name, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        with process:
            process.kill()


def finish(process: subprocess.Popen[str]) -> str:
    """What a program printed; it must succeed and complain of nothing."""
    output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    return output


def test_each_is_short_tells_what_to_try_and_is_run_here() -> None:
    for path in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.c")]:
        lines = path.read_text().splitlines()
        assert len(lines) < 60, path
        assert re.search(r"^( \* )?Try: ", "\n".join(lines[:4]), re.MULTILINE), path
        assert f'"{path.name}"' in Path(__file__).read_text()


def test_demo(folder: str, tmp_path: Path) -> None:
    """With the commands as they are installed. It fails when a part does not happen, and leaves nothing behind."""
    sbus = tmp_path / "sbus"
    sbus.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sbuslib "$@"\n')
    sbus.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": folder}

    def demo() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(EXAMPLES / "demo.py")]
        patience = 5 * PATIENCE  # it starts twenty programs
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience, check=False)

    done = demo()
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^machine: MemAvailable: +\d+ kB$", done.stdout, re.MULTILINE)
    assert re.search(r"^overheard: bob \(request, reply to !/cred/[\d/]+\) Who am I\?$", done.stdout, re.MULTILINE)
    assert re.search(r"^a secret for !/cred/\d+/\d+/\d+ alone$", done.stdout, re.MULTILINE)
    assert (done.stderr, done.stdout.count("Ctrl-C")) == ("", 0), "each line says one thing, of what is shown"
    assert "Try next: docs/tutorial.md" in done.stdout.splitlines()[-1]
    sbus.write_text(sbus.read_text().replace("exec", '[ "$1" != serve ] || exit 1; exec'))
    assert (demo().returncode, os.listdir(folder)) == (1, [])


def test_camera(example: Example, bus: HubThread) -> None:
    lines = finish(example("camera.py")).splitlines()
    shown = "camera/front (1080, 1920), the line is at"
    assert sorted(lines) == [f"{name}: {shown} {number}" for name in ("left", "right") for number in range(5)]


def test_last_and_large(example: Example, bus: HubThread) -> None:
    import gevent

    from sbuslib.services.retain import Retain

    service = bus.call(lambda: Retain(bus.hub.address, b"config/"))
    running = bus.call(lambda: gevent.spawn(service.run))
    wait_until(service.is_settled.is_set)
    output = finish(example("last_and_large.py"))
    size = (EXAMPLES / "last_and_large.py").stat().st_size
    assert output.splitlines()[:2] == ["stands config/colour blue", "changed config/colour green"]
    assert sorted(output.splitlines()[2:]) == [f"received last_and_large.py {size}", "sent to 1"]
    bus.call(service.stop)
    bus.call(running.get)


def test_embed(example: Example) -> None:
    process = example("embed.py", "60")
    assert process.stdout is not None
    found = re.fullmatch(r"listening at (\S+) for 60 seconds\n", process.stdout.readline())
    assert found
    for temperature in ("21.0", "21.1", "21.2"):
        line = f"room/1/temp is {temperature}, says {OWN}/{process.pid}\n"
        assert process.stdout.readline() == line
    with Client(found[1]) as client:
        client.publish(b"room/2/temp", b"19.0")
    assert process.stdout.readline() == f"room/2/temp is 19.0, says {OWN}/{os.getpid()}\n"


def test_embed_ends_by_itself(example: Example) -> None:
    assert re.search(r"^HubStatistics\(.*clients=0,", finish(example("embed.py", "0.01")), re.MULTILINE)


def test_publish_subscribe(bus: HubThread, example: Example) -> None:
    assert finish(example("publish_subscribe.py")) == "room/1/temp 20.5\nroom/2/temp 21.0\nroom/3/temp 21.5\ndone \n"


def test_record_replay(example: Example) -> None:
    first, *rows, last = finish(example("record_replay.py")).splitlines()
    assert (first, last) == ("durable up to row 3", "played back: 20.5 21.0 21.5")
    assert rows == [f"{n} b'room/1/temp' b'{20 + n / 2}' of user {os.getuid()}" for n in (1, 2, 3)]


def test_per_user_buses(example: Example) -> None:
    lines = finish(example("per_user_buses.py")).splitlines()
    assert lines[1:3] == ["the operator sees tenants/alice/mail 3 unread", "alice sees host/shutdown at noon"]
    assert (lines[0], lines[-2]) == ("in force in the whole tree tree tree", "alice alone reads for your eyes only")


def test_typed_topics(bus: HubThread, example: Example) -> None:
    lines = finish(example("typed_topics.py")).splitlines()
    assert re.fullmatch(r"not published: .*-273\.15.*", lines[0])
    assert lines[1] == "room/1/reading Reading(celsius=21.5, battery=None)"
    assert lines[2] == "room/2/reading Reading(celsius=19.0, battery=0.8)"
    assert [line.partition(":")[0] for line in lines[3:]] == ["room/4/reading ignored"]


def test_threads(bus: HubThread, example: Example) -> None:
    *jobs, last = finish(example("threads.py")).splitlines()
    assert sorted(int(line.rpartition(" ")[2]) for line in jobs) == list(range(12))
    assert last == "all done, without gevent"


def test_shared_queue(bus: HubThread, example: Example) -> None:
    missing = example("shared_queue.py")
    assert missing.communicate(timeout=PATIENCE) == ("", "start the queue: sbus queue --memory thumbs photo/\n")
    command = [sys.executable, "-m", "sbuslib", "queue", "-a", bus.hub.address, "--memory", "thumbs", "photo/"]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE) as queue:
        assert queue.stderr is not None
        assert b"0 jobs wait" in queue.stderr.readline()
        output, errors = example("shared_queue.py").communicate(timeout=PATIENCE)
        queue.terminate()
    assert errors.rstrip().endswith("OSError: the disk is slow today"), "the traceback of the job that failed"
    lines = [f"photo {number} is small now, at attempt {2 if number == 7 else 1}" for number in range(10)]
    assert sorted(output.splitlines()) == sorted(["all photos are accepted", *lines])


def test_ask_and_answer(bus: HubThread, example: Example) -> None:
    serving = example("ask_and_answer.py", "serve")
    assert serving.stdout is not None
    assert serving.stdout.readline() == "ready\n"
    assert finish(example("ask_and_answer.py", "ask", "21.5")) == "70.7\n"
    cold = example("ask_and_answer.py", "ask", "-300")
    assert cold.communicate(timeout=PATIENCE) == ("", "colder than possible\n")


def test_handshake(bus: HubThread, example: Example) -> None:
    answering = example("handshake.py", "answer")
    assert answering.stdout is not None
    assert answering.stdout.readline() == f"waiting as {OWN}/{answering.pid}\n"
    asking = example("handshake.py", "ask")
    assert finish(asking) == f"the other one is {OWN}/{answering.pid}\n"
    assert finish(answering) == f"answered {OWN}/{asking.pid}\n"


@pytest.mark.parametrize("name", NEEDS_A_HUB)
def test_without_a_hub_each_says_how_to_start_one(example: Example, folder: str, name: str) -> None:
    process = example(name, *(["ask"] if name in ("ask_and_answer.py", "handshake.py") else []))
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert re.fullmatch(
        rf"no hub at {folder}/bus: No such file or directory; "
        r"(sbus hub -a /tmp/bus starts one, for which: |one may be at another address: )export SBUS_ADDRESS=/\S+\n",
        errors,
    )


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler: apt-get install gcc libc6-dev")
def test_c_client(bus: HubThread, folder: str) -> None:
    program = os.path.join(folder, "c_client")
    source = EXAMPLES / "c_client.c"
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True, timeout=PATIENCE)
    arguments = [program, bus.hub.address, "room/", "2"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process, Client(bus.hub.address) as client:
        assert process.stdout is not None
        assert process.stdout.readline() == f"subscribed as {OWN}/{process.pid}\n"
        client.publish_many([(b"room/1", b"warm"), (b"hall", b""), (b"room/2", b"cold")])
        assert process.stdout.read() == "room/1: warm\nroom/2: cold\n"
    assert process.returncode == 0
