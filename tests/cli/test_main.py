"""The commands and their arguments: help, values, wrong ones, and errors of a program."""

from __future__ import annotations

import re
import threading
from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest
from cli.conftest import Run
from support import PATIENCE, HubThread

import sbuslib
from sbuslib.cli import console, jobs, messages
from sbuslib.cli.main import every_parser, parse
from sbuslib.cli.values import count, moment, prefixes, seconds, separator, size, speed

# -- Every command as a program: its help, and errors that read as errors of a program and not of Python


def test_every_command_has_help() -> None:
    for command, parser in every_parser():
        text = parser.format_help()
        assert text.startswith(f"usage: sbus {command} ")
        assert "\nexamples:\n  " in text


def test_version_is_printed(run: Run) -> None:
    assert run("sbuslib", "--version").stdout == f"sbus {sbuslib.__version__}\n"


def test_an_unforeseen_error_ends_the_command_with_a_traceback_and_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "connected", lambda arguments: 1 // 0)
    done = run("sbuslib", "whoami")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("sbus: whoami ended by an unforeseen error: ZeroDivisionError: ")


SLOW = {"typing", "msgspec", "socket", "logging", "shutil", "gevent"}


@pytest.mark.parametrize(
    ("words", "does", "never"),
    [
        ("sbuslib --help", "sbuslib.cli.main", SLOW | {"_socket", "sbuslib.cli.tables"}),
        ("sbuslib pub -a {}/bus key payload", "_socket", SLOW | {"sbuslib.blocking", "argparse"}),
        ("sbuslib journal verify {}/journal", "sbuslib.journal.verify", {"gevent", "pyspark", "pyarrow", "asyncio"}),
        ("sbuslib.cli.daemon --version", "sbuslib.cli.console", {"gevent"}),
    ],
)
def test_a_command_loads_what_it_needs(
    execute: Run, bus: HubThread, folder: str, journal: str, words: str, does: str, never: set[str]
) -> None:
    done = execute(*words.format(folder).split(), env={"PYTHONPROFILEIMPORTTIME": "1"})
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 0
    assert does in loaded
    assert not loaded & never


# -- ``sbus help`` as a program


def test_help_shows_what_the_option_shows(run: Run) -> None:
    for words in ((), ("pub",), ("stat",)):
        done = run("sbuslib", "help", *words)
        assert (done.returncode, done.stdout) == (0, run("sbuslib", *words, "--help").stdout)


# -- Wrong arguments of the programs, and how their help is laid out


@pytest.mark.parametrize(
    ("arguments", "usage", "error"),
    [
        (("sub", "--coutn", "3", ""), "usage: sbus sub ", "there is no option --coutn: did you mean --count?"),
        (("sub", "--coutn=3", ""), "usage: sbus sub ", "there is no option --coutn: did you mean --count?"),
        (("pub", "k", "v", "--zzzzz"), "usage: sbus pub ", "there is no option --zzzzz\n"),
        (("pub", "k", "v", "more"), "usage: sbus pub ", "unexpected argument: more"),
        (("lake", "ingest", "--folow", "a", "b"), "usage: sbus journal ingest ", "did you mean --follow?"),
        (("whoam",), "usage: sbus ", "there is no command whoam: did you mean whoami?"),
        (("publish", "k", "v"), "usage: sbus ", "there is no command publish: did you mean pub?"),
        (("-a", "/tmp/bus", "pub"), "usage: sbus ", "options stand after the command: sbus pub -a ..."),
        (("bridge", "--export", "a", "nats://b"), "usage: sbus bridge ", "required: URL; it comes before options that"),
        (("listen",), "usage: sbus ", "there is no command listen: did you mean sub?"),
        (("repaly", "j"), "usage: sbus ", "there is no command repaly: did you mean journal replay?"),
        (("journal", "recrod", "j"), "usage: sbus journal ", "there is no verb recrod: did you mean record?"),
        (("journal",), "usage: sbus journal ", "a verb is missing"),
        (("sub", "--file", "x", ""), "usage: sbus sub ", "there is no option --file\n"),
        (("--hlep",), "usage: sbus ", "there is no option --hlep: did you mean --help?"),
    ],
)
def test_a_wrong_option_shows_the_usage_and_the_nearest(
    run: Run, arguments: tuple[str, ...], usage: str, error: str
) -> None:
    done = run("sbuslib", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(usage)
    assert error in done.stderr


def test_a_wrong_option_of_the_daemon_shows_the_nearest(run_here: Run) -> None:
    done = run_here("sbuslib.cli.daemon", "--foregruond")
    assert done.returncode == 2
    assert done.stderr.endswith("sbusd: error: there is no option --foregruond: did you mean --foreground?\n")


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("clients -v --rows 3", "stat -v --clients --rows 3"),
        ("-q tree --window 1", "stat -q --tree --window 1s"),
        ("lake -q ingest a b", "journal ingest -q a b"),
        ("record j", "journal record j"),
    ],
)
def test_old_names_are_the_new_ones(words: str, same: str) -> None:
    old, new = vars(parse(words.split())), vars(parse(same.split()))
    assert old.pop("parser").prog == new.pop("parser").prog
    assert old == new


