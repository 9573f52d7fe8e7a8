"""The commands and their arguments: help, values, wrong ones, and errors of a program."""

from __future__ import annotations

import pytest
from cli.conftest import Run
from support import HubThread

import sbuslib
from sbuslib.cli import messages
from sbuslib.cli.main import every_parser, parse

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
