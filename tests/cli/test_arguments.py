"""Wrong arguments of the programs, and how their help is laid out."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from sbuslib.cli import daemon, relay
from sbuslib.cli.arguments import NAMES
from sbuslib.cli.main import every_parser, parse

Run = Callable[..., "subprocess.CompletedProcess[str]"]


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


def test_a_wrong_option_of_the_daemon_shows_the_nearest(run: Run) -> None:
    done = run("sbuslib.cli.daemon", "--foregruond")
    assert done.returncode == 2
    assert done.stderr.endswith("sbusd: error: there is no option --foregruond: did you mean --foreground?\n")


def test_an_address_has_the_same_names_in_every_command() -> None:
    programs = {**dict(every_parser()), "sbusd": daemon.build_parser(), "sbus-relay": relay.build_parser()}
    shown = {name: parser for name, parser in programs.items() if "--address" in parser._option_string_actions}
    for name, parser in shown.items():
        assert len({id(parser._option_string_actions[one]) for one in NAMES}) == 1, name
    assert len(shown) > 25


def test_the_options_of_all_commands_may_stand_before_a_verb() -> None:
    assert parse(["-q", "journal", "-v", "info", "DIR"]).quiet
    assert parse(["journal", "-v", "info", "DIR"]).verbose
    assert parse(["journal", "info", "DIR"]).command == "journal info"


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("clients -n 3", "stat --clients --rows 3"),
        ("tree --rates 1", "stat --tree --window 1s"),
        ("lake ingest a b", "journal ingest a b"),
        ("replay j --to /bus", "journal replay j -a /bus"),
        ("record --keep-bytes 1K --keep-seconds 1m j", "journal record --max-bytes 1KB --max-age 1min j"),
        ("bridge u --trust a/ --keep 1M --ca f", "bridge u --from a/ --max-bytes 1MiB --tls-ca f"),
        ("send -n 2 k f", "send --receivers 2 k f"),
        ("top --once --sort in", "top -n 1 --sort published"),
    ],
)
def test_old_names_are_the_new_ones(words: str, same: str) -> None:
    old, new = vars(parse(words.split())), vars(parse(same.split()))
    assert {name: value for name, value in old.items() if not callable(value)} == {
        name: value for name, value in new.items() if not callable(value)
    }


def test_help_fills_paragraphs_and_keeps_examples(run: Run) -> None:
    for columns in ("60", "100"):
        done = run("sbuslib", "sub", "--help", env={"COLUMNS": columns})
        described, _, examples = done.stdout.partition("\nexamples:\n")
        assert max(map(len, described.splitlines())) < int(columns)
        assert "  sbus sub 'room/*/temp'                      * stands for all up to the next /\n" in examples
