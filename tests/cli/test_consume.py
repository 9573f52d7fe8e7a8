"""``sbus consume`` as a program."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

from segments.journals import SENDER, message, write
from support import PATIENCE, HubThread

from sbuslib.blocking import Client
from sbuslib.journal.consume import consume

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[bytes]"]


def test_each_run_goes_on_where_the_one_before_stopped(run: Run, journal: str) -> None:
    done = run("sbuslib", "consume", "a", journal, "-n", "1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "room/1/temp\t21.5\n", "")
    done = run("sbuslib", "consume", "a", journal, "room/2/", "k", "--once", "--senders")
    assert done.stdout == f"{SENDER.decode()}\troom/2/temp\t19\n{SENDER.decode()}\troom/2/temp\txxxxxxxxx\n" + (
        f"{SENDER.decode()}\tk\ty\n"
    )
    assert done.stderr.splitlines() == [
        "sbus: row 5: 7 messages were lost: overflow",
        "sbus: row 6: an unknown number of messages were lost: outage",
        "sbus: row 7: 1 messages were lost: overflow",
    ]
    done = run("sbuslib", "consume", "a", journal, "--once")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads(run("sbuslib", "consume", "b", journal, "-n", "1", "--json").stdout)["key"] == "room/1/temp"


def test_what_is_recorded_meanwhile_is_shown(start: Start, bus: HubThread, path: str, folder: str) -> None:
    journal = f"{folder}/recorded"
    recording = start("sbuslib", "record", "-a", path, journal)
    assert recording.stderr is not None
    recording.stderr.readline()
    shown = start("sbuslib", "consume", "a", journal, "room/")
    assert shown.stdout is not None
    with Client(path) as client:
        for number in range(3):
            client.publish(b"hall", b"")
            client.publish(b"room/1", b"%d" % number)
            assert shown.stdout.readline() == b"room/1\t%d\n" % number
    shown.kill()
    shown.wait()
    with consume("a", [b"room/"], journal, follow=False) as consumer:
        assert len(list(consumer)) <= 1, "what was shown before the last message was acknowledged before it"


def test_a_command_is_run_for_each_message_until_one_fails(run: Run, journal: str, folder: str) -> None:
    command = (
        f'test "$SBUS_ROW" != 4 && printf "%s %s " "$SBUS_KEY" "$SBUS_SENDER" >>{folder}/out && cat >>{folder}/out'
    )
    done = run("sbuslib", "consume", "a", journal, "room/", "log/", "--execute", command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "sbus: the command ended with status 1, and gets this message again\n"
    with open(f"{folder}/out", "rb") as file:
        assert file.read() == b"room/1/temp %b 21.5log/a %b room/1/temp %b " % (SENDER, SENDER, SENDER) + b"\0\xff" * 20
    done = run("sbuslib", "consume", "a", journal, "-n", "1", "-x", "exit 0")
    assert (done.returncode, done.stderr) == (0, ""), "it need not read its standard input"
    done = run("sbuslib", "consume", "a", journal, "-n", "1")
    assert done.stdout == "room/2/temp\txxxxxxxxx\n"


def test_a_key_that_no_environment_takes_is_not_told(run: Run, folder: str) -> None:
    write(f"{folder}/journal", [[message(1, b"k" * 300_000, b"x" * 300_000)]])
    command = f'echo "${{SBUS_KEY-none}} $(wc -c)" >{folder}/out'
    done = run("sbuslib", "consume", "a", f"{folder}/journal", "--once", "-x", command)
    assert (done.returncode, done.stderr) == (0, "")
    with open(f"{folder}/out") as file:
        assert file.read().split() == ["none", "300000"]


def test_nothing_that_comes_in_time_is_told(run: Run, journal: str) -> None:
    done = run("sbuslib", "consume", "a", journal, "log/", "--timeout", "0.1s")
    assert (done.returncode, done.stdout) == (1, "log/a\t\n")
    assert done.stderr.endswith("no row came within 0.1 s\n")
    assert run("sbuslib", "consume", "a", journal, "log/", "--once").stdout == ""


def test_a_second_consumer_of_a_name_is_refused(start: Start, run: Run, journal: str, folder: str) -> None:
    first = start("sbuslib", "consume", "a", journal, "--positions", folder)
    assert first.stdout is not None
    first.stdout.readline()
    done = run("sbuslib", "consume", "a", journal, "--positions", folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("consumer-a.sqlite: another consumer of this name is at work\n")
    first.kill()
    first.wait(PATIENCE)
    assert run("sbuslib", "consume", "a", journal, "--positions", folder, "--once").returncode == 0


def test_damage_is_skipped_if_asked(run: Run, journal: str) -> None:
    with open(os.path.join(journal, min(os.listdir(journal))), "r+b") as file:
        file.seek(250)
        file.write(b"\xee")
    done = run("sbuslib", "consume", "a", journal, "--once")
    assert done.returncode == 1
    assert done.stderr.endswith("; --skip-corrupt goes on after it\n")
    done = run("sbuslib", "consume", "a", journal, "--once", "--skip-corrupt")
    assert (done.returncode, done.stdout.count("\n")) == (0, 3)
    assert done.stderr.startswith("sbus: row 3: 3 messages were lost: damaged\n")
