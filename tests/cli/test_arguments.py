"""Wrong arguments of the programs, and how their help is laid out."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

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


def test_help_fills_paragraphs_and_keeps_examples(run: Run) -> None:
    for columns in ("60", "100"):
        done = run("sbuslib", "sub", "--help", env={"COLUMNS": columns})
        described, _, examples = done.stdout.partition("\nexamples:\n")
        assert max(map(len, described.splitlines())) < int(columns)
        assert "  sbus sub 'room/*/temp'                      * stands for all up to the next /\n" in examples
