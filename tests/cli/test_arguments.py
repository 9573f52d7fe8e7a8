"""Wrong arguments of the programs, and how their help is laid out."""

from __future__ import annotations

import subprocess
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Callable

import pytest

from sbuslib.cli import daemon, relay
from sbuslib.cli.arguments import NAMES
from sbuslib.cli.main import build_parser

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize(
    ("arguments", "usage", "error"),
    [
        (("sub", "--coutn", "3", ""), "usage: sbus sub ", "there is no option --coutn: did you mean --count?"),
        (("sub", "--coutn=3", ""), "usage: sbus sub ", "there is no option --coutn: did you mean --count?"),
        (("pub", "k", "v", "--zzzzz"), "usage: sbus pub ", "there is no option --zzzzz\n"),
        (("pub", "k", "v", "more"), "usage: sbus pub ", "unexpected argument: more"),
        (("lake", "ingest", "--folow", "a", "b"), "usage: sbus lake ingest ", "did you mean --follow?"),
        (("whoam",), "usage: sbus ", "there is no command whoam: did you mean whoami?"),
        (("publish", "k", "v"), "usage: sbus ", "there is no command publish: did you mean pub?"),
        (("-a", "/tmp/bus", "pub"), "usage: sbus ", "options stand after the command: sbus pub -a ..."),
        (("bridge", "--export", "a", "nats://b"), "usage: sbus bridge ", "required: URL; it comes before options that"),
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
    shown: dict[str, tuple[str, ...]] = {}

    def look(parser: ArgumentParser) -> None:
        for action in parser._actions:
            if isinstance(action, _SubParsersAction):
                for below in action.choices.values():
                    look(below)
            elif action.metavar == "ADDRESS" and action.option_strings != ["--upstream"]:
                shown[parser.prog] = tuple(action.option_strings)
                assert all(parser._option_string_actions[name] is action for name in NAMES), parser.prog

    for build in (build_parser, daemon.build_parser, relay.build_parser):
        look(build())
    assert len(shown) > 25
    others = {prog: names for prog, names in shown.items() if names != ("-a", "--address")}
    assert others == {"sbus replay": ("--to",), "sbus-relay": ("--listen",)}


def test_help_fills_paragraphs_and_keeps_examples(run: Run) -> None:
    for columns in ("60", "100"):
        done = run("sbuslib", "sub", "--help", env={"COLUMNS": columns})
        described, _, examples = done.stdout.partition("\nexamples:\n")
        assert max(map(len, described.splitlines())) < int(columns)
        assert "  sbus sub 'room/*/temp'                      * stands for all up to the next /\n" in examples