def test_help_fills_paragraphs_and_keeps_examples(run: Run) -> None:
    for columns in ("60", "100"):
        done = run("sbuslib", "sub", "--help", env={"COLUMNS": columns})
        described, _, examples = done.stdout.partition("\nexamples:\n")
        assert max(map(len, described.splitlines())) < int(columns)
        assert "  sbus sub 'room/*/temp'                      * stands for all up to the next /\n" in examples


# -- Numbers, sizes, times and prefixes as they are written on a command line


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (count, "1", 1),
        (size, "1000", 1_000),
        (size, "64K", 65_536),
        (size, "1.5G", 3 * 2**29),
        (size, "0.1", 1),
        (seconds, "90", 90),
        (seconds, "15m", 900),
        (seconds, "12h", 43_200),
        (seconds, "30d", 2_592_000),
        (seconds, "1w", 604_800),
        (speed, "2", 2),
        (speed, "0.5x", 0.5),
        (prefixes, "room/=k/=", (b"room/", b"k/=")),
        (prefixes, "=", (b"", b"")),
        (prefixes, "\udcff=b", (b"\xff", b"b")),
        (separator, ".", b"."),
        (moment, "@1.5", 1_500_000_000),
        (moment, "1970-01-01T00:00:01+00:00", 1_000_000_000),
        (moment, "1970-01-01T01:00:00.000001+01:00", 1_000),
    ],
)
def test_texts_become_values(read: Callable[[str], object], text: str, value: object) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((count, text) for text in ("0", "-1", "1.5", "", "many")),
        *((size, text) for text in ("0", "-1K", "K", "nan", "inf", "9E", "8388608T")),
        *((seconds, text) for text in ("0", "-1s", "s", "nan", "inf", "1y")),
        *((speed, text) for text in ("0", "x", "2xx", "-1x")),
        (prefixes, "room/"),
        (moment, "noon"),
        (moment, "@noon"),
    ],
)
def test_texts_without_a_meaning_are_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^'{re.escape(text)}' is no "):
        read(text)


# -- What the commands about journals share: their errors, and the event of a signal


def test_a_signal_may_come_while_the_event_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may interrupt the main thread's ``wait``. To set the event in its handler would wait for ever."""
    installed: list[Callable[[], object]] = []
    monkeypatch.setattr(jobs, "on_stop", installed.append)
    event = jobs.stop_event()
    with event._cond:  # type: ignore[attr-defined]
        installed[0]()
        installed[0]()
        assert not event.is_set()
    assert event.wait(PATIENCE)


def test_a_signal_ends_the_wait_and_interrupts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits may hold a lock of a client, which would stay locked for ever."""
    installed: list[Callable[[], object]] = []
    monkeypatch.setattr(console, "on_stop", installed.append)
    waits, may_end, ended = (threading.Event() for _ in range(3))

    def wait() -> None:
        waits.set()
        may_end.wait(PATIENCE)
        ended.set()

    threading.Thread(target=lambda: waits.wait(PATIENCE) and installed[0]()).start()
    console.wait_for_ctrl_c(wait)
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(PATIENCE)
    with pytest.raises(ZeroDivisionError):
        console.wait_for_ctrl_c(lambda: 1 // 0)
