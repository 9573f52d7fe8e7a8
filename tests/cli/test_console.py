"""What all programs share: errors in a line, signals, completion, man pages."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Run
from support import PATIENCE, ROOT, HubThread, python

from sbuslib.cli import main, manual
from sbuslib.cli.arguments import Parser
from sbuslib.cli.console import STOPPING, advise, explain, on_stop
from sbuslib.cli.manual import SCRIPTS, candidates
from sbuslib.errors import CorruptJournalError, NoHubError

# -- The functions that all programs share


@pytest.mark.parametrize(
    ("error", "address", "line"),
    [
        (NoHubError("no hub at /a: gone"), "/b", "/b: no hub at /a: gone"),
        (NoHubError("no hub at /: gone"), "/", "no hub at /: gone; sbus doctor -a / says why"),
        (NoHubError("gone"), "/a", "/a: gone"),
        (OSError(2, "No such file"), "/a", "/a: No such file"),
        (OSError(2, "No such file", "/b"), "/a", "/b: No such file"),
        (TimeoutError("too late"), None, "too late"),
        (ValueError("one\ntwo\x1b\udcff\\"), None, "one\\ntwo\\x1b\\xff\\"),
    ],
)
def test_explain_tells_an_error_in_one_line(error: Exception, address: str | None, line: str) -> None:
    assert explain(error, address) == line


@pytest.mark.parametrize(
    ("error", "options", "advice"),
    [
        (CorruptJournalError("damaged", 7), {"on_corrupt": "error"}, "; --skip-corrupt goes on after it"),
        (RuntimeError("in a worker: CorruptJournalError: damaged"), {"on_corrupt": "error"}, "; --skip-corrupt"),
        (CorruptJournalError("damaged", 7), {"on_corrupt": "skip"}, ""),
        (CorruptJournalError("damaged", 7), {}, ""),
        (NoHubError("gone"), {"on_corrupt": "error"}, ""),
    ],
)
def test_advise_names_the_option_that_helps(error: Exception, options: dict[str, str], advice: str) -> None:
    advised = advise(error, Namespace(**options))
    assert advised.startswith(advice)
    assert bool(advised) == bool(advice)


@pytest.mark.parametrize("ignored", [(), (signal.SIGINT,), (signal.SIGHUP,), (signal.SIGINT, signal.SIGHUP)])
def test_ignored_signals_stay_ignored(monkeypatch: pytest.MonkeyPatch, ignored: tuple[int, ...]) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    installed: dict[int, Callable[..., object]] = {}
    stopped: list[int] = []
    on_stop(lambda: stopped.append(1), installed.__setitem__)
    assert installed.keys() == set(STOPPING) - set(ignored)
    installed[signal.SIGTERM](signal.SIGTERM, None)  # as signal.signal calls it
    installed[signal.SIGTERM]()  # and gevent
    assert stopped == [1, 1]


def test_an_error_names_the_address_of_a_hub_that_runs(run: Run, bus: HubThread, path: str) -> None:
    """It names the hub that began to listen last; there may be others on this machine meanwhile."""
    for command in (("whoami",), ("pub", "key", "payload"), ("sub", "")):
        done = run("sbuslib", *command, env={"SBUS_ADDRESS": "/nowhere"})
        assert done.returncode == 1
        assert re.search(r"; one may be at another address: export SBUS_ADDRESS=/\S+\n$", done.stderr)
        done = run("sbuslib", command[0], "-a", "/nowhere", *command[1:])
        assert re.search(r"; sbus hub -a /\S+ starts one; another one listens at /\S+\n$", done.stderr)
    if os.geteuid() == 0:  # that of a stranger is never recommended
        os.chown(path, 12_345, -1)
        assert path not in run("sbuslib", "pub", "-a", "/nowhere", "key", "payload").stderr


# -- ``sbus completion``: what may come next, and bash itself completes with what it printed


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("sbus who", "whoami"),
        ("sbus journal re", "record replay"),
        ("sbus hub re", "reload"),
        ("sbus hub --rel", "--relay"),
        ("sbus help jo", "journal"),
        ("sbus help journal se", "seal"),
        ("sbus sub --send", "--senders"),
        ("sbus sub --soft q", "queue"),
        ("sbus sub --count ", ""),
        ("sbus journal ingest --fol", "--follow"),
        ("sbus record --dur", "--durability"),
        ("sbus completion f", "fish"),
        ("sbusd --fore", "--foreground"),
        ("sbus-relay --upstream-", "--upstream-user"),
        ("sbus --ver", "--version"),
    ],
)
def test_what_may_come_next(line: str, found: str) -> None:
    assert " ".join(candidates(line.split(" "))) == found


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_shell_has_a_script_that_asks_sbus(run: Run, shell: str) -> None:
    done = run("sbuslib", "completion", shell)
    assert (done.returncode, done.stdout, done.stderr) == (0, SCRIPTS[shell], "")
    assert f"sbus completion {shell} -- " in done.stdout
    done = run("sbuslib", "completion", shell, "--", "sbus", "journal", "ver")
    assert (done.returncode, done.stdout) == (0, "verify\n")


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    program = tmp_path / "sbus"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m sbuslib "$@"\n')
    program.chmod(0o755)
    (tmp_path / "sbus.bash").write_text(SCRIPTS["bash"])
    for words, completed in ((("who",), "whoami"), (("sub", "--send"), "--senders"), (("help", "whoa"), "whoami")):
        asked = (
            f'. "{tmp_path}/sbus.bash"; PATH="{tmp_path}:$PATH"; COMP_WORDS=(sbus {" ".join(words)}); '
            f'COMP_CWORD={len(words)}; _sbus; echo "${{COMPREPLY[@]}}"'
        )
        found = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert found.stdout.split() == [completed]


# -- The man pages, which are made when the package is built: they tell of every command, and groff has no complaint


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return manual.pages()


def test_every_group_of_commands_has_a_page_with_its_commands(pages: dict[str, str]) -> None:
    for command, (group, *_) in main.COMMANDS.items():
        assert f"\n.SH SBUS {command.upper()}\n" in pages[f"sbus-{group}.1"]
        assert f"\nsbus {command} [\\-h] " in pages[f"sbus-{group}.1"]


@pytest.mark.skipif(not shutil.which("groff"), reason="needs groff: apt-get install groff")
def test_the_pages_are_well_formed(pages: dict[str, str]) -> None:
    for text in pages.values():
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww"], input=text.encode(), capture_output=True, timeout=PATIENCE, check=True
        )
        assert done.stderr == b""


def test_text_keeps_backslashes_dots_and_indented_lines() -> None:
    parser = Parser(prog="p", usage="p", add_help=False, description="a \\n\n\n.b", epilog="examples:\n  'c -d")
    text = "\n".join(manual._body(parser, ".SS"))
    assert text == (
        ".SS SYNOPSIS\n.nf\np\n.fi\n.PP\n.nf\na \\en\n.fi\n.PP\n.nf\n\\&.b\n.fi\n.SS EXAMPLES\n.nf\n  'c \\-d\n.fi"
    )


NOTHING_INSTALLED = """
import sys
for name in ("msgspec", "gevent"):
    sys.modules[name] = None
from sbuslib.cli import manual
print(len(manual.files()))
"""


def test_they_are_made_where_nothing_is_installed() -> None:
    """As where pip builds a wheel."""
    assert int(python("-c", NOTHING_INSTALLED)) == len(manual.files())
